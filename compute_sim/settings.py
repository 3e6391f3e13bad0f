"""The settings of a compute simulator."""

import msgspec
from msgspec import Struct

from bus.configuration.settings import require_positive
from bus.configuration.tuning import Section
from bus.message import CellName
from compute_sim.core.pools import read_pools


class ComputeSettings(Struct, frozen=True):
    # One process simulates all hosts of its cell: it keeps their instances in memory and consumes the cell's queue
    # alone.
    cell: CellName = "c1"
    # The interval of heartbeats. A host counts as down only after several missing ones.
    beat_s: float = 5.0
    # How often changed loads and facts of hosts are published.
    facts_every_s: float = 5.0
    # How often metrics of hosts are published; a host without metrics tells none.
    metrics_every_s: float = 30.0
    # How often all hosts tell their cached images, for schedulers that have just started; changed ones are told with facts.
    images_every_s: float = 300.0
    # How many trees are reported at once; and the pause before an unanswered or unconfirmed message is repeated.
    reports_at_once_max: int = 400
    again_s: float = 1.0
    # How many attempts end at once.
    due_at_once_max: int = 1000
    # How many builds a host has at once; others wait there for their turn. 0: any number.
    builds_at_once_max: int = 10
    # How long a finished attempt is remembered, so that it is not built after its destroy.
    over_kept_s: float = 3600.0
    # When stopping, the process waits for builds that end within this time; others are lost.
    drain_s: float = 5.0
    # Pools of the cell that share with its hosts, as NAME:CLASS=TOTAL@HOSTS. Such a host has nothing of this class itself.
    pools: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        msgspec.convert(self.cell, CellName)
        read_pools(self.pools, self.cell)
        may_be_0 = ("cell", "drain_s", "pools", "builds_at_once_max")
        require_positive(self, [name for name in self.__struct_fields__ if name not in may_be_0])


SECTION = Section("compute", ComputeSettings, omitted=("cell",), others=("hosts", "faults"))
