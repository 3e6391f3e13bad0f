"""Events of cells about their instances: written over the rows that they concern, and repeated for their listeners."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from bus.handling import Handlers, Received, Said, Tell
from bus.messages.build import InstanceActive, InstanceDeleted, InstanceFailed, InstanceId
from scheduler_worker.core.instances.lifecycle import CellEvent, heard, is_whole
from scheduler_worker.core.instances.rows import InstanceRow  # noqa: TC001 - imported like every other type
from scheduler_worker.outbox.outbox import OutboxTransaction

Repeat = Callable[[Sequence[Received[CellEvent]]], list[Said]]


def cell_event_handlers(
    clock: Callable[[], datetime], *, skipped: Collection[str], repeat: Repeat
) -> Handlers:
    """`skipped` names the cells whose events are written elsewhere. The others are repeated whether they are news or
    not, since a crash repeats them anyway: listeners go by the sequence.
    """

    async def on_events(asks: Sequence[Received[CellEvent]], transaction: OutboxTransaction) -> list[Said]:
        ours = [ask for ask in asks if ask.message.cell not in skipped]
        if not ours:
            return []
        await _write([ask.message for ask in ours], transaction, clock)
        return repeat(ours)

    return dict.fromkeys((InstanceActive, InstanceFailed, InstanceDeleted), on_events)


def repeated_at_api_level(events: Sequence[Received[CellEvent]]) -> list[Said]:
    """The events of a cell's own broker, said again at API level: clients and dashboards need not know which cells have
    a broker of their own.
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
    if not events:
        return
    wanted = sorted({event.instance.id for event in events}, key=lambda id_: id_.int)
    rows = dict(await store.lock(wanted))
    changed: dict[InstanceId, InstanceRow] = {}
    for event in events:
        row = rows.get(event.instance.id)
        now = None if row is None else heard(row, event, clock())
        if now is not None:
            changed[now.id] = rows[now.id] = now
    await store.save(list(changed.values()))
