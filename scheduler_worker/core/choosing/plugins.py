"""The interfaces of filters and weighers.

Both see columns: one call for all hosts. They decide by the columns and the spec alone, and keep no state.
"""

from typing import Protocol

from msgspec import Struct

from placement_worker.core.candidates.columns import Flags, Floats, Ints
from scheduler_worker.core.aggregates.metadata import MULTIPLIER
from scheduler_worker.core.choosing.host_columns import Hosts
from scheduler_worker.core.requests import InstanceSpec

# For all multipliers together: a score has 32 bits, beside the preference among equals.
MULTIPLIERS_MAX = 1e7


class Filter(Protocol):
    # Its name in the funnel.
    name: str
    # Does its answer depend on what a host has taken? Then it is called again after every choice.
    is_per_instance: bool = False

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        """The hosts that could take one instance more."""

    def reason(self, hosts: Hosts, spec: InstanceSpec, at: int) -> str:
        """Why the host at this position does not pass, with the numbers."""


class Weigher(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def multiplier(self) -> float:
        """How much it counts; a negative one prefers the hosts with the lowest weight."""

    @property
    def minimum(self) -> float | None:
        """The lower end of its scale; None: the lowest weight of the hosts that qualify."""

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Floats | Ints | None:
        """Finite weights, higher is better. They are scaled to 0 to 1 over the hosts that qualify, then multiplied. None:
        all hosts are equal for it, which then costs nothing.
        """


def multiplier_key(weigher: Weigher) -> str:
    """The key of an aggregate's metadata that has another multiplier of this weigher for its hosts."""
    return f"{weigher.name.replace(' ', '_')}{MULTIPLIER}"


class Plugins(Struct, frozen=True):
    """The filters, in the order of the funnel, and the weighers. Claims carry `instances_max`, so that placement keeps the
    limit however many schedulers choose at once; 0: no limit.
    """

    filters: tuple[Filter, ...]
    weighers: tuple[Weigher, ...]
    instances_max: int = 0

    def __post_init__(self) -> None:
        total = sum(abs(weigher.multiplier) for weigher in self.weighers)
        assert total <= MULTIPLIERS_MAX, f"multipliers add up to {total}, at most {MULTIPLIERS_MAX:g}"


def qualifying(hosts: Hosts, spec: InstanceSpec, plugins: Plugins) -> Flags:
    """The hosts that pass all filters."""
    qualify = hosts.present
    for one in plugins.filters:
        qualify = qualify & one.passes(hosts, spec)
    return qualify
