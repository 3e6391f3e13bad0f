"""Planted bugs in the AMQP client: what is confirmed, settled, declared and told, and which node is asked."""

from contextlib import AbstractContextManager
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
from tests.planted.replacing import PlantedBug, replaced


def earlier_refused_confirmed() -> AbstractContextManager[None]:
    """The broker refuses several messages by one frame: all but the last count as stored."""

    def planted(real: Any) -> Any:
        def on_confirm(self: Any, frame: Any) -> None:
            if isinstance(frame, commands.Basic.Nack) and frame.multiple:
                real(self, commands.Basic.Nack(delivery_tag=frame.delivery_tag))
                frame = commands.Basic.Ack(delivery_tag=frame.delivery_tag, multiple=True)
            real(self, frame)

        return on_confirm

    return replaced(RabbitPublishing, "on_confirm", planted)


def all_refused_with_one() -> AbstractContextManager[None]:
    """The broker ends the channel for one message, and all that are under way count as refused: they are given up."""

    def planted(real: Any) -> Any:
        def on_end(self: Any, why: Any) -> None:
            if isinstance(why, Refusal):
                for told in self._unconfirmed.values():
                    channel.fail(told, why)
                self._unconfirmed.clear()
            real(self, why)

        return on_end

    return replaced(RabbitPublishing, "on_end", planted)


def one_settled_of_several() -> AbstractContextManager[None]:
    """An acknowledgement of several deliveries settles only the last."""

    def planted(real: Any) -> Any:
        async def acknowledge(self: Any, tag: int, *, multiple: bool = False) -> None:  # noqa: ARG001 - as the real one
            await real(self, tag)

        return acknowledge

    return replaced(RabbitConsuming, "acknowledge", planted)


def end_of_a_queue_not_told() -> AbstractContextManager[None]:
    """The broker cancels a consumer, and its reader waits on."""
    return replaced(RabbitConsuming, "on_cancel", lambda _real: lambda _self: None)


def full_consumer_given_more() -> AbstractContextManager[None]:
    """A consumer that is quiet because it holds all that it may consumes its queue anew, and gets as much again."""

    def planted(real: Any) -> Any:
        def init(self: Any, queue: str, _prefetch: int, *others: Any) -> None:
            real(self, queue, 2**31, *others)

        return init

    return replaced(RabbitConsuming, "__init__", planted)


def feed_forgotten() -> AbstractContextManager[None]:
    """Each connection of a process has a feed queue of its own: what came between two connections is missed."""

    def planted(real: Any) -> Any:
        def init(self: Any, wire: Any, user: str, _feeds: Any, *others: Any) -> None:
            real(self, wire, user, {}, *others)

        return init

    return replaced(RabbitConnection, "__init__", planted)


def alarm_not_told() -> AbstractContextManager[None]:
    """Nobody sees that the broker takes nothing: not the page of its state, and not a request that waits for its reply."""
    return replaced(RabbitWire, "blocked", lambda _real: property(lambda _self: ""))


def foreign_exchange_passed_over() -> AbstractContextManager[None]:
    """An exchange of another program counts as missing, although it is there: nothing is bound to it."""

    def planted(real: Any) -> Any:
        async def stands(self: Any, passive: Any) -> bool:
            return not isinstance(passive, commands.Exchange.Declare) and bool(await real(self, passive))

        return stands

    return replaced(RabbitWire, "stands", planted)


def answer_to_nobody_sent() -> AbstractContextManager[None]:
    """An answer to a caller of another program's RPC that has gone counts as received."""

    def planted(real: Any) -> Any:
        async def reply(self: Any, queue: str, body: bytes) -> Receipt:
            await real(self, queue, body)
            return Receipt.CONFIRMED

        return reply

    return replaced(RabbitRpc, "reply", planted)


def expiry_of_a_request_dropped() -> AbstractContextManager[None]:
    """A request of another program is not known to have had a limit on its time in the queue."""

    def planted(real: Any) -> Any:
        def on_content(self: Any, method: Any, header: Any, body: bytes) -> None:
            header.properties.expiration = None
            real(self, method, header, body)

        return on_content

    return replaced(RabbitRpc, "on_content", planted)


def repeated_request_not_marked() -> AbstractContextManager[None]:
    """A request of another program that is delivered again looks like a new one."""

    def planted(real: Any) -> Any:
        def on_content(self: Any, method: Any, header: Any, body: bytes) -> None:
            method.redelivered = False
            real(self, method, header, body)

        return on_content

    return replaced(RabbitRpc, "on_content", planted)


def lost_node_first_again() -> AbstractContextManager[None]:
    """A node that ended its connection is the first to be tried again."""
    return replaced(RabbitWire, "on_lost", lambda _real: lambda _self, _do: None)


def wrong_password_as_absence() -> AbstractContextManager[None]:
    """A wrong password is told as a broker that is away, and waited out."""

    def planted(real: Any) -> Any:
        async def connect(self: Any) -> Any:
            try:
                return await real(self)
            except AccessRefused as refused:
                raise ConnectionLost(str(refused)) from None

        return connect

    return replaced(RabbitNode, "connect", planted)


def password_read_once() -> AbstractContextManager[None]:
    """A password that was changed in its file counts only after a restart."""
    return replaced(broker, "read_secret", cache)


def certificate_not_shown() -> AbstractContextManager[None]:
    """The client shows no certificate, although the URL names one."""

    def planted(real: Any) -> Any:
        return lambda *files, **more: real(*files[:1], **more)

    return replaced(broker, "client_tls", planted)


def large_body_in_one_frame() -> AbstractContextManager[None]:
    """A body is sent in one frame, however large: the broker ends the connection."""

    def planted(real: Any) -> Any:
        def frames_of(parcel: Any, number: int, channel: int, user: str, _size_max: int) -> bytes:
            return bytes(real(parcel, number, channel, user, 2**31))

        return frames_of

    return replaced(channel, "frames_of", planted)


BUGS: dict[str, PlantedBug] = {
    "of messages that RabbitMQ refuses together all but the last count as stored": earlier_refused_confirmed,
    "with one message that RabbitMQ refuses all under way are given up": all_refused_with_one,
    "deliveries that were settled together come again": one_settled_of_several,
    "a consumer waits on when its queue is deleted": end_of_a_queue_not_told,
    "a consumer that holds all that it may is given more": full_consumer_given_more,
    "a reader of events misses those of a reconnect": feed_forgotten,
    "an alarm of RabbitMQ is not seen": alarm_not_told,
    "an exchange of another program that is there is not bound": foreign_exchange_passed_over,
    "an answer to an RPC caller that has gone counts as received": answer_to_nobody_sent,
    "an RPC request has no expiry": expiry_of_a_request_dropped,
    "an RPC request that comes again looks new": repeated_request_not_marked,
    "a RabbitMQ node that hung up is tried first again": lost_node_first_again,
    "a wrong RabbitMQ password looks like a broker that is away": wrong_password_as_absence,
    "a changed RabbitMQ password counts after a restart only": password_read_once,
    "the certificate for RabbitMQ is not shown": certificate_not_shown,
    "a large message ends its connection": large_body_in_one_frame,
}
