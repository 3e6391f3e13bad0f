"""Steps of instances: lock the rows, take one step after the other, write the rows that have changed."""

from collections.abc import Callable, Sequence

from bus.messages.build import DeleteInstance, InstanceId, RebuildInstance
from bus.workers.handling import Received, Said
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.outbox.outbox import OutboxTransaction
from scheduler_worker.store import SchedulerTransaction

# The row after a step; None if it stays as it is.
Step = Callable[[InstanceRow | None], InstanceRow | None]


async def take_steps(
    store: SchedulerTransaction, steps: Sequence[tuple[InstanceId, Step]]
) -> dict[InstanceId, InstanceRow]:
    """Returns the rows as they are then."""
    rows = dict(await store.lock(sorted({id_ for id_, _ in steps}, key=lambda id_: id_.int)))
    changed: dict[InstanceId, InstanceRow] = {}
    for id_, step in steps:
        before = rows.get(id_)
        row = step(before)
        if row is not None and row is not before:
            changed[id_] = rows[id_] = row
    await store.save(list(changed.values()))
    return rows


async def tell_all(
    rows: dict[InstanceId, InstanceRow],
    asks: Sequence[Received[DeleteInstance] | Received[RebuildInstance]],
    transaction: OutboxTransaction,
) -> list[Said]:
    """What these rows have to say, noted. The last order about a row is the cause."""
    await transaction.note(rows.values())
    causes = {ask.message.instance: ask for ask in asks}
    return [tell for id_, row in rows.items() for tell in transaction.tells(row, causes[id_])]
