"""The extra specs of the flavor about resources, traits and groups."""

from collections.abc import Iterator

from bus.messages.build import BuildInstance
from placement_worker.core.vocabulary import Vocabulary
from scheduler_worker.core.requests.groups_grammar import read_grouped
from scheduler_worker.core.requests.parts import Part, RequestFilter


def _read(build: BuildInstance, vocabulary: Vocabulary) -> Iterator[Part]:
    for key, value in build.flavor.extra_specs.items() if build.flavor else ():
        part = read_grouped(f"flavor.extra_specs.{key}", key, value, vocabulary)
        if part is not None:
            yield part


EXTRA_SPECS = RequestFilter(_read)
