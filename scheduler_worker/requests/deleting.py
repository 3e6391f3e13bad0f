"""Orders to delete instances: lock the rows, decide, write, answer."""

from collections.abc import Callable, Sequence
from datetime import datetime

from bus.handling import Answer, Handlers, Received, Said
from bus.messages.build import DeleteInstance, InstanceId, InstancesFound
from scheduler_worker.core.instances.lifecycle import after_delete
from scheduler_worker.core.instances.rows import NO_REQUEST, InstanceRow, is_of
from scheduler_worker.outbox.outbox import OutboxTransaction


def delete_handlers(clock: Callable[[], datetime]) -> Handlers:
    async def on_deletes(
        asks: Sequence[Received[DeleteInstance]], transaction: OutboxTransaction
    ) -> list[Said]:
        """The answer is the instance as it is known now; empty if its request was never seen."""
        store = await transaction.begun()
        wanted = sorted({ask.message.instance for ask in asks}, key=lambda id_: id_.int)
        rows = dict(await store.lock(wanted))
        changed: dict[InstanceId, InstanceRow] = {}
        for ask in asks:
            row = after_delete(rows.get(ask.message.instance), ask.message, clock())
            if row is not None:
                changed[row.id] = rows[row.id] = row
        await store.save(list(changed.values()))
        await transaction.note(rows[id_] for id_ in wanted)
        causes = {ask.message.instance: ask for ask in asks}
        said: list[Said] = [tell for id_ in wanted for tell in transaction.tells(rows[id_], causes[id_])]
        for ask in asks:
            row = rows[ask.message.instance]
            is_hidden = row.told.request_id == NO_REQUEST or not is_of(row, ask.message.project)
            said.append(Answer(ask, InstancesFound(instances=() if is_hidden else (row.told,))))
        return said

    return {DeleteInstance: on_deletes}
