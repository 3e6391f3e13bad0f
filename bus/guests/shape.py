"""The shape of a guest: its cells with their processors and memory, and the policies that say how a host gives them."""

from typing import Literal, NamedTuple, get_args

from msgspec import Struct

CpuPolicy = Literal["shared", "dedicated", "mixed"]
ThreadPolicy = Literal["", "prefer", "isolate", "require"]
EmulatorThreads = Literal["", "share", "isolate"]
# Empty: nothing is asked. `sized`: pages of `page_kib`.
PageSize = Literal["", "small", "large", "any", "sized"]
PciAffinity = Literal["legacy", "required", "preferred", "socket"]

CPU_POLICIES: tuple[str, ...] = get_args(CpuPolicy)
THREAD_POLICIES: tuple[str, ...] = get_args(ThreadPolicy)[1:]
EMULATOR_THREADS: tuple[str, ...] = get_args(EmulatorThreads)[1:]
PCI_AFFINITIES: tuple[str, ...] = get_args(PciAffinity)

SMALL_PAGES, HUGE_PAGES = "MEMORY_MB", "CUSTOM_MEMORY_MB_PAGES_"


class GuestProblem(NamedTuple):
    """What contradicts in a flavor and an image: the field as a build request names it, and its value."""

    field: str
    value: str
    reason: str


class GuestCell(Struct, frozen=True):
    """A NUMA cell of the guest: the numbers of its shared and of its dedicated processors, and its memory."""

    shared: tuple[int, ...] = ()
    dedicated: tuple[int, ...] = ()
    memory_mb: int = 0


class GuestShape(Struct, frozen=True):
    """What a guest asks of a host. Without `cells` it has no topology: its sizes may come from anywhere on the host. Each guest
    cell has a host cell of its own, which gives all that the cell has; a host without cells is a single one.
    """

    cells: tuple[GuestCell, ...] = ()
    cpu_policy: CpuPolicy = "shared"
    thread_policy: ThreadPolicy = ""
    emulator_threads: EmulatorThreads = ""
    page_size: PageSize = ""
    page_kib: int = 0
    pci_affinity: PciAffinity = "legacy"

    @property
    def emulator_cpus(self) -> int:
        """Dedicated processors for the emulator's threads: the host cell of the first guest cell has them, too."""
        return 1 if self.cells and self.emulator_threads == "isolate" else 0


def memory_class(page_kib: int) -> str:
    """The resource class of memory in pages of this size; 0 is the host's small pages."""
    return f"{HUGE_PAGES}{page_kib}" if page_kib else SMALL_PAGES
