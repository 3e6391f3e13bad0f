"""Releases of claims that a request may have made, and that no row of an instance needs."""

from collections.abc import Collection
from datetime import datetime

from bus.messages.build import BuildInstance, InstanceId
from bus.workers.handling import Received, Said, Tell
from scheduler_worker.core.instances.messages import releases_of_ended
from scheduler_worker.core.instances.rows import instance_ids_of
from scheduler_worker.outbox.outbox import OutboxTransaction


async def released_unless_held(
    ask: Received[BuildInstance],
    transaction: OutboxTransaction,
    now: datetime,
    *,
    new: Collection[InstanceId] = (),
) -> list[Said]:
    """Releases for the claims of these instances that no row needs: those that ended, or have no row. Placement may
    have forgotten by now that they ended, and grant a claim that comes late.
    """
    instances = sorted(instance_ids_of(ask.message))
    known = await (await transaction.begun()).lock(instances)
    return [
        Tell(release, ask)
        for release in releases_of_ended(instances, known, now, ask.message.project, new=new)
    ]
