"""What an operator may tune of a compute simulator."""

import msgspec
from msgspec import Struct

from bus.message import CellName
from bus.tuning import Section


class ComputeSettings(Struct, frozen=True):
    # One process pretends all hosts of its cell: what they have built is in its memory, and their queue is the cell's.
    cell: CellName = "c1"
    # Who is to notice that a host is down must wait for several of these.
    beat_s: float = 5.0
    # How often hosts whose load or facts changed are told.
    facts_every_s: float = 5.0
    # How many trees are reported at once, and when what was not answered, or not confirmed, is said again.
    reports_at_once_max: int = 400
    again_s: float = 1.0
    # How many attempts end in one turn of the loop.
    due_at_once_max: int = 1000
    # How long it is remembered that an attempt is over, so that it is not built after its destroy.
    over_kept_s: float = 3600.0
    # When stopping, builds that end within this time are waited for; others are as lost as on a host that is cut off.
    drain_s: float = 5.0

    def __post_init__(self) -> None:
        msgspec.convert(self.cell, CellName)
        for field in ("beat_s", "facts_every_s", "again_s", "over_kept_s"):
            if getattr(self, field) <= 0:
                raise ValueError(f"{field} is {getattr(self, field)}, must be more than 0")
        for field in ("reports_at_once_max", "due_at_once_max"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} is {getattr(self, field)}, must be at least 1")


SECTION = Section("compute", ComputeSettings, omitted=("cell",), others=("hosts", "faults"))
