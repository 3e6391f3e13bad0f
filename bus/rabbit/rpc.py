"""Serves the RPC of another program on its own RabbitMQ: consumes its queues, and answers callers through the default exchange.

The other program and its other servers use the same exchanges and queues. So what exists is used as it is, and only what is
missing is declared.
"""

from collections.abc import Mapping, Sequence
from typing import cast

from msgspec import Struct
from pamqp import commands
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.frame import marshal
from pamqp.header import ContentHeader

from bus.broker import ArrivalsOf, Receipt, require_prefetch
from bus.message import Parcel
from bus.rabbit.channel import Channel, Listener, RabbitPublishing
from bus.rabbit.wire import RabbitWire
from kit.errors import ConnectionLost, ConsumerCancelled

_PERSISTENT = 2


class ForeignExchange(Struct, frozen=True):
    name: str
    kind: str = "topic"
    is_durable: bool = False
    is_auto_deleted: bool = False


class ForeignQueue(Struct, frozen=True):
    """A queue of another program, bound to its exchange by one key. The flags and arguments are those of a queue that is missing."""

    name: str
    exchange: ForeignExchange
    key: str
    is_durable: bool = False
    is_auto_deleted: bool = False
    arguments: Mapping[str, str | int] = {}


class RpcDelivery(Struct, frozen=True):
    """A request as it was delivered. `expires_ms` is how long it was allowed to wait in its queue; None: for ever."""

    tag: int
    queue: str
    body: bytes
    expires_ms: int | None = None
    is_redelivered: bool = False


class RabbitRpc(Listener):
    """The open queues of one connection. When the connection breaks, all methods raise `Interrupted`."""

    channel: Channel
    replies: "_Replies"

    def __init__(self) -> None:
        self._arrivals = ArrivalsOf[RpcDelivery]()
        self._queues: dict[str, str] = {}

    async def receive(self) -> Sequence[RpcDelivery]:
        """Wait for requests, and return all that have arrived, in order."""
        return await self._arrivals.take()

    async def acknowledge(self, tag: int) -> None:
        if self.channel.ended is not None:
            self._arrivals.check()
        self.channel.tell(commands.Basic.Ack(delivery_tag=tag))

    async def reply(self, queue: str, body: bytes) -> Receipt:
        """Send an answer to this queue of a caller. `UNROUTABLE`: the queue does not exist."""
        parcel = Parcel(exchange="", routing_key=queue, encoded=body, mandatory=True)
        return await self.replies.publish(parcel)

    async def close(self) -> None:
        await self.channel.close()
        await self.replies.close()

    def on_content(self, method: Frame, header: ContentHeader, body: bytes) -> None:
        deliver = cast("commands.Basic.Deliver", method)
        expiration = header.properties.expiration or ""
        self._arrivals.put(
            RpcDelivery(
                tag=deliver.delivery_tag or 0,
                queue=self._queues.get(deliver.consumer_tag or "", ""),
                body=body,
                expires_ms=int(expiration) if expiration.isascii() and expiration.isdecimal() else None,
                is_redelivered=bool(deliver.redelivered),
            )
        )

    def on_cancel(self) -> None:
        self._arrivals.end(ConsumerCancelled("the broker cancelled a consumer: was its queue deleted?"))

    def on_end(self, why: Exception) -> None:
        self._arrivals.drop(why if isinstance(why, ConnectionLost) else ConsumerCancelled(str(why)))

    def consumes(self, consumer: str, queue: str) -> None:
        self._queues[consumer] = queue


class _Replies(RabbitPublishing):
    """Publishes answers with the properties that the client library of the other program sets."""

    def frames(self, parcel: Parcel, number: int) -> bytes:
        channel, body, size_max = self.channel.number, parcel.body, self.wire.content_size_max
        properties = commands.Basic.Properties(
            content_type=parcel.content_type,
            content_encoding="utf-8",
            delivery_mode=_PERSISTENT,
            # By it, an answer that the broker returns is recognised.
            message_id=str(number),
        )
        publish = commands.Basic.Publish(exchange="", routing_key=parcel.routing_key, mandatory=True)
        return b"".join(
            (
                marshal(publish, channel),
                marshal(ContentHeader(body_size=len(body), properties=properties), channel),
                *(
                    marshal(ContentBody(body[start : start + size_max]), channel)
                    for start in range(0, len(body), size_max)
                ),
            )
        )


async def open_rpc(wire: RabbitWire, user: str, queues: Sequence[ForeignQueue], prefetch: int) -> RabbitRpc:
    """Consume these queues, after declaring what is missing of them. `prefetch` bounds each queue's unacknowledged requests."""
    require_prefetch(prefetch)
    for exchange in {queue.exchange.name: queue.exchange for queue in queues}.values():
        await _ensure_exchange(wire, exchange)
    for queue in queues:
        await _ensure_queue(wire, queue)
    rpc = RabbitRpc()
    replies = rpc.replies = _Replies(wire, user)
    replies.channel = await wire.open(replies, commands.Confirm.Select())
    consumes: list[Frame] = []
    for number, queue in enumerate(queues, 1):
        rpc.consumes(str(number), queue.name)
        consumes.append(commands.Basic.Consume(queue=queue.name, consumer_tag=str(number)))
    rpc.channel = await wire.open(rpc, commands.Basic.Qos(prefetch_count=prefetch), *consumes)
    return rpc


async def _ensure_exchange(wire: RabbitWire, exchange: ForeignExchange) -> None:
    name = exchange.name
    if not await wire.stands(commands.Exchange.Declare(exchange=name, passive=True)):
        declared = commands.Exchange.Declare(
            exchange=name,
            exchange_type=exchange.kind,
            durable=exchange.is_durable,
            auto_delete=exchange.is_auto_deleted,
        )
        await wire.ask_aside(declared)


async def _ensure_queue(wire: RabbitWire, queue: ForeignQueue) -> None:
    if not await wire.stands(commands.Queue.Declare(queue=queue.name, passive=True)):
        declared = commands.Queue.Declare(
            queue=queue.name,
            durable=queue.is_durable,
            auto_delete=queue.is_auto_deleted,
            arguments={**queue.arguments},
        )
        await wire.ask_aside(declared)
    bound = commands.Queue.Bind(queue=queue.name, exchange=queue.exchange.name, routing_key=queue.key)
    await wire.ask_aside(bound)
