"""The sizes of the flavor ask for memory and disk. Its processors are read by the processor policy."""

from collections.abc import Iterator

from bus.messages.build import BuildInstance
from placement_worker.core.vocabulary import Vocabulary
from scheduler_worker.core.requests.parts import DefaultAmount, Part, RequestFilter

MB_PER_GB = 1024


def _read(build: BuildInstance, _vocabulary: Vocabulary) -> Iterator[Part]:
    flavor = build.flavor
    if flavor is None:
        return
    yield DefaultAmount("MEMORY_MB", flavor.ram_mb)
    swap_gb = -(-flavor.swap_mb // MB_PER_GB)
    yield DefaultAmount("DISK_GB", flavor.root_gb + flavor.ephemeral_gb + swap_gb)


SIZES = RequestFilter(_read)
