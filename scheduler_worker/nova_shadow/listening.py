"""Hears copies of Nova's scheduler RPC on a queue of its own, and has the requests among them decided. Nothing is ever answered.

A copy is acknowledged when it is decided, so a worker that dies leaves it to another one. A message that cannot be read is only told
of: nova-scheduler has it, too.
"""

import logging
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from uuid import UUID

from bus.errors import Operational, Refusal
from bus.measuring import Labels, Readings
from bus.messages.build import InstanceId
from bus.parts import Supervised
from bus.rabbit.connection import RabbitConnection
from bus.rabbit.rpc import ForeignQueue, RabbitRpc, RpcDelivery
from bus.workers.link import Link
from scheduler_worker.core.requests import COUNT_MAX
from scheduler_worker.metrics import SHADOW_COPIES
from scheduler_worker.nova.oslo_envelope import RpcRequest, read_envelope
from scheduler_worker.nova.refusals import RefusedError
from scheduler_worker.nova_shadow.choosing import CopiedRequest, ShadowChooser
from scheduler_worker.nova_shadow.following import ShadowFollower
from scheduler_worker.nova_worker.casts import NovaCasts
from scheduler_worker.nova_worker.hosts import NovaHosts
from scheduler_worker.nova_worker.serving import SELECT, VERSION

log = logging.getLogger(__name__)

# How many copies are decided at once. Each is acknowledged with its batch.
BATCH_MAX = 50
PREFETCH = 2 * BATCH_MAX
# Nova's callers send a request again after a broken connection.
IDS_REMEMBERED_MAX = 1000


class ShadowListener(Supervised):
    def __init__(
        self,
        link: Link,
        queues: Sequence[ForeignQueue],
        chooser: ShadowChooser,
        follower: ShadowFollower,
        hosts: NovaHosts,
        *,
        refresh: Callable[[], None],
        look_again: Callable[[], None],
        clock: Callable[[], datetime],
        chance: random.Random | None = None,
    ) -> None:
        super().__init__("hear copies of Nova's scheduler RPC", self._hear, is_needed=True, chance=chance)
        self._link = link
        self._queues = queues
        self._chooser = chooser
        self._follower = follower
        self._refresh = refresh
        self._casts = NovaCasts(hosts, look_again)
        self._clock = clock
        self._known: OrderedDict[str, None] = OrderedDict()
        self._counted = Counter[Labels]()

    @property
    def readings(self) -> Readings:
        return (SHADOW_COPIES.numbers(self._counted),)

    async def _hear(self) -> None:
        async with self._link.opened() as connection:
            if not isinstance(connection, RabbitConnection):
                raise Refusal("nova_bus_url must name Nova's RabbitMQ: amqp://... or amqps://...")
            rpc = await connection.open_rpc(self._queues, PREFETCH)
            self.status.well()
            try:
                while True:
                    await self._take_all(rpc, await rpc.receive())
            finally:
                with suppress(Operational):
                    await rpc.close()

    async def _take_all(self, rpc: RabbitRpc, deliveries: Sequence[RpcDelivery]) -> None:
        for start in range(0, len(deliveries), BATCH_MAX):
            some = deliveries[start : start + BATCH_MAX]
            copies = [copied for each in some if (copied := self._read(each)) is not None]
            if copies:
                await self._decide(copies)
            for each in some:
                await rpc.acknowledge(each.tag)

    async def _decide(self, copies: Sequence[CopiedRequest]) -> None:
        """Choose for these, and have Nova's choices found out. If placement does not answer, they are left undecided: later, the cloud
        will be another one.
        """
        self._refresh()
        try:
            # What Nova has claimed for earlier requests counts, and not our choices for them.
            await self._follower.look_at_new()
            choices = await self._chooser.choose(copies)
        except Operational as problem:
            log.warning("%d requests are not decided in shadow mode: %s", len(copies), problem)
            self._counted[("undecided",)] += len(copies)
            return
        except Exception:
            if len(copies) > 1:
                # One of them must not spoil the others.
                for each in copies:
                    await self._decide([each])
                return
            log.exception("a request could not be decided in shadow mode")
            self._counted[("undecided",)] += 1
            return
        self._counted[("decided",)] += len(copies)
        self._follower.follow(choices)

    # Messages

    def _read(self, delivery: RpcDelivery) -> CopiedRequest | None:
        """The request in this message, if it is one; casts are taken at once."""
        try:
            request = read_envelope(delivery.body)
            if request.method == SELECT and request.call is not None and not request.namespace:
                return self._copied(request)
            self._take_cast(request)
        except RefusedError as refused:
            self._counted[("unreadable",)] += 1
            log.warning("a message on %s is left out: %s", delivery.queue, refused)
        except Exception:
            self._counted[("unreadable",)] += 1
            log.exception("a message of %d bytes on %s could not be read", len(delivery.body), delivery.queue)
        return None

    def _take_cast(self, request: RpcRequest) -> None:
        is_known = VERSION.can_serve(request.version) and self._casts.know(request.method)
        if request.namespace or not is_known:
            self._counted[("left",)] += 1
            return
        self._casts.take(request)
        self._counted[(request.method,)] += 1

    def _copied(self, request: RpcRequest) -> CopiedRequest | None:
        assert request.call is not None, "only calls are requests"
        if not VERSION.can_serve(request.version):
            raise RefusedError("version", str(request.version), f"it is known up to version {VERSION}")
        key = request.unique_id or request.call.id
        if key in self._known:
            self._counted[("repeated",)] += 1
            return None
        self._known[key] = None
        while len(self._known) > IDS_REMEMBERED_MAX:
            self._known.popitem(last=False)
        return CopiedRequest(
            at=self._clock(),
            request_id=request.caller.request_id,
            project=request.caller.project_id,
            args=request.args,
            instances=_instances_in(request.args),
        )


def _instances_in(args: Mapping[str, object]) -> tuple[InstanceId, ...]:
    """The instances of the request. Raises RefusedError: without their ids nothing can be compared."""
    ids = args.get("instance_uuids")
    if not isinstance(ids, list) or not 1 <= len(ids) <= COUNT_MAX:
        raise RefusedError("instance_uuids", ids, f"it must be a list of 1 to {COUNT_MAX} ids")
    try:
        return tuple(dict.fromkeys(InstanceId(UUID(str(each))) for each in ids))
    except ValueError:
        raise RefusedError("instance_uuids", ids, "each must be an id, as 8-4-4-4-12 hex digits") from None
