"""Orders to delete, rebuild and mend instances: lock the rows, decide (core/instances/), write, answer."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial

from bus.messages.books import MendInstance
from bus.messages.build import DeleteInstance, InstancesFound, RebuildInstance
from bus.workers.handling import Answer, Handlers, Received, Said
from scheduler_worker.core.instances.lifecycle import after_delete
from scheduler_worker.core.instances.mending import mended
from scheduler_worker.core.instances.rebuilds import rebuilt
from scheduler_worker.core.instances.rows import NO_REQUEST, is_of
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.outbox.outbox import OutboxTransaction
from scheduler_worker.requests.locked_rows import Ordered, follow, take_steps, tell_all
from scheduler_worker.requests.rebuilding import RebuildImages


def instance_order_handlers(
    picture: Picture,
    clock: Callable[[], datetime],
    know_hosts: Callable[[], Awaitable[None]],
    images: RebuildImages,
    *,
    rebuild_timeout_s: int,
) -> Handlers:
    """Handlers of orders about existing instances. A rebuild without a deadline may take `rebuild_timeout_s`."""

    async def on_deletes(
        asks: Sequence[Received[DeleteInstance]], transaction: OutboxTransaction
    ) -> list[Said]:
        """Delete instances. Answers with each instance as its row shows it then, or with none if its request was never
        seen.
        """
        steps = [
            Ordered(ask.message.instance, partial(after_delete, order=ask.message, now=clock()), ask.by)
            for ask in asks
        ]
        rows = await take_steps(await transaction.begun(), steps)
        said = await tell_all(rows, asks, transaction)
        for ask in asks:
            row = rows[ask.message.instance]
            is_hidden = row.told.request_id == NO_REQUEST or not is_of(row, ask.message.project)
            said.append(Answer(ask, InstancesFound(instances=() if is_hidden else (row.told,))))
        return said

    async def on_rebuilds(
        asks: Sequence[Received[RebuildInstance]], transaction: OutboxTransaction
    ) -> list[Said]:
        await know_hosts()
        image_of = await images.find([ask.message for ask in asks])
        decide = partial(
            rebuilt, now=clock(), timeout_s=rebuild_timeout_s, why_no_work=why_no_work, image_of=image_of
        )
        return await follow(asks, [partial(decide, order=ask.message) for ask in asks], transaction)

    def why_no_work(cell: str, host: str) -> str:
        """Why the host cannot follow an order; empty if it can. A bare-metal node can even while its daemon is away,
        since Ironic does the work.
        """
        return "" if picture.is_node(cell, host) or picture.is_up(cell, host) else f"its host {host} is down"

    return {DeleteInstance: on_deletes, RebuildInstance: on_rebuilds, MendInstance: _on_mends}


async def _on_mends(asks: Sequence[Received[MendInstance]], transaction: OutboxTransaction) -> list[Said]:
    """Handle orders of an audit to correct the rows of instances. Answers with the rows as they are then."""
    steps = [Ordered(ask.message.instance.id, partial(mended, mend=ask.message), ask.sender) for ask in asks]
    rows = await take_steps(await transaction.begun(), steps)
    return [
        Answer(
            ask,
            InstancesFound(instances=(row.told,) if (row := rows.get(ask.message.instance.id)) else ()),
        )
        for ask in asks
    ]
