"""Handlers of cells' events about their instances: they write them into the instances' rows, and repeat them for
listeners.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from functools import partial

from bus.messages.build import (
    SEQUENCE_FROM_CELL_MAX,
    InstanceActive,
    InstanceDeleted,
    InstanceFailed,
    InstanceMoved,
)
from bus.workers.handling import Bury, Handlers, Received, Said, Tell
from scheduler_worker.core.instances.lifecycle import CellEvent, heard, is_whole
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.outbox.outbox import OutboxTransaction
from scheduler_worker.requests.locked_rows import Ordered, take_steps

Repeat = Callable[[Sequence[Received[CellEvent]]], list[Said]]


def cell_event_handlers(
    clock: Callable[[], datetime], *, skipped: Collection[str], repeat: Repeat
) -> Handlers:
    """Handlers of cells' events about instances. They write each event into the row of its instance, and send what
    `repeat` returns for the events.

    Events that are not new are sent again, too: a crash would do the same, so listeners compare sequences. Cells in
    `skipped` are ignored, because other handlers write their events.
    """

    async def on_events(asks: Sequence[Received[CellEvent]], transaction: OutboxTransaction) -> list[Said]:
        ours = [
            ask
            for ask in asks
            if ask.message.cell not in skipped and ask.message.instance.sequence <= SEQUENCE_FROM_CELL_MAX
        ]
        if ours:
            await _write([ask.message for ask in ours], transaction, clock)
        wild = [
            Bury(ask, f"instance.sequence is {sequence}: a cell counts to {SEQUENCE_FROM_CELL_MAX} at most")
            for ask in asks
            if (sequence := ask.message.instance.sequence) > SEQUENCE_FROM_CELL_MAX
        ]
        return [*repeat(ours), *wild]

    return dict.fromkeys((InstanceActive, InstanceMoved, InstanceFailed, InstanceDeleted), on_events)


def repeated_at_api_level(events: Sequence[Received[CellEvent]]) -> list[Said]:
    """The events of a cell that has its own broker, to be published on the API level's broker. So clients need not know
    which cells have brokers of their own.
    """
    return [Tell(event.message, event) for event in events]


async def _write(
    events: Sequence[CellEvent], transaction: OutboxTransaction, clock: Callable[[], datetime]
) -> None:
    store = await transaction.begun()
    # Nearly every event says that a placed instance is active now: no row need be read for that.
    whole = [event for event in events if is_whole(event)]
    if await store.apply_events(whole) == len(whole):
        events = [event for event in events if not is_whole(event)]
    if events:
        await take_steps(
            store, [Ordered(event.instance.id, partial(_after, event, clock())) for event in events]
        )


def _after(event: CellEvent, now: datetime, row: InstanceRow | None) -> InstanceRow | None:
    return None if row is None else heard(row, event, now)
