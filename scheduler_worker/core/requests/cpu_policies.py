"""The policies about processors, of the flavor and of the image. The flavor's word counts before the image's.

`hw:cpu_policy`, `hw_cpu_policy`: shared processors (VCPU) or dedicated ones (PCPU). An image may not ask for dedicated
processors where the flavor says shared.

`hw:cpu_thread_policy`, `hw_cpu_thread_policy`: a trait that says whether the host has hyperthreads. `isolate` forbids
hyperthreads, `require` requires them, `prefer` asks for nothing. The policy is about dedicated processors.
"""

from collections.abc import Iterator

from bus.messages.build import BuildInstance, Flavor
from scheduler_worker.core.requests.parts import AskedTrait, DefaultAmount, RequestPart, RequestProblem

POLICY, IMAGE_POLICY = "hw:cpu_policy", "hw_cpu_policy"
SHARED, DEDICATED = "shared", "dedicated"

THREADS, IMAGE_THREADS = "hw:cpu_thread_policy", "hw_cpu_thread_policy"
HYPERTHREADS = "HW_CPU_HYPERTHREADING"
THREAD_WORDS = {"prefer": "", "isolate": "forbidden", "require": "required"}


def cpu_policies(build: BuildInstance) -> Iterator[RequestPart]:
    if build.flavor is not None:
        yield from _policy(build.flavor, build)
        yield from _thread_policy(build.flavor, build)


def _policy(flavor: Flavor, build: BuildInstance) -> Iterator[RequestPart]:
    of_flavor, of_image = flavor.extra_specs.get(POLICY), build.image_properties.get(IMAGE_POLICY)
    for field, value in (
        (f"flavor.extra_specs.{POLICY}", of_flavor),
        (f"image_properties.{IMAGE_POLICY}", of_image),
    ):
        if value not in (None, SHARED, DEDICATED):
            yield RequestProblem(
                field, value, "a processor policy is shared or dedicated; mixed is not supported"
            )
    if of_flavor == SHARED and of_image == DEDICATED:
        yield RequestProblem(
            f"image_properties.{IMAGE_POLICY}",
            of_image,
            "the flavor says shared, so the image cannot be dedicated",
        )
    yield DefaultAmount("PCPU" if _is_dedicated(flavor, build) else "VCPU", flavor.vcpus)


def _is_dedicated(flavor: Flavor, build: BuildInstance) -> bool:
    """Does the policy, by itself, ask for dedicated processors?"""
    return flavor.extra_specs.get(POLICY, build.image_properties.get(IMAGE_POLICY)) == DEDICATED


def _thread_policy(flavor: Flavor, build: BuildInstance) -> Iterator[RequestPart]:
    of_flavor, of_image = flavor.extra_specs.get(THREADS), build.image_properties.get(IMAGE_THREADS)
    asked = ((f"flavor.extra_specs.{THREADS}", of_flavor), (f"image_properties.{IMAGE_THREADS}", of_image))
    for field, value in asked:
        if value is None:
            continue
        if value not in THREAD_WORDS:
            yield RequestProblem(field, value, f"a thread policy is {', '.join(THREAD_WORDS)}")
        elif not _is_dedicated(flavor, build):
            yield RequestProblem(
                field, value, "it is about dedicated processors: set hw:cpu_policy to dedicated, too"
            )
        elif field == asked[1][0] and of_flavor not in (None, "prefer", value):
            yield RequestProblem(field, value, f"the flavor says {of_flavor}, and the image something else")
        elif THREAD_WORDS[value]:
            yield AskedTrait("", HYPERTHREADS, THREAD_WORDS[value], field)
