"""The properties of the image that require or forbid traits. They are about the whole instance."""

from collections.abc import Iterator

from bus.messages.build import BuildInstance
from placement_worker.core.vocabulary import Vocabulary
from scheduler_worker.core.requests.groups_grammar import read_grouped
from scheduler_worker.core.requests.parts import Part, Problem, RequestFilter, Resource, Trait

PREFIX = "trait"


def _read(build: BuildInstance, vocabulary: Vocabulary) -> Iterator[Part]:
    for key, value in build.image_properties.items():
        if not key.startswith(PREFIX):
            continue
        part = read_grouped(f"image_properties.{key}", key, value, vocabulary)
        if isinstance(part, Resource | Trait) and part.suffix:
            yield Problem(
                f"image_properties.{key}", value, "an image has no granular groups: only trait:TRAIT is read"
            )
        elif part is not None:
            yield part


IMAGE_TRAITS = RequestFilter(_read)
