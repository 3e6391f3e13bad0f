"""Serves the RPC of another program on its own RabbitMQ: consumes its queues, and answers callers through the default exchange.

The other program and its other servers use the same exchanges and queues. So what exists is used as it is, and only what is
missing is declared.
"""

from collections.abc import Mapping, Sequence

from aiormq import Channel
from aiormq.abc import DeliveredMessage
from msgspec import Struct
from pamqp import commands

from bus.broker import Receipt, require_prefetch
from bus.message import Parcel
from bus.rabbit.broker import RabbitConnection
from bus.rabbit.channels import Consumers, RabbitPublishing
from bus.rabbit.connection import RabbitWire
from bus.rabbit.parcels import PERSISTENT


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


class RabbitRpc(Consumers[RpcDelivery]):
    """The open queues of one connection. When the connection breaks, all methods raise `Interrupted`."""

    def __init__(self, wire: RabbitWire, channel: Channel, replies: "_Replies") -> None:
        super().__init__(wire, channel, "a caller's queue", self._delivery_of)
        self._replies = replies

    @classmethod
    async def open(
        cls, connection: RabbitConnection, queues: Sequence[ForeignQueue], prefetch: int
    ) -> "RabbitRpc":
        """Consume these queues, after declaring what is missing of them. `prefetch` bounds each queue's unacknowledged requests."""
        require_prefetch(prefetch)
        for exchange in {queue.exchange.name: queue.exchange for queue in queues}.values():
            await _ensure_exchange(connection, exchange)
        for queue in queues:
            await _ensure_queue(connection, queue)
        replies = _Replies(connection, await connection.channel(confirms=True), connection.user)
        try:
            rpc = cls(connection, await connection.channel(), replies)
        except BaseException:
            await replies.close()
            raise
        try:
            await connection.answered(rpc.channel.basic_qos(prefetch_count=prefetch), rpc.channel)
            for queue in queues:
                # By the tag of its consumer, a request says from which queue it is.
                await rpc.consume(queue.name, queue.name)
        except BaseException:
            await rpc.close()
            raise
        return rpc

    async def reply(self, queue: str, body: bytes) -> Receipt:
        """Send an answer to this queue of a caller. `UNROUTABLE`: the queue does not exist."""
        parcel = Parcel(exchange="", routing_key=queue, body=body, mandatory=True)
        return await self._replies.publish(parcel)

    async def close(self) -> None:
        await super().close()
        await self._replies.close()

    def _delivery_of(self, message: DeliveredMessage) -> RpcDelivery:
        expiration = message.header.properties.expiration or ""
        return RpcDelivery(
            tag=message.delivery_tag or 0,
            queue=message.consumer_tag or "",
            body=message.body,
            expires_ms=int(expiration) if expiration.isascii() and expiration.isdecimal() else None,
            is_redelivered=bool(message.redelivered),
        )


class _Replies(RabbitPublishing):
    """Publishes answers with the properties that the client library of the other program sets."""

    def properties_of(self, parcel: Parcel, number: int) -> commands.Basic.Properties:
        return commands.Basic.Properties(
            content_type=parcel.content_type,
            content_encoding="utf-8",
            delivery_mode=PERSISTENT,
            # By it, an answer that the broker returns is recognised.
            message_id=str(number),
        )


async def _ensure_exchange(wire: RabbitWire, exchange: ForeignExchange) -> None:
    name = exchange.name
    if not await wire.stands(commands.Exchange.Declare(exchange=name, passive=True)):
        declared = commands.Exchange.Declare(
            exchange=name,
            exchange_type=exchange.kind,
            durable=exchange.is_durable,
            auto_delete=exchange.is_auto_deleted,
        )
        await wire.ask_aside(question=declared)


async def _ensure_queue(wire: RabbitWire, queue: ForeignQueue) -> None:
    if not await wire.stands(commands.Queue.Declare(queue=queue.name, passive=True)):
        declared = commands.Queue.Declare(
            queue=queue.name,
            durable=queue.is_durable,
            auto_delete=queue.is_auto_deleted,
            arguments={**queue.arguments},
        )
        await wire.ask_aside(question=declared)
    bound = commands.Queue.Bind(queue=queue.name, exchange=queue.exchange.name, routing_key=queue.key)
    await wire.ask_aside(question=bound)
