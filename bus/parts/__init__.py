"""The parts of a worker process: supervised parts, periodic parts and single flights, each with a name and counters.

One rule for all: an operational error (bus/errors.py) is logged once per change, counted, and retried after growing
pauses. Every other exception is a bug and ends the process with its traceback. Pauses use asyncio's clock, and their
jitter a given random generator, so that a simulation can replay them.

    Supervised     runs one coroutine for as long as the process runs.
    Periodic       calls a function at an interval, and at once when woken. Two calls never overlap.
    SharedRuns     runs a function. A caller that comes during a run shares the next run. It is no part.
    SingleFlight   shared runs as a part. Each run is retried until it succeeds.
    Background     runs tasks beside a part, one for each key.

    status.py       the state and counters of a part
    supervised.py   Supervised, Periodic, Once
    shared_runs.py  SharedRuns, SingleFlight
    background.py   Background
    groups.py       several parts together
"""

from bus.parts.background import Background
from bus.parts.groups import PartGroup, every_part, set_beside, statuses
from bus.parts.shared_runs import SharedRuns, SingleFlight, mark_seen
from bus.parts.status import PartState, Status, Work, operational
from bus.parts.supervised import Once, Periodic, Supervised, wait_at_most

__all__ = [
    "Background",
    "Once",
    "PartGroup",
    "PartState",
    "Periodic",
    "SharedRuns",
    "SingleFlight",
    "Status",
    "Supervised",
    "Work",
    "every_part",
    "mark_seen",
    "operational",
    "set_beside",
    "statuses",
    "wait_at_most",
]
