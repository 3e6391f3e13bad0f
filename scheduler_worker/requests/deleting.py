"""Orders to delete instances: lock the rows, decide, write, answer."""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from bus.messages.build import DeleteInstance, InstancesFound
from bus.workers.handling import Answer, Handlers, Received, Said
from scheduler_worker.core.instances.lifecycle import after_delete
from scheduler_worker.core.instances.rows import NO_REQUEST, is_of
from scheduler_worker.outbox.outbox import OutboxTransaction
from scheduler_worker.requests.locked_rows import Ordered, take_steps, tell_all


def delete_handlers(clock: Callable[[], datetime]) -> Handlers:
    async def on_deletes(
        asks: Sequence[Received[DeleteInstance]], transaction: OutboxTransaction
    ) -> list[Said]:
        """The answer is the instance as it is known now; empty if its request was never seen."""
        steps = [
            Ordered(ask.message.instance, partial(after_delete, order=ask.message, now=clock()), ask.sender)
            for ask in asks
        ]
        rows = await take_steps(await transaction.begun(), steps)
        said = await tell_all(rows, asks, transaction)
        for ask in asks:
            row = rows[ask.message.instance]
            is_hidden = row.told.request_id == NO_REQUEST or not is_of(row, ask.message.project)
            said.append(Answer(ask, InstancesFound(instances=() if is_hidden else (row.told,))))
        return said

    return {DeleteInstance: on_deletes}
