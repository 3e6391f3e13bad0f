"""Orders to rebuild instances: lock the rows, decide (core/instances/rebuilds.py), write, answer."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial

from bus.messages.build import BuildRejected, RebuildInstance
from bus.workers.handling import Handlers, Received, Said
from scheduler_worker.core.instances.rebuilds import rebuilt
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.outbox.outbox import OutboxTransaction
from scheduler_worker.requests.locked_rows import Ordered, answered, take_steps


def rebuild_handlers(
    picture: Picture,
    clock: Callable[[], datetime],
    know_hosts: Callable[[], Awaitable[None]],
    *,
    timeout_s: int,
) -> Handlers:
    """`timeout_s` is how long a rebuild may take that names no deadline."""

    def why_no_work(host: str) -> str:
        """Ironic works on while the daemons of its nodes are away."""
        return "" if picture.is_node(host) or picture.is_up(host) else f"its host {host} is down"

    async def on_rebuilds(
        asks: Sequence[Received[RebuildInstance]], transaction: OutboxTransaction
    ) -> list[Said]:
        await know_hosts()
        verdicts: list[InstanceRow | BuildRejected] = []

        def step(row: InstanceRow | None, order: RebuildInstance) -> InstanceRow | None:
            verdict = rebuilt(row, order, clock(), timeout_s=timeout_s, why_no_work=why_no_work)
            verdicts.append(verdict)
            return verdict if isinstance(verdict, InstanceRow) else None

        steps = [Ordered(ask.message.instance, partial(step, order=ask.message), ask.sender) for ask in asks]
        rows = await take_steps(await transaction.begun(), steps)
        return await answered(asks, verdicts, rows, transaction)

    return {RebuildInstance: on_rebuilds}
