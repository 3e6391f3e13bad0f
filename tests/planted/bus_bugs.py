"""Planted bugs in the bus: workers, intake, publisher, questions; the AMQP client; the journal and socket of one machine."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from typing import Any

from aiormq.exceptions import DeliveryError
from msgspec import structs
from pamqp import commands

from bus import message
from bus.broker import Receipt
from bus.memory.broker import MemoryBroker, MemoryPublishing
from bus.memory.journal import Journal, JournalFile, JournalWriteError
from bus.rabbit import broker
from bus.rabbit.broker import RabbitConnection, RabbitNode
from bus.rabbit.channels import Consumers, RabbitConsuming, RabbitPublishing
from bus.rabbit.connection import OpenChannel, RabbitWire
from bus.rabbit.rpc import RabbitRpc
from bus.topology import broker_user_of
from bus.unix_socket import client, server
from bus.unix_socket.client import UnixBroker, UnixConnection
from bus.unix_socket.frames import BlockedChanged
from bus.unix_socket.server import Session
from bus.workers import authority, connections, consuming, dead_letters, intake
from bus.workers.connections import Asker
from bus.workers.consuming import InboxConsuming
from bus.workers.dead_letters import NOT_PARKED
from bus.workers.intake import Intake
from bus.workers.sending import ParcelSender
from bus.workers.worker import Worker
from kit.errors import AccessRefused, ConnectionLost, Refusal
from tests.planted.replacing import ANY_CLOUD, planted, planted_as, planted_by, replaced, rewritten


# The worker acknowledges a batch when it begins: if it dies in between, the batch is lost.
@planted("a batch acknowledged before its commit", Worker, "_handle", world=ANY_CLOUD, harm="lost")
async def acknowledge_before_commit(real: Any, self: Any, handler: Any, items: Any) -> None:
    await self.intake.done([each.parcel for each in items])
    await real(self, handler, items)


# The worker acknowledges a batch when its messages are handed to the publisher, before the broker has confirmed them.
@planted("a batch acknowledged without its confirms", Worker, "_settle", world=ANY_CLOUD, harm="lost")
async def acknowledged_without_confirms(
    real: Any, self: Any, handler: Any, items: Any, leaving: Any, confirmed: Any
) -> None:
    confirmed.add_done_callback(lambda done: done.cancelled() or done.exception())
    at_once = asyncio.get_running_loop().create_future()
    at_once.set_result(None)
    await real(self, handler, items, leaving, at_once)


# A handler's pending messages count as confirmed when its rows commit, so the next commit clears them unsent.
@planted("messages confirmed before they are sent", Worker, "_decide_and_save", world=ANY_CLOUD, harm="lost")
async def messages_confirmed_before_they_are_sent(real: Any, self: Any, handler: Any, items: Any) -> Any:
    said = await real(self, handler, items)
    self._confirmed.extend(kept for each in said if (kept := getattr(each, "kept", None)) is not None)
    return said


# A full queue refuses the parcel, but the publisher takes it for stored.
@planted("a refused parcel counts as confirmed", ParcelSender, "_publish_once", world=ANY_CLOUD, harm="lost")
async def refused_counts_as_confirmed(real: Any, self: Any, parcel: Any) -> Any:
    receipt = await real(self, parcel)
    return Receipt.CONFIRMED if receipt in (Receipt.REFUSED, Receipt.LOST) else receipt


# No queue takes the order, but the publisher reports it as delivered.
@planted(
    "an unroutable order counts as delivered",
    ParcelSender,
    "publish_until_told",
    world=ANY_CLOUD,
    harm="lost",
)
async def unroutable_counts_as_delivered(real: Any, *arguments: Any) -> Any:
    receipt = await real(*arguments)
    return Receipt.CONFIRMED if receipt is Receipt.UNROUTABLE else receipt


# A message that goes back to its queue keeps its number of attempts: one that always fails is retried for ever.
planted_by("attempts are not counted", dead_letters, "retry_parcel", world=ANY_CLOUD)(
    lambda real: (
        lambda line, queue, origin, parked=NOT_PARKED: real(
            line, queue, origin, structs.replace(parked, attempts=0)
        )
    )
)


# A client writes the headers of a worker that parks, and so chooses how often its message counts as tried.
planted_by("a client says how often its message was tried", dead_letters, "is_retry_exchange")(
    lambda _real: lambda _name: True
)


# A redelivered parcel is split, and only its first half goes back to the queue.
@planted("half of a redelivered parcel is lost", Intake, "_take_apart", world=ANY_CLOUD, harm="lost")
async def half_a_parcel_lost(real: Any, self: Any, held: Any, lines: Any) -> None:
    await real(self, held, lines[: (len(lines) + 1) // 2])


# What a process has failed at itself is settled there, and no other process tries it.
@planted("what a process passes on to another is lost", Intake, "_pass_on", harm="lost")
async def passed_on_to_nobody(_real: Any, self: Any, held: Any) -> None:
    await self.done([held])


# A dead letter does not say what was wrong.
@planted("a dead letter without its reason", Intake, "_bury_line", world=ANY_CLOUD)
async def dead_letter_without_reason(real: Any, self: Any, held: Any, line: Any, _reason: str) -> None:
    await real(self, held, line, "it could not be handled")


# A message is dead-lettered, and what was claimed for it stays claimed.
@planted("nothing released before a dead letter", Worker, "_give_back", world=ANY_CLOUD, harm="lost")
async def nothing_released_before_dead_letter(_real: Any, _self: Any, _buried: Any) -> None:
    return


# An answer to a question that has timed out is taken for the answer to the oldest open one.
@planted("a late answer taken for another one", Asker, "_take", world=ANY_CLOUD)
def late_answer_taken_for_another(real: Any, self: Any, envelope: Any, origin: Any) -> None:
    if envelope.cause not in self._asked and self._asked:
        envelope = structs.replace(envelope, cause=next(iter(self._asked)))
    real(self, envelope, origin)


# The channel of a consumer stays open when the broker has cancelled the consumer, or when its part ends.
planted_as("a consumer that has ended keeps its channel")(
    lambda: rewritten(consuming, "consumer", "await consuming.close()", "pass")
)


# The exchange of another program exists again, and nothing is said of what was missed meanwhile.
planted_as("an exchange of another program that exists again is no gap", harm="lost")(
    lambda: rewritten(InboxConsuming, "receive", "return ()", "continue")
)


# A header that names a sender is believed on every exchange.
@planted("the sender taken from a header", intake, "origin_of", world=ANY_CLOUD, harm="unauthorised")
def sender_taken_from_header(real: Any, delivery: Any, facts: Any) -> Any:
    origin = real(delivery, facts)
    named = delivery.parcel.headers.get(message.SENDER)
    return structs.replace(origin, sender=str(named)) if named else origin


# A message counts under any routing key.
planted_by("any routing key accepted", intake, "judge", world=ANY_CLOUD, harm="unauthorised")(
    lambda _real: lambda _message, _origin, _post: None
)


@planted_as("any sender accepted", world=ANY_CLOUD, harm="unauthorised")
@contextmanager
def any_sender_accepted() -> Iterator[None]:
    """A parcel counts from any sender, and so does an answer from any sender."""

    def unless_strange(counts: object) -> Callable[[Any], Any]:
        return lambda real: (
            lambda what, origin, facts: (
                counts if broker_user_of(origin.sender) is None else real(what, origin, facts)
            )
        )

    with (
        replaced(intake, "judge_parcel", lambda _real: lambda _origin, _post: None),
        replaced(intake, "judge", unless_strange(None)),
        replaced(intake, "all_count", unless_strange(counts=True)),
    ):
        yield


# A parcel counts as a whole if one of its messages does.
planted_by(
    "one good message lets in the foreign ones beside it",
    (connections, intake),
    "all_count",
    harm="unauthorised",
)(
    lambda _real: (
        lambda messages, origin, facts: any(authority.judge(each, origin, facts) is None for each in messages)
    )
)


# The broker refuses several messages by one frame: all but the last count as stored.
@planted_as("of messages that RabbitMQ refuses together all but the last count as stored", harm="lost")
@contextmanager
def earlier_refused_confirmed() -> Iterator[None]:
    last: list[int] = []

    def noting_the_last(real: Any) -> Any:
        async def call(self: Any, asked: Any) -> Any:
            try:
                return await real(self, asked)
            except DeliveryError as told:
                last.append(getattr(told.frame, "delivery_tag", 0) or 0)
                raise

        return call

    def confirming_others(real: Any) -> Any:
        async def publish(self: Any, parcel: Any) -> Receipt:
            number = self._published + 1
            told: Receipt = await real(self, parcel)
            return Receipt.CONFIRMED if told is Receipt.REFUSED and number != last[-1] else told

        return publish

    with (
        replaced(OpenChannel, "call", noting_the_last),
        replaced(RabbitPublishing, "publish", confirming_others),
    ):
        yield


# The broker ends the channel for one message, and all that are under way count as refused: they are given up.
@planted("with one message that RabbitMQ refuses all under way are given up", OpenChannel, "end", harm="lost")
def all_refused_with_one(real: Any, self: Any, why: Any) -> None:
    real(self, why)
    self.at_the_end = 1


# An acknowledgement of several deliveries settles only the last.
@planted("deliveries that were settled together come again", RabbitConsuming, "acknowledge", harm="doubled")
async def one_settled_of_several(real: Any, self: Any, tag: int, *, multiple: bool = False) -> None:
    await real(self, tag)


# The broker cancels a consumer, and its reader waits on.
planted_by("a consumer waits on when its queue is deleted", Consumers, "on_cancel", harm="lost")(
    lambda _real: lambda _self, _told=None: None
)


# A consumer that is quiet because it holds all that it may consumes its queue anew, and gets as much again.
@planted("a consumer that holds all that it may is given more", RabbitConsuming, "__init__")
def full_consumer_given_more(
    real: Any, self: Any, wire: Any, channel: Any, queue: str, **others: Any
) -> None:
    real(self, wire, channel, queue, **others | {"prefetch": 2**31})


# Each connection of a process has a feed queue of its own: what came between two connections is missed.
@planted("a reader of events misses those of a reconnect", RabbitConnection, "__init__", harm="lost")
def feed_forgotten(
    real: Any, self: Any, client: Any, name: str, user: str, _feeds: Any, *others: Any, **calls: Any
) -> None:
    real(self, client, name, user, {}, *others, **calls)


# Nobody sees that the broker takes nothing: not the page of its state, and not a request that waits for its reply.
planted_by("an alarm of RabbitMQ is not seen", RabbitWire, "blocked")(
    lambda _real: property(lambda _self: "")
)


# An exchange of another program counts as missing, although it is there: nothing is bound to it.
@planted("an exchange of another program that is there is not bound", RabbitWire, "stands", harm="lost")
async def foreign_exchange_passed_over(real: Any, self: Any, passive: Any) -> bool:
    return not isinstance(passive, commands.Exchange.Declare) and bool(await real(self, passive))


# An answer to a caller of another program's RPC that has gone counts as received.
@planted("an answer to an RPC caller that has gone counts as received", RabbitRpc, "reply", harm="lost")
async def answer_to_nobody_sent(real: Any, self: Any, queue: str, body: bytes) -> Receipt:
    await real(self, queue, body)
    return Receipt.CONFIRMED


# A request of another program is not known to have had a limit on its time in the queue.
@planted("an RPC request has no expiry", Consumers, "on_message")
async def expiry_of_a_request_dropped(real: Any, self: Any, message: Any) -> None:
    message.header.properties.expiration = None
    await real(self, message)


# A request of another program that is delivered again looks like a new one.
@planted("an RPC request that comes again looks new", Consumers, "on_message", harm="doubled")
async def repeated_request_not_marked(real: Any, self: Any, message: Any) -> None:
    message.delivery.redelivered &= not isinstance(self, RabbitRpc)
    await real(self, message)


# A node that ended its connection is the first to be tried again.
planted_by("a RabbitMQ node that hung up is tried first again", RabbitWire, "on_lost")(
    lambda _real: lambda _self, _do: None
)


# A wrong password is told as a broker that is away, and waited out.
@planted("a wrong RabbitMQ password looks like a broker that is away", RabbitNode, "connect")
async def wrong_password_as_absence(real: Any, self: Any, *others: Any) -> Any:
    try:
        return await real(self, *others)
    except AccessRefused as refused:
        raise ConnectionLost(str(refused)) from None


# A password that was changed in its file counts only after a restart.
@planted_by("a changed RabbitMQ password counts after a restart only", broker, "read_secret")
def password_read_once(real: Any) -> Any:
    return cache(real)


# The client shows no certificate, although the URL names one.
planted_by("the certificate for RabbitMQ is not shown", broker, "client_tls")(
    lambda real: lambda *files, **more: real(*files[:1], **more)
)


# A body is sent in one frame, however large: the broker ends the connection.
@planted("a large message ends its connection", RabbitWire, "channel")
async def large_body_in_one_frame(real: Any, self: Any, **how: Any) -> Any:
    channel = await real(self, **how)
    channel.max_content_size = 2**31
    return channel


# Every user of the machine may open the socket, and so act as any user of the broker.
@planted("the bus's socket is open to all users of the machine", server, "_listen", harm="unauthorised")
def socket_open_to_all(real: Any, place: Any) -> Any:
    listening = real(place)
    place.chmod(0o666)
    return listening


# Every user of the machine may read the journal, and the secrets in its messages.
@planted("the journal is open to all users of the machine", JournalFile, "__init__", harm="unauthorised")
def journal_open_to_all(real: Any, self: Any, path: Any) -> None:
    real(self, path)
    path.chmod(0o644)


# A second process takes the socket from the one that serves it.
@planted("the socket of a running broker is taken over", server, "_make_way", harm="doubled")
def socket_taken_over(real: Any, place: Any) -> None:
    if place.is_socket():
        place.unlink()
    real(place)


# What could not be written to the journal is confirmed, and gone after a restart.
@planted("a full disk of the journal counts as written", JournalFile, "write", harm="lost")
def full_disk_counts_as_written(real: Any, self: Any, notes: Any) -> None:
    with suppress(JournalWriteError):
        real(self, notes)


# The disk refuses to keep what was written, and it is confirmed.
@planted("a failed sync of the journal counts as done", JournalFile, "sync", harm="lost")
def failed_sync_counts_as_done(real: Any, self: Any) -> None:
    with suppress(JournalWriteError):
        real(self)


# A message is confirmed when it is noted for the journal, before it is on the disk.
@planted("a message is confirmed before it is on the disk", Journal, "written", harm="lost")
async def confirmed_before_the_disk(_real: Any, _self: Any) -> None:
    return


# A message whose reader dies with the broker each time is delivered for ever: the count begins anew.
planted_as("a restart forgets how often a message was delivered")(
    lambda: _found(lambda kept: structs.replace(kept, returns=0))
)


# After a restart nobody knows who sent the messages that waited.
planted_as("a restart forgets who sent a message", harm="unauthorised")(
    lambda: _found(lambda kept: structs.replace(kept, sender=""))
)


# After a restart the messages that waited have lost their headers.
planted_as("a restart forgets the headers of messages", harm="lost")(
    lambda: _found(lambda kept: structs.replace(kept, parcel=structs.replace(kept.parcel, headers={})))
)


def _found(changed: Any) -> AbstractContextManager[None]:
    return replaced(JournalFile, "parcels", lambda real: lambda self: map(changed, real(self)))


# After a restart, new messages get the numbers of messages that were delivered, and count as delivered.
planted_by("after a restart a new message counts as delivered", JournalFile, "last_row", harm="lost")(
    lambda _real: lambda _self: 0
)


# The messages of a deleted queue are in the queue of its name that is declared later, after a restart.
planted_by("the messages of a deleted queue come back", Journal, "deleted", harm="doubled")(
    lambda _real: lambda _self, _queue: None
)


# A client of the socket may do everything, whatever user it names.
planted_by("a client of the socket has all rights", MemoryBroker, "connect", harm="unauthorised")(
    lambda real: lambda self, user, listener=None: real(self, "" if listener else user, listener)
)


# A frame of any announced size is waited for.
@planted("a client of the socket may announce a frame of any size", (client, server), "read_frame")
async def client_reads_no_limit(_real: Any, reader: Any) -> bytes:
    return bytes(await reader.readexactly(int.from_bytes(await reader.readexactly(4))))


# The parcels that a client held when it died go to no other client.
planted_by("what a dead client of the socket held is stuck", Session, "end", harm="lost")(
    lambda _real: lambda self, _why: self._writer.close()
)


# A client waits without end for a broker that has stopped answering.
@planted("a client waits without end for a broker that hangs", UnixConnection, "ask")
async def hanging_broker_waited_for(
    _real: Any, self: Any, operation: str, channel: int = 0, **arguments: object
) -> Any:
    return await self.begin(operation, channel, **arguments)


# A client hears that it was refused, and not whether a right or a queue is missing.
@planted("a client of the socket does not hear what is missing", UnixConnection, "ask")
async def kind_of_refusal_dropped(
    real: Any, self: Any, operation: str, channel: int = 0, **arguments: object
) -> Any:
    try:
        return await real(self, operation, channel, **arguments)
    except Refusal as refusal:
        raise Refusal(str(refusal)) from None


# A client that connects while the disk is full does not hear of it.
@planted("a client that connects during an alarm does not hear of it", UnixBroker, "connect")
async def standing_alarm_not_told(real: Any, self: Any) -> Any:
    connection = await real(self)
    connection.blocked = ""
    return connection


# A client hears that the broker takes nothing, and never that it takes everything again.
planted_by("a client of the socket does not hear the end of an alarm", Session, "_say")(
    lambda real: lambda self, reply: None if reply == BlockedChanged("") else real(self, reply)
)


# A client that closes cuts off what it has just acknowledged.
@planted("the last acknowledgements of a client of the socket are lost", UnixConnection, "close", harm="lost")
async def last_acknowledgements_lost(_real: Any, self: Any) -> None:
    self.cut("closed by this end")


# A refused message leaves its channel open, and those behind it are stored out of order.
@planted("a message behind a refused one is stored", MemoryPublishing, "_store")
def closed_channel_publishes(real: Any, self: Any, parcel: Any) -> Any:
    try:
        return real(self, parcel)
    finally:
        self._over = ""


# Our headers count beside a dead letter of anybody: an application names the operator as its sender, and who replays it obeys.
planted_by("anybody names the sender of a dead letter", authority, "_may_park", harm="unauthorised")(
    lambda _real: lambda _user, _queue, _facts: True
)


# A worker of a cell names the first sender of what lies in any queue.
planted_by(
    "a cell's worker names the senders of other queues' letters", authority, "_may_park", harm="unauthorised"
)(
    lambda real: (
        lambda user, queue, facts: (
            real(user, queue, facts) or bool((speaker := broker_user_of(user)) and speaker.cell)
        )
    )
)


# What an application has written into `x-death` counts as the key under which it sent: it acts for any project.
planted_as("an application says under which key its dead letter was sent", harm="unauthorised")(
    lambda: rewritten(authority, "origin_of", "speaker.application", "not speaker")
)


# A dead letter is replayed though its sender may not send what is in it.
planted_by(
    "a replay is not judged before it is sent", dead_letters, "_why_not_replayed", harm="unauthorised"
)(lambda _real: lambda _letter, _facts: "")


# A client lets its order expire, and is not told that it must not.
planted_as("an order that expires is taken", harm="lost")(
    lambda: rewritten(authority, "_judge_like", "if origin.expiration", "if not origin")
)
