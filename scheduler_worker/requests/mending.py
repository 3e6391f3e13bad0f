"""Orders of an audit to mend instances' rows: lock the rows, decide (core/instances/mending.py), write, answer."""

from collections.abc import Sequence
from functools import partial

from bus.messages.books import MendInstance
from bus.messages.build import InstancesFound
from bus.workers.handling import Answer, Handlers, Received, Said
from scheduler_worker.core.instances.mending import mended
from scheduler_worker.outbox.outbox import OutboxTransaction
from scheduler_worker.requests.locked_rows import Ordered, take_steps


def mend_handlers() -> Handlers:
    return {MendInstance: _on_mends}


async def _on_mends(asks: Sequence[Received[MendInstance]], transaction: OutboxTransaction) -> list[Said]:
    steps = [Ordered(ask.message.instance.id, partial(mended, mend=ask.message), ask.sender) for ask in asks]
    rows = await take_steps(await transaction.begun(), steps)
    return [
        Answer(
            ask,
            InstancesFound(instances=(row.told,) if (row := rows.get(ask.message.instance.id)) else ()),
        )
        for ask in asks
    ]
