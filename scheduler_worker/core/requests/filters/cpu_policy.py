"""`hw:cpu_policy` and the image's `hw_cpu_policy`: shared processors (VCPU) or dedicated ones (PCPU).

The flavor's word counts before the image's. An image may not ask for dedicated processors where the flavor says shared.
"""

from collections.abc import Iterator

from bus.messages.build import BuildInstance
from placement_worker.core.vocabulary import Vocabulary
from scheduler_worker.core.requests.parts import DefaultAmount, Part, Problem, RequestFilter

SHARED, DEDICATED = "shared", "dedicated"
KEY, IMAGE_KEY = "hw:cpu_policy", "hw_cpu_policy"


def is_dedicated(build: BuildInstance) -> bool:
    """Does the policy, by itself, ask for dedicated processors?"""
    specs = build.flavor.extra_specs if build.flavor else {}
    return specs.get(KEY, build.image_properties.get(IMAGE_KEY)) == DEDICATED


def _read(build: BuildInstance, _vocabulary: Vocabulary) -> Iterator[Part]:
    if build.flavor is None:
        return
    of_flavor = build.flavor.extra_specs.get(KEY)
    of_image = build.image_properties.get(IMAGE_KEY)
    for field, value in (
        (f"flavor.extra_specs.{KEY}", of_flavor),
        (f"image_properties.{IMAGE_KEY}", of_image),
    ):
        if value not in (None, SHARED, DEDICATED):
            yield Problem(field, value, "a processor policy is shared or dedicated; mixed is not supported")
    if of_flavor == SHARED and of_image == DEDICATED:
        yield Problem(
            f"image_properties.{IMAGE_KEY}",
            of_image,
            "the flavor says shared, so the image cannot be dedicated",
        )
    yield DefaultAmount("PCPU" if is_dedicated(build) else "VCPU", build.flavor.vcpus)


CPU_POLICY = RequestFilter(_read, frozenset({KEY}), frozenset({IMAGE_KEY}))
