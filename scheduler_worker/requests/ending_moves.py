"""Orders to end moves: to confirm them, to bring instances back, or not to wait for room any longer."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial

from msgspec import structs

from bus.messages.build import InstanceId
from bus.messages.moves import EndMove
from bus.workers.handling import Handlers, Received, Said
from scheduler_worker.core.instances.moves import move_ended
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.outbox.outbox import OutboxTransaction
from scheduler_worker.requests.locked_rows import follow_several
from scheduler_worker.store import InstanceQuery, SchedulerStore


def move_end_handlers(
    store: SchedulerStore,
    picture: Picture,
    clock: Callable[[], datetime],
    know_hosts: Callable[[], Awaitable[None]],
) -> Handlers:
    async def on_ends(asks: Sequence[Received[EndMove]], transaction: OutboxTransaction) -> list[Said]:
        await know_hosts()
        decide = partial(move_ended, now=clock(), is_up=picture.is_up)
        together = await _waiting_together(store, [ask.message for ask in asks])
        steps_of = [
            [
                (id_, partial(decide, order=structs.replace(ask.message, instance=id_)))
                for id_ in (ask.message.instance, *others)
            ]
            for ask, others in zip(asks, together, strict=True)
        ]
        return await follow_several(asks, steps_of, transaction, are_whole=[False] * len(asks))

    return {EndMove: on_ends}


async def _waiting_together(store: SchedulerStore, orders: Sequence[EndMove]) -> list[tuple[InstanceId, ...]]:
    """For each order, the other instances whose moves wait together with that of its instance, or have waited: some may wait
    again by now. If a move began without a wait, its cell ends the moves of the others.
    """
    ids = tuple(dict.fromkeys(order.instance for order in orders))
    rows = await store.instances(InstanceQuery(instances=ids, limit=len(ids)))
    moves = {row.id: row.told.move for row in rows if row.waited is not None}
    return [
        tuple(each for each in move.together if each != order.instance)
        if (move := moves.get(order.instance)) is not None and move.request_id == order.request_id
        else ()
        for order in orders
    ]
