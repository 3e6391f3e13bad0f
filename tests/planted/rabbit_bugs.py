"""Planted bugs in the AMQP client: what is confirmed, settled, declared and told, and which node is asked."""

from functools import cache
from typing import Any

from pamqp import commands

from bus.broker import Receipt
from bus.rabbit import broker, channel
from bus.rabbit.broker import RabbitConnection, RabbitNode
from bus.rabbit.channel import RabbitConsuming, RabbitPublishing
from bus.rabbit.rpc import RabbitRpc
from bus.rabbit.wire import RabbitWire
from kit.errors import AccessRefused, ConnectionLost, Refusal
from tests.planted.replacing import planted, planted_by


# The broker refuses several messages by one frame: all but the last count as stored.
@planted(
    "of messages that RabbitMQ refuses together all but the last count as stored",
    RabbitPublishing,
    "on_confirm",
)
def earlier_refused_confirmed(real: Any, self: Any, frame: Any) -> None:
    if isinstance(frame, commands.Basic.Nack) and frame.multiple:
        real(self, commands.Basic.Nack(delivery_tag=frame.delivery_tag))
        frame = commands.Basic.Ack(delivery_tag=frame.delivery_tag, multiple=True)
    real(self, frame)


# The broker ends the channel for one message, and all that are under way count as refused: they are given up.
@planted("with one message that RabbitMQ refuses all under way are given up", RabbitPublishing, "on_end")
def all_refused_with_one(real: Any, self: Any, why: Any) -> None:
    if isinstance(why, Refusal):
        for told in self._unconfirmed.values():
            channel.fail(told, why)
        self._unconfirmed.clear()
    real(self, why)


# An acknowledgement of several deliveries settles only the last.
@planted("deliveries that were settled together come again", RabbitConsuming, "acknowledge")
async def one_settled_of_several(real: Any, self: Any, tag: int, *, multiple: bool = False) -> None:
    await real(self, tag)


# The broker cancels a consumer, and its reader waits on.
planted_by("a consumer waits on when its queue is deleted", RabbitConsuming, "on_cancel")(
    lambda _real: lambda _self: None
)


# A consumer that is quiet because it holds all that it may consumes its queue anew, and gets as much again.
@planted("a consumer that holds all that it may is given more", RabbitConsuming, "__init__")
def full_consumer_given_more(real: Any, self: Any, queue: str, _prefetch: int, *others: Any) -> None:
    real(self, queue, 2**31, *others)


# Each connection of a process has a feed queue of its own: what came between two connections is missed.
@planted("a reader of events misses those of a reconnect", RabbitConnection, "__init__")
def feed_forgotten(real: Any, self: Any, wire: Any, user: str, _feeds: Any, *others: Any) -> None:
    real(self, wire, user, {}, *others)


# Nobody sees that the broker takes nothing: not the page of its state, and not a request that waits for its reply.
planted_by("an alarm of RabbitMQ is not seen", RabbitWire, "blocked")(
    lambda _real: property(lambda _self: "")
)


# An exchange of another program counts as missing, although it is there: nothing is bound to it.
@planted("an exchange of another program that is there is not bound", RabbitWire, "stands")
async def foreign_exchange_passed_over(real: Any, self: Any, passive: Any) -> bool:
    return not isinstance(passive, commands.Exchange.Declare) and bool(await real(self, passive))


# An answer to a caller of another program's RPC that has gone counts as received.
@planted("an answer to an RPC caller that has gone counts as received", RabbitRpc, "reply")
async def answer_to_nobody_sent(real: Any, self: Any, queue: str, body: bytes) -> Receipt:
    await real(self, queue, body)
    return Receipt.CONFIRMED


# A request of another program is not known to have had a limit on its time in the queue.
@planted("an RPC request has no expiry", RabbitRpc, "on_content")
def expiry_of_a_request_dropped(real: Any, self: Any, method: Any, header: Any, body: bytes) -> None:
    header.properties.expiration = None
    real(self, method, header, body)


# A request of another program that is delivered again looks like a new one.
@planted("an RPC request that comes again looks new", RabbitRpc, "on_content")
def repeated_request_not_marked(real: Any, self: Any, method: Any, header: Any, body: bytes) -> None:
    method.redelivered = False
    real(self, method, header, body)


# A node that ended its connection is the first to be tried again.
planted_by("a RabbitMQ node that hung up is tried first again", RabbitWire, "on_lost")(
    lambda _real: lambda _self, _do: None
)


# A wrong password is told as a broker that is away, and waited out.
@planted("a wrong RabbitMQ password looks like a broker that is away", RabbitNode, "connect")
async def wrong_password_as_absence(real: Any, self: Any) -> Any:
    try:
        return await real(self)
    except AccessRefused as refused:
        raise ConnectionLost(str(refused)) from None


# A password that was changed in its file counts only after a restart.
planted_by("a changed RabbitMQ password counts after a restart only", broker, "read_secret")(cache)


# The client shows no certificate, although the URL names one.
@planted_by("the certificate for RabbitMQ is not shown", broker, "client_tls")
def certificate_not_shown(real: Any) -> Any:
    return lambda *files, **more: real(*files[:1], **more)


# A body is sent in one frame, however large: the broker ends the connection.
@planted("a large message ends its connection", channel, "frames_of")
def large_body_in_one_frame(
    real: Any, parcel: Any, number: int, channel: int, user: str, _size_max: int
) -> bytes:
    return bytes(real(parcel, number, channel, user, 2**31))
