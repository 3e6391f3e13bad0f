"""What a filter and a weigher are, and which of our own are used unless others are wanted.

Both see columns: one call for all hosts. They decide by these and the spec alone, and keep nothing of their own.
"""

from typing import Protocol

from msgspec import Struct

from placement_worker.core.candidates.columns import Flags, Floats, Ints
from scheduler_worker.core.choosing import filters, weighers
from scheduler_worker.core.choosing.host_columns import Hosts
from scheduler_worker.core.requests import InstanceSpec

# All multipliers together. What hosts are worth has to fit into half a word, beside what tells equals apart.
MULTIPLIERS_MAX = 1e7


class Filter(Protocol):
    @property
    def name(self) -> str:
        """What the funnel calls it."""

    @property
    def is_per_instance(self) -> bool:
        """Does its answer depend on what a host has taken? Then it is asked again after every choice."""

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        """Which of them could take one instance more."""

    def reason(self, hosts: Hosts, spec: InstanceSpec, at: int) -> str:
        """Why the one at this place does not pass, with the numbers."""


class Weigher(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def multiplier(self) -> float:
        """How much it counts; less than 0 turns its order around."""

    @property
    def minimum(self) -> float | None:
        """What is worth 0; None: the least of the hosts that qualify."""

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Floats | Ints:
        """Finite numbers, more is better. Made to run from 0 to 1 over the hosts that qualify, then multiplied."""


class Plugins(Struct, frozen=True):
    """What decides between hosts; filters in the order in which the funnel tells of them. Claims name `instances_max`, so
    that placement keeps it however many schedulers choose at once; 0: no limit.
    """

    filters: tuple[Filter, ...]
    weighers: tuple[Weigher, ...]
    instances_max: int = 0

    def __post_init__(self) -> None:
        total = sum(abs(weigher.multiplier) for weigher in self.weighers)
        assert total <= MULTIPLIERS_MAX, f"multipliers add up to {total}, at most {MULTIPLIERS_MAX:g}"


def standard_plugins(
    io_ops_max: int = filters.IO_OPS_PER_HOST_MAX, instances_max: int = filters.INSTANCES_PER_HOST_MAX
) -> Plugins:
    """What a scheduler uses unless told otherwise. Without a number, builds under way or instances are not limited."""
    return Plugins(
        filters=(
            filters.InRegistry(),
            filters.Up(),
            filters.Enabled(),
            filters.HasInventory(),
            filters.OneCell(),
            filters.BareMetal(),
            filters.Projects(),
            filters.AvailabilityZone(),
            filters.AskedHosts(),
            filters.Searched(),
            filters.Traits(),
            *((filters.IoOps(io_ops_max),) if io_ops_max else ()),
            *((filters.Instances(instances_max),) if instances_max else ()),
            filters.Capacity(),
        ),
        weighers=(
            weighers.FreeAmount("cpu", "VCPU"),
            weighers.FreeAmount("ram", "MEMORY_MB"),
            weighers.FreeAmount("disk", "DISK_GB"),
        ),
        instances_max=instances_max,
    )
