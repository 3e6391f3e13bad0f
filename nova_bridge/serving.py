"""The loop over the queues of Nova's scheduler RPC: reads requests, has them decided in batches, and answers.

A request is acknowledged after its answer is sent, or after what it claimed is released. So the request of a worker that dies goes
to another one, which finds the claim and answers. oslo.messaging's own servers acknowledge before they work: there the caller waits
in vain, and a claim stays.

A caller gives up after a time, or when it has had no sign of life for a while. So each call gets signs of life from the moment at which
it is taken. An answer to a caller that has given up, or for a queue that is gone, would reach nobody: then the claim is released. But
when the connection breaks by which a call came, the broker gives the call to any scheduler. That one adopts the claim, so it is not
released here.

No message ends this loop: one that cannot be read is dropped, and the log has it with the reason, without its secrets.
"""

import asyncio
import logging
import secrets
import socket
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial

from msgspec import Struct

from bus.broker import Connection, Receipt
from bus.rabbit.broker import RabbitConnection
from bus.rabbit.rpc import ForeignExchange, ForeignQueue, RabbitRpc, RpcDelivery
from bus.workers.consuming import consumer
from bus.workers.sending import Link
from kit.errors import Operational, Refusal
from kit.metrics import Histogram, Labels, Readings
from kit.parts import Background, Supervised, until_set
from nova_bridge.deciding import NovaAsked, NovaDecider, NovaDecision
from nova_bridge.envelope import (
    RefusedError,
    RemoteFailure,
    RpcCall,
    RpcRequest,
    RpcVersion,
    UnknownNameError,
    no_such_method,
    no_valid_host,
    read_envelope,
    redacted,
    unsupported_version,
    write_failure,
    write_heartbeat,
    write_result,
)
from nova_bridge.hosts import NovaHosts
from nova_bridge.request_spec import NovaRequestReader
from nova_bridge.selection import InstancesByService
from nova_bridge.settings import NovaSettings
from scheduler_worker.metrics import NOVA_ANSWERED, NOVA_CALLS

# A call of nova-conductor while it is under way, and what is remembered of calls that came twice.


# oslo.messaging remembers the last 16 messages.
ENDED_KEPT = 1000


class NovaCall:
    """`deliveries` are all deliveries of this call: it comes again after the connection broke. `heard_at` is when its caller last got
    a sign of life, or began to wait. After `expires_at`, no caller waits whatever it has got.
    """

    def __init__(
        self,
        request: RpcRequest,
        call: RpcCall,
        *,
        received_at: datetime,
        heard_at: datetime,
        waits: timedelta,
        is_redelivered: bool,
    ) -> None:
        self.request = request
        self.call = call
        self.received_at = received_at
        self.heard_at = heard_at
        self.expires_at = received_at + waits
        self.is_redelivered = is_redelivered
        self.deliveries: list[tuple[RabbitRpc, int]] = []

    @property
    def ends_by(self) -> datetime:
        """When the caller gives up. If it asks for signs of life, it also does so after it has missed two of them."""
        if self.call.heartbeat_s is None:
            return self.expires_at
        return min(self.expires_at, self.heard_at + 2 * timedelta(seconds=self.call.heartbeat_s))

    def came_by(self, connection: RabbitRpc | None) -> bool:
        """Did it come by this connection? All calls of a connection that broke go to any scheduler, which then has to answer."""
        return any(each is connection for each, _ in self.deliveries)

    @property
    def key(self) -> str:
        """What tells this call from all others; a call that comes twice has the same."""
        return self.request.unique_id or f"{self.call.reply_queue} {self.call.id}"


class KnownCalls:
    """The calls under way, and the last ones that have ended, by their keys."""

    def __init__(self) -> None:
        self._open: dict[str, NovaCall] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def has_ended(self, key: str) -> bool:
        return key in self._ended

    def get(self, key: str) -> NovaCall | None:
        return self._open.get(key)

    def begin(self, call: NovaCall) -> None:
        self._open[call.key] = call

    def forget(self, call: NovaCall) -> None:
        """It may come again."""
        self._open.pop(call.key, None)

    def end(self, call: NovaCall) -> None:
        self.forget(call)
        self._ended[call.key] = None
        if len(self._ended) > ENDED_KEPT:
            self._ended.popitem(last=False)


# The queues and exchanges of Nova's scheduler RPC, declared as oslo.messaging does, so that schedulers of Nova can stand beside us.


# What nova-conductor calls schedulers by.
TOPIC = "scheduler"
# Of the queue for casts, which each worker has anew, as in Nova: a shorter absence of the broker loses none.
CASTS_EXPIRE_MS = 1_800_000


def rpc_queues(settings: NovaSettings, unique: str) -> tuple[ForeignQueue, ...]:
    """The queue of the topic, the one of this machine alone, and the one for casts to all, which `unique` names."""
    is_quorum = settings.queues in ("quorum", "all_quorum")
    is_durable = is_quorum or settings.queues == "durable"
    exchange = ForeignExchange(settings.exchange, is_durable=is_durable)
    topics = tuple(
        ForeignQueue(
            topic,
            exchange,
            topic,
            is_durable=is_durable,
            arguments={"x-queue-type": "quorum"} if is_quorum else {},
        )
        for topic in (TOPIC, f"{TOPIC}.{socket.gethostname()}")
    )
    return (*topics, _fanout(unique, is_quorum=settings.queues == "all_quorum"))


async def open_rpc(connection: Connection, queues: Sequence[ForeignQueue], prefetch: int) -> RabbitRpc:
    if not isinstance(connection, RabbitConnection):
        raise Refusal("nova_bus_url must name Nova's RabbitMQ: amqp://... or amqps://...")
    return await RabbitRpc.open(connection, queues, prefetch)


def _fanout(unique: str, *, is_quorum: bool) -> ForeignQueue:
    name = f"{TOPIC}_fanout"
    arguments: dict[str, str | int] = {"x-expires": CASTS_EXPIRE_MS}
    if is_quorum:
        arguments["x-queue-type"] = "quorum"
    return ForeignQueue(
        f"{name}_{unique}",
        ForeignExchange(name, "fanout", is_durable=is_quorum, is_auto_deleted=True),
        TOPIC,
        is_durable=is_quorum,
        arguments=arguments,
    )


# Takes what Nova tells all its schedulers by casts: the instances of each compute, and that aggregates have changed.


_UPDATES: Mapping[str, Callable[[InstancesByService, Mapping[str, object]], str]] = {
    "update_instance_info": InstancesByService.updated,
    "delete_instance_info": InstancesByService.deleted,
    "sync_instance_info": InstancesByService.synced,
}
# All of Nova's aggregates are read from Nova: these casts only say that something changed.
_AGGREGATES = frozenset({"update_aggregates", "delete_aggregate"})


class NovaCasts:
    """`look_again` is called when Nova says that aggregates have changed."""

    def __init__(self, hosts: NovaHosts, look_again: Callable[[], None]) -> None:
        self._hosts = hosts
        self._look_again = look_again

    @staticmethod
    def know(method: str) -> bool:
        return method in _UPDATES or method in _AGGREGATES

    def take(self, request: RpcRequest) -> None:
        """Take what a cast that is known tells. Raises RefusedError if it cannot be read."""
        if request.method in _AGGREGATES:
            self._look_again()
            return
        self._hosts.tell_instances(_UPDATES[request.method](self._hosts.instances, request.args))


log = logging.getLogger(__name__)

# The newest version of Nova's scheduler RPC that is known here.
VERSION = RpcVersion(4, 5)
SELECT = "select_destinations"
# What every service of Nova answers, under a namespace and a version of its own.
BASE, BASE_VERSION = "baseapi", RpcVersion(1, 1)
# Pauses between tries to answer.
RETRY_S = 0.25
# Most calls are answered before their first sign of life.
FIRST_BEAT_S = 1.0
# So long after this worker began to consume, or had as many calls as it takes, a call may have waited in the queue.
BACKLOG_S = 5.0
# A queue that was gone is not waited for again so soon: all calls of a dead caller would wait for it.
GONE_KEPT_S = 60.0
GONE_MAX = 200
# So many bytes of a message that cannot be read are in the log.
SHOWN_MAX = 2_000


class ServingLimits(Struct, frozen=True, kw_only=True):
    """How much is taken at once, and how long an answer is tried whose queue does not exist."""

    # Calls that are taken before they are answered: more make larger batches, fewer leave more to schedulers beside this one.
    prefetch: int = 200
    # While one batch waits for placement, hosts are chosen for another.
    batches_in_flight: int = 2
    # Of one batch; a request for more is a batch of its own.
    instances_max: int = 1000
    # A caller may be connecting anew; then its claim is released.
    reply_retry_s: float = 30.0


class NovaServer(Supervised):
    """`look_again` is called when Nova says that aggregates have changed, and `find_names` has Nova read before a request is refused
    that names a host or a cell that is not known here.
    """

    def __init__(
        self,
        link: Link,
        queues: Sequence[ForeignQueue],
        decider: NovaDecider,
        reader: NovaRequestReader,
        hosts: NovaHosts,
        *,
        refresh: Callable[[], None],
        look_again: Callable[[], None],
        find_names: Callable[[], Awaitable[None]],
        limits: ServingLimits,
        rpc_timeout_s: float,
        clock: Callable[[], datetime],
    ) -> None:
        super().__init__("answer Nova's scheduler RPC", self._serve, is_needed=True, is_cut_short=False)
        self._link = link
        self._queues = queues
        self._decider = decider
        self._reader = reader
        self._hosts = hosts
        self._refresh = refresh
        self._find_names = find_names
        self._casts = NovaCasts(hosts, look_again)
        self._limits = limits
        self._rpc_timeout_s = rpc_timeout_s
        self._clock = clock
        self._rpc: RabbitRpc | None = None
        self._opened = asyncio.Event()
        self._calls = KnownCalls()
        # When there was last reason for calls to wait in the queue.
        self._backlog_at = clock()
        self._waiting: deque[NovaCall] = deque()
        self._deciding = Background(lambda _: self._start_batches())
        self._answering = Background()
        self._beating = Background()
        # By reply queue: when it was found missing.
        self._gone: dict[str, datetime] = {}
        self._ended = Counter[Labels]()
        self._took = Histogram(NOVA_ANSWERED)

    @property
    def readings(self) -> Readings:
        return (NOVA_CALLS.numbers(self._ended), self._took)

    @property
    def under_way(self) -> int:
        return len(self._calls)

    async def run(self) -> None:
        async with self._beating:
            async with self._answering, self._deciding:
                await super().run()
            self._beating.cancel_all()

    # Hearing

    async def _serve(self) -> None:
        opens = partial(open_rpc, queues=self._queues, prefetch=self._limits.prefetch)
        async with consumer(self._link, self.status, opens) as rpc:
            self._rpc = rpc
            self._backlog_at = self._clock()
            self._opened.set()
            try:
                await until_set(self.stopping, self._hear(rpc))
                # What was taken is answered; all else goes to other schedulers when this connection closes.
                self._start_batches()
                await self._deciding.until_fewer_than(1)
                await self._answering.until_fewer_than(1)
            finally:
                self._rpc = None
                self._opened.clear()

    async def _hear(self, rpc: RabbitRpc) -> None:
        while True:
            for delivery in await rpc.receive():
                await self._take(rpc, delivery)
            self._start_batches()

    async def _take(self, rpc: RabbitRpc, delivery: RpcDelivery) -> None:
        try:
            request = read_envelope(delivery.body)
        except RefusedError as refused:
            await self._drop(rpc, delivery, str(refused))
            return
        except Exception as bug:
            log.exception("a message of %d bytes could not be read", len(delivery.body))
            await self._drop(rpc, delivery, f"it could not be read: {bug!r}")
            return
        if request.call is None:
            await self._take_cast(rpc, delivery, request)
            return
        waits_s = self._rpc_timeout_s if delivery.expires_ms is None else delivery.expires_ms / 1000
        now = self._clock()
        call = NovaCall(
            request,
            request.call,
            received_at=now,
            heard_at=now if delivery.is_redelivered else self._waits_since(request, now),
            waits=timedelta(seconds=waits_s),
            is_redelivered=delivery.is_redelivered,
        )
        if self._calls.has_ended(call.key):
            self._count("repeated")
            await rpc.acknowledge(delivery.tag)
            return
        known = self._calls.get(call.key)
        if known is not None:
            known.deliveries.append((rpc, delivery.tag))
            return
        call.deliveries.append((rpc, delivery.tag))
        self._calls.begin(call)
        if call.call.heartbeat_s is not None:
            self._beating.start(self._beat(call, call.call.heartbeat_s), call)
        decided = self._at_once(request)
        if decided is None:
            self._waiting.append(call)
        else:
            self._answering.start(self._finish(call, decided))

    def _waits_since(self, request: RpcRequest, now: datetime) -> datetime:
        """Since when the caller may have waited for a sign of life. A call says only when the user's request began that it is for."""
        if len(self._calls) >= self._limits.prefetch:
            self._backlog_at = now
        may_have_waited = (now - self._backlog_at).total_seconds() < BACKLOG_S
        began_at = request.caller_began_at
        return min(began_at, now) if may_have_waited and began_at is not None else now

    def _at_once(self, request: RpcRequest) -> NovaDecision | None:
        """The answer to a call about which nothing must be decided; None if something must."""
        if request.namespace == BASE:
            if not BASE_VERSION.can_serve(request.version):
                return NovaDecision(failure=unsupported_version(request, str(BASE_VERSION)))
            if request.method == "ping":
                return NovaDecision(result={"service": TOPIC, "arg": request.args.get("arg")})
        elif not VERSION.can_serve(request.version):
            return NovaDecision(failure=unsupported_version(request, str(VERSION)))
        elif request.method == SELECT:
            return None
        elif self._casts.know(request.method):
            reason = self._update(request)
            return NovaDecision(failure=RemoteFailure("builtins", "ValueError", reason) if reason else None)
        return NovaDecision(failure=no_such_method(request))

    async def _take_cast(self, rpc: RabbitRpc, delivery: RpcDelivery, request: RpcRequest) -> None:
        if request.namespace or not self._casts.know(request.method):
            await self._drop(rpc, delivery, f"{request.method} is no cast that is known here")
        elif not VERSION.can_serve(request.version):
            reason = f"{request.method} is known up to version {VERSION}, and {request.version} came"
            await self._drop(rpc, delivery, reason)
        elif reason := self._update(request):
            await self._drop(rpc, delivery, reason)
        else:
            self._count(request.method)
            await rpc.acknowledge(delivery.tag)

    def _update(self, request: RpcRequest) -> str:
        """Take what a cast tells. Returns why it cannot be taken."""
        try:
            self._casts.take(request)
        except RefusedError as refused:
            return str(refused)
        return ""

    async def _drop(self, rpc: RabbitRpc, delivery: RpcDelivery, reason: str) -> None:
        self._count("unreadable")
        shown = redacted(delivery.body)[:SHOWN_MAX]
        log.error("a message on %s is dropped: %s; it was %s", delivery.queue, reason, shown)
        await rpc.acknowledge(delivery.tag)

    # Deciding

    def _start_batches(self) -> None:
        if self.stopping.is_set() and self._rpc is None:
            # They are not acknowledged, so they go to another scheduler.
            return
        while self._waiting and len(self._deciding) < self._limits.batches_in_flight:
            batch: list[NovaCall] = []
            instances = 0
            while self._waiting:
                asked = self._waiting[0].request.args.get("instance_uuids")
                count = len(asked) if isinstance(asked, list) else 1
                if batch and instances + count > self._limits.instances_max:
                    break
                instances += count
                batch.append(self._waiting.popleft())
            self._deciding.start(self._decide(batch))

    async def _decide(self, batch: Sequence[NovaCall], *, is_nova_read: bool = False) -> None:
        """Decide these requests, and answer them. One that names a host or a cell that is not known here is decided after Nova was read; the
        others do not wait for that.
        """
        self._refresh()
        decided, asked = dict[NovaCall, NovaDecision](), list[tuple[NovaCall, NovaAsked]]()
        unknown: list[NovaCall] = []
        for call in batch:
            try:
                request = self._reader.read(call.request.args, self._hosts.names)
            except RefusedError as refused:
                if isinstance(refused, UnknownNameError) and not is_nova_read:
                    unknown.append(call)
                else:
                    decided[call] = NovaDecision(failure=no_valid_host(str(refused)))
            except Exception as bug:
                log.exception("a request could not be read")
                decided[call] = NovaDecision(failure=no_valid_host(f"the request could not be read: {bug!r}"))
            else:
                waits = partial(self._is_waited_for, call)
                asked.append((call, NovaAsked(request, waits, may_hold=call.is_redelivered)))
        if unknown:
            log.debug("a request names what is not known: Nova is read before it is refused")
            self._answering.start(self._decide_when_read(unknown))
        found = await self._decider.decide([each for _, each in asked]) if asked else ()
        decided |= {call: each for (call, _), each in zip(asked, found, strict=True)}
        for call, decision in decided.items():
            self._answering.start(self._finish(call, decision))

    async def _decide_when_read(self, batch: Sequence[NovaCall]) -> None:
        await self._find_names()
        await self._decide(batch, is_nova_read=True)

    def _is_waited_for(self, call: NovaCall) -> bool:
        return self._clock() < call.ends_by

    async def _beat(self, call: NovaCall, every_s: float) -> None:
        """Tell the caller now and then that its request is being worked on."""
        pause_s = min(FIRST_BEAT_S, every_s)
        while self._is_waited_for(call):
            await asyncio.sleep(pause_s)
            began_at, rpc = self._clock(), self._rpc
            pause_s = min(FIRST_BEAT_S, every_s)
            if rpc is not None and call.came_by(rpc):
                with suppress(Operational):
                    body = write_heartbeat(call.call, secrets.token_hex(16))
                    if await rpc.reply(call.call.reply_queue, body) is Receipt.CONFIRMED:
                        call.heard_at, pause_s = began_at, every_s

    # Answering

    async def _finish(self, call: NovaCall, decision: NovaDecision) -> None:
        outcome = await self._outcome(call, decision)
        self._beating.cancel(call)
        if outcome is None:
            self._calls.forget(call)
            return
        if len(self._calls) >= self._limits.prefetch:
            self._backlog_at = self._clock()
        self._count(outcome)
        self._took.observe((self._clock() - call.received_at).total_seconds())
        self._calls.end(call)
        for rpc, tag in call.deliveries:
            with suppress(Operational):
                await rpc.acknowledge(tag)

    async def _outcome(self, call: NovaCall, decision: NovaDecision) -> str | None:
        """Send the answer, or give back what was claimed. Returns how the call ended; None if another scheduler gets it."""
        # Before the answer: the caller of a request that is refused may ask again at once.
        if decision.failure is not None and not await self._undone(call, decision):
            return None
        outcome = await self._answer(call, decision)
        if outcome not in ("answered", "no_valid_host"):
            log.warning(
                "an answer to %s of %s was %s: what it claimed is released",
                call.request.method,
                call.request.caller.request_id or "an unnamed request",
                outcome,
            )
            if not await self._undone(call, decision):
                return None
        return outcome

    async def _undone(self, call: NovaCall, decision: NovaDecision) -> bool:
        """Give back what was claimed, but only while the call is ours. Returns whether that is done."""
        while not await self._decider.undo(decision.searches, lambda: call.came_by(self._rpc)):
            # It comes again, to this scheduler or to another one.
            if self.stopping.is_set() or self._clock() >= call.expires_at:
                log.debug("claims are not given back: the call is not this scheduler's any more")
                return False
            await asyncio.sleep(RETRY_S)
        return True

    async def _answer(self, call: NovaCall, decision: NovaDecision) -> str:
        """Send the answer. Returns how it ended."""
        unique = secrets.token_hex(16)
        queue = call.call.reply_queue
        if decision.failure is not None:
            body, said = write_failure(call.call, decision.failure, unique), "no_valid_host"
        else:
            body, said = write_result(call.call, decision.result, unique), "answered"
        missing_since: datetime | None = self._gone.get(queue)
        while True:
            now = self._clock()
            if now >= call.ends_by:
                log.debug("an answer to Nova is given up: its caller does not wait any more")
                return "late"
            match await self._reply(queue, body, call.ends_by):
                case Receipt.CONFIRMED:
                    self._gone.pop(queue, None)
                    return said
                case Receipt.UNROUTABLE:
                    log.debug("the queue of a caller of Nova does not exist: the answer is tried again")
                    missing_since = missing_since or now
                    if (now - missing_since).total_seconds() >= self._limits.reply_retry_s:
                        self._note_gone(queue, missing_since)
                        return "undeliverable"
            await asyncio.sleep(RETRY_S)

    async def _reply(self, queue: str, body: bytes, ends_by: datetime) -> Receipt:
        left_s = (ends_by - self._clock()).total_seconds()
        try:
            async with asyncio.timeout(max(left_s, 0)):
                await self._opened.wait()
                rpc = self._rpc
                is_late = self._clock() >= ends_by
                return Receipt.LOST if rpc is None or is_late else await rpc.reply(queue, body)
        except (Operational, TimeoutError):
            return Receipt.LOST

    def _note_gone(self, queue: str, since: datetime) -> None:
        now = self._clock()
        self._gone = {name: at for name, at in self._gone.items() if (now - at).total_seconds() < GONE_KEPT_S}
        if len(self._gone) < GONE_MAX:
            self._gone[queue] = since

    def _count(self, outcome: str) -> None:
        self._ended[(outcome,)] += 1
