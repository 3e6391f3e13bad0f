"""`hw:cpu_thread_policy` and the image's `hw_cpu_thread_policy`: a trait that says whether the host has hyperthreads.

`isolate` forbids hyperthreads, `require` requires them, `prefer` asks for nothing. The policy is about dedicated processors.
"""

from collections.abc import Iterator

from bus.messages.build import BuildInstance
from placement_worker.core.vocabulary import Vocabulary
from scheduler_worker.core.requests.filters.cpu_policy import is_dedicated
from scheduler_worker.core.requests.parts import Part, Problem, RequestFilter, Trait

TRAIT = "HW_CPU_HYPERTHREADING"
WORDS = {"prefer": "", "isolate": "forbidden", "require": "required"}
KEY, IMAGE_KEY = "hw:cpu_thread_policy", "hw_cpu_thread_policy"


def _read(build: BuildInstance, _vocabulary: Vocabulary) -> Iterator[Part]:
    of_flavor = build.flavor.extra_specs.get(KEY) if build.flavor else None
    of_image = build.image_properties.get(IMAGE_KEY)
    asked = ((f"flavor.extra_specs.{KEY}", of_flavor), (f"image_properties.{IMAGE_KEY}", of_image))
    for field, value in asked:
        if value is None:
            continue
        if value not in WORDS:
            yield Problem(field, value, f"a thread policy is {', '.join(WORDS)}")
        elif not is_dedicated(build):
            yield Problem(
                field, value, "it is about dedicated processors: set hw:cpu_policy to dedicated, too"
            )
        elif field == asked[1][0] and of_flavor not in (None, "prefer", value):
            yield Problem(field, value, f"the flavor says {of_flavor}, and the image something else")
        elif WORDS[value]:
            yield Trait("", TRAIT, WORDS[value], field)


CPU_THREAD_POLICY = RequestFilter(_read, frozenset({KEY}), frozenset({IMAGE_KEY}))
