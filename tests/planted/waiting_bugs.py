"""Planted bugs in what schedulers do for instances that wait for room."""

from contextlib import AbstractContextManager
from typing import Any

from msgspec import structs

from engine.picture.members import TouchedHosts
from scheduler_worker import forgetting
from scheduler_worker.core.instances import lifecycle, moves
from scheduler_worker.core.instances.rows import WAITING
from scheduler_worker.requests.waking import WaitingMoves
from scheduler_worker.store_sql import waiting
from scheduler_worker.waiting import WaitingSpecs
from tests.planted.replacing import replaced


def wake_up_lost() -> AbstractContextManager[None]:
    """A host that changed is not recorded, so nothing that waits is tried when it has room again."""
    return replaced(TouchedHosts, "add", lambda _real: lambda *_: None)


def deadline_forgotten() -> AbstractContextManager[None]:
    """The deadline of an instance that waits for room is not noticed; only accepted instances end by theirs."""

    def planted(real: Any) -> Any:
        def overdue(row: Any, now: Any) -> Any:
            return None if row.told.state == WAITING else real(row, now)

        return overdue

    return replaced(forgetting, "overdue", planted)


def waiting_move_passed_over() -> AbstractContextManager[None]:
    """A worker that looks for room for what waits passes over moves."""

    def planted(real: Any) -> Any:
        return lambda self, known: 0 if known.source is not None else real(self, known)

    return replaced(WaitingSpecs, "_room_for", planted)


def wait_outlives_its_abort() -> AbstractContextManager[None]:
    """A move that is aborted while it waits has its outcome, and waits on."""

    def planted(real: Any) -> Any:
        def wait_ended(row: Any, *args: Any) -> Any:
            ended = real(row, *args)
            told = structs.replace(ended.told, waiting=row.told.waiting)
            return structs.replace(ended, told=told, has_waited=False)

        return wait_ended

    return replaced(moves, "wait_ended", planted)


def lost_room_ends_the_move() -> AbstractContextManager[None]:
    """A move fails if others got its room before its cell asked for it, also one that asked to wait for room."""
    return replaced(lifecycle, "waits_again", lambda _real: lambda row, _now: row)


def priority_ignored() -> AbstractContextManager[None]:
    """Room that becomes free goes to what has waited longest, whatever its priority."""

    def planted(real: Any) -> Any:
        def list_waiting(connection: Any, rows: Any) -> None:
            real(connection, [_without_priority(row) for row in rows])

        return list_waiting

    return replaced(waiting, "list_waiting", planted)


def _without_priority(row: Any) -> Any:
    return structs.replace(
        row, told=structs.replace(row.told, waiting=structs.replace(row.told.waiting, priority=0))
    )


def waiting_moves_not_read() -> AbstractContextManager[None]:
    """A scheduler that starts does not read the moves that wait already, nor those that others wrote."""

    def planted(_real: Any) -> Any:
        async def needs_of(*_: Any) -> None:
            return None

        return needs_of

    return replaced(WaitingMoves, "needs_of", planted)
