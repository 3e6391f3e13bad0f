"""Planted bugs in what schedulers do for instances that wait for room."""

from typing import Any

from msgspec import structs

from engine.picture.members import TouchedHosts
from scheduler_worker import forgetting
from scheduler_worker.core.instances import lifecycle, moves
from scheduler_worker.core.instances.rows import WAITING
from scheduler_worker.requests.waking import WaitingMoves
from scheduler_worker.store_sql import waiting
from scheduler_worker.waiting import WaitingSpecs
from tests.planted.replacing import ANY_CLOUD, planted, planted_by

# A host that changed is not recorded, so nothing that waits is tried when it has room again.
planted_by("a wake-up lost", TouchedHosts, "add", world=ANY_CLOUD)(lambda _real: lambda *_: None)


# The deadline of an instance that waits for room is not noticed; only accepted instances end by theirs.
@planted("the deadline of what waits forgotten", forgetting, "overdue", world=ANY_CLOUD)
def deadline_forgotten(real: Any, row: Any, now: Any) -> Any:
    return None if row.told.state == WAITING else real(row, now)


# A worker that looks for room for what waits passes over moves.
@planted_by("a waiting move passed over", WaitingSpecs, "_room_for", world="moves that wait")
def waiting_move_passed_over(real: Any) -> Any:
    return lambda self, known: 0 if known.source is not None else real(self, known)


# A move that is aborted while it waits has its outcome, and waits on.
@planted("a wait outlives its abort", moves, "wait_ended", world="moves that wait")
def wait_outlives_its_abort(real: Any, row: Any, *args: Any) -> Any:
    ended = real(row, *args)
    told = structs.replace(ended.told, waiting=row.told.waiting)
    return structs.replace(ended, told=told, has_waited=False)


# A move fails if others got its room before its cell asked for it, also one that asked to wait for room.
planted_by(
    "a move that lost its room does not wait again", lifecycle, "waits_again", world="moves that wait"
)(lambda _real: lambda row, _now: row)


# Room that becomes free goes to what has waited longest, whatever its priority.
@planted("the priority of what waits ignored", waiting, "list_waiting", world="moves that wait")
def priority_ignored(real: Any, connection: Any, rows: Any) -> None:
    real(connection, [_without_priority(row) for row in rows])


def _without_priority(row: Any) -> Any:
    return structs.replace(
        row, told=structs.replace(row.told, waiting=structs.replace(row.told.waiting, priority=0))
    )


# A scheduler that starts does not read the moves that wait already, nor those that others wrote.
@planted("waiting moves forgotten at a restart", WaitingMoves, "needs_of", world="moves that wait")
async def waiting_moves_not_read(_real: Any, *_: Any) -> None:
    return None
