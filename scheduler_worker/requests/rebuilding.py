"""Orders to rebuild instances: lock the rows, decide (core/instances/rebuilds.py), write, answer."""

from collections.abc import Callable, Sequence
from datetime import datetime

from bus.handling import Answer, Handlers, Received, Said
from bus.messages.build import BuildRejected, InstanceId, InstancesFound, RebuildInstance
from scheduler_worker.core.instances.rebuilds import rebuilt
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.outbox.outbox import OutboxTransaction
from scheduler_worker.requests.answering import rejected


def rebuild_handlers(clock: Callable[[], datetime], *, timeout_s: int) -> Handlers:
    """`timeout_s` is how long a rebuild may take that names no deadline."""

    async def on_rebuilds(
        asks: Sequence[Received[RebuildInstance]], transaction: OutboxTransaction
    ) -> list[Said]:
        store = await transaction.begun()
        wanted = sorted({ask.message.instance for ask in asks}, key=lambda id_: id_.int)
        rows = dict(await store.lock(wanted))
        changed: dict[InstanceId, InstanceRow] = {}
        verdicts: list[InstanceRow | BuildRejected] = []
        for ask in asks:
            id_ = ask.message.instance
            verdict = rebuilt(rows.get(id_), ask.message, clock(), timeout_s=timeout_s)
            if isinstance(verdict, InstanceRow) and verdict is not rows[id_]:
                changed[id_] = rows[id_] = verdict
            verdicts.append(verdict)
        await store.save(list(changed.values()))
        await transaction.note(rows.values())
        causes = {ask.message.instance: ask for ask in asks}
        said: list[Said] = [tell for id_, row in rows.items() for tell in transaction.tells(row, causes[id_])]
        for ask, verdict in zip(asks, verdicts, strict=True):
            if isinstance(verdict, BuildRejected):
                said += rejected(ask, verdict)
            else:
                said.append(Answer(ask, InstancesFound(instances=(rows[verdict.id].told,))))
        return said

    return {RebuildInstance: on_rebuilds}
