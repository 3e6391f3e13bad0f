"""Handlers of cells' events about their instances: they write them into the instances' rows, and repeat them for
listeners.

A cell reports only its own instances, as their rows say. An event about an instance that has no row or is in another
cell changes nothing, and is not repeated. A repeated event names the request and the project of the row: what the
message says of them counts nowhere.

If a cell reports an instance that is deleted already, it is told to delete the instance again. A late copy of the order to
place the instance may have reached the cell after it had forgotten the instance.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Protocol

from bus.messages.build import InstanceActive, InstanceDeleted, InstanceFailed, InstanceMoved
from bus.workers.handling import Bury, Handlers, Received, Said, Tell
from engine.flavors import InstanceId
from scheduler_worker.core.instances.lifecycle import (
    SEQUENCE_AHEAD_MAX,
    CellEvent,
    as_known,
    heard,
    is_too_far_ahead,
    is_whole,
)
from scheduler_worker.core.instances.rows import DELETED, InstanceRow
from scheduler_worker.outbox import OutboxTransaction
from scheduler_worker.requests.instance_orders import Ordered, take_steps

Rows = Mapping[InstanceId, InstanceRow]


class Repeater(Protocol):
    """Repeats the events of cells for listeners."""

    @property
    def has_listeners(self) -> bool:
        """May an event have to be repeated? Otherwise the rows of plain events need not be read."""

    def repeated(self, event: CellEvent, cause: Received[CellEvent]) -> Sequence[Said]:
        """The copies of an event that agrees with its instance's row."""


def cell_event_handlers(
    clock: Callable[[], datetime], *, skipped: Collection[str], repeater: Repeater
) -> Handlers:
    """Handlers of cells' events about instances. They write each event into the row of its instance, and send what
    `repeater` makes of the events.

    Events that are not new are sent again, too: a crash would do the same, so listeners compare sequences. Cells in
    `skipped` are ignored, because other handlers write their events.
    """

    async def on_events(asks: Sequence[Received[CellEvent]], transaction: OutboxTransaction) -> list[Said]:
        ours = [ask for ask in asks if ask.message.cell not in skipped]
        if not ours:
            return []
        rows = await _write([ask.message for ask in ours], transaction, clock, repeater)
        if not rows:
            return []
        said: list[Said] = []
        causes = {ask.message.instance.id: ask for ask in ours}
        for id_, row in rows.items():
            # The move waits again, since others got the room before its cell; or a cell has a deleted instance again.
            if row.kept is not None or (row.unsaid and row.told.state == DELETED):
                said += await transaction.say([row], causes[id_])
        for ask in ours:
            event, read = ask.message, rows.get(ask.message.instance.id)
            if read is None:
                continue
            if (known := as_known(read, event)) is not None:
                said += repeater.repeated(known, ask)
            elif is_too_far_ahead(read, event):
                reason = (
                    f"instance.sequence is {event.instance.sequence}: a cell is at most {SEQUENCE_AHEAD_MAX} ahead "
                    f"of its instance's row, which is at {read.told.sequence}"
                )
                said.append(Bury(ask, reason))
        return said

    return dict.fromkeys((InstanceActive, InstanceMoved, InstanceFailed, InstanceDeleted), on_events)


class ApiLevelRepeater:
    """Publishes the events of a cell that has its own broker on the API level's broker. So clients need not know which
    cells have brokers of their own.
    """

    has_listeners = True

    def repeated(self, event: CellEvent, cause: Received[CellEvent]) -> Sequence[Said]:
        return (Tell(event, cause),)


async def _write(
    events: Sequence[CellEvent],
    transaction: OutboxTransaction,
    clock: Callable[[], datetime],
    repeater: Repeater,
) -> Rows:
    """Write the events into the rows of their instances. Returns the rows as they are then, as far as they were read."""
    store = await transaction.begun()
    rows: dict[InstanceId, InstanceRow] = {}
    # Nearly every event says that a placed instance is active now: no row need be read for that.
    whole = [event for event in events if is_whole(event)]
    if await store.apply_events(whole) == len(whole):
        events = [event for event in events if not is_whole(event)]
        if repeater.has_listeners:
            ids = {event.instance.id for event in whole}
            rows |= await store.lock(sorted(ids))
    if events:
        rows |= await take_steps(
            store, [Ordered(event.instance.id, partial(_after, event, clock())) for event in events]
        )
    return rows


def _after(event: CellEvent, now: datetime, row: InstanceRow | None) -> InstanceRow | None:
    return None if row is None else heard(row, event, now)
