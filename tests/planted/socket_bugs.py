"""Planted bugs in the bus of one machine: the journal of the memory broker, and the socket that serves it."""

from contextlib import AbstractContextManager, suppress
from typing import Any

from msgspec import structs

from bus.memory.broker import MemoryBroker, MemoryPublishing
from bus.memory.journal import Journal, JournalFile, JournalWriteError
from bus.unix_socket import client, server
from bus.unix_socket.client import UnixBroker, UnixConnection
from bus.unix_socket.server import Session
from kit.errors import Refusal
from tests.planted.replacing import planted, planted_as, planted_by, replaced


# Every user of the machine may open the socket, and so act as any user of the broker.
@planted("the bus's socket is open to all users of the machine", server, "_listen")
def socket_open_to_all(real: Any, place: Any) -> Any:
    listening = real(place)
    place.chmod(0o666)
    return listening


# Every user of the machine may read the journal, and the secrets in its messages.
@planted("the journal is open to all users of the machine", JournalFile, "__init__")
def journal_open_to_all(real: Any, self: Any, path: Any) -> None:
    real(self, path)
    path.chmod(0o644)


# A second process takes the socket from the one that serves it.
@planted("the socket of a running broker is taken over", server, "_make_way")
def socket_taken_over(real: Any, place: Any) -> None:
    if place.is_socket():
        place.unlink()
    real(place)


# What could not be written to the journal is confirmed, and gone after a restart.
@planted("a full disk of the journal counts as written", JournalFile, "write")
def full_disk_counts_as_written(real: Any, self: Any, notes: Any) -> None:
    with suppress(JournalWriteError):
        real(self, notes)


# The disk refuses to keep what was written, and it is confirmed.
@planted("a failed sync of the journal counts as done", JournalFile, "sync")
def failed_sync_counts_as_done(real: Any, self: Any) -> None:
    with suppress(JournalWriteError):
        real(self)


# A message is confirmed when it is noted for the journal, before it is on the disk.
@planted("a message is confirmed before it is on the disk", Journal, "written")
async def confirmed_before_the_disk(_real: Any, _self: Any) -> None:
    return


@planted_as("a restart forgets how often a message was delivered")
def deliveries_not_counted() -> AbstractContextManager[None]:
    """A message whose reader dies with the broker each time is delivered for ever: the count begins anew."""
    return _found(lambda kept: structs.replace(kept, returns=0))


@planted_as("a restart forgets who sent a message")
def sender_forgotten() -> AbstractContextManager[None]:
    """After a restart nobody knows who sent the messages that waited."""
    return _found(lambda kept: structs.replace(kept, sender=""))


@planted_as("a restart forgets the headers of messages")
def headers_forgotten() -> AbstractContextManager[None]:
    """After a restart the messages that waited have lost their headers."""
    return _found(lambda kept: structs.replace(kept, parcel=structs.replace(kept.parcel, headers={})))


def _found(changed: Any) -> AbstractContextManager[None]:
    return replaced(JournalFile, "parcels", lambda real: lambda self: map(changed, real(self)))


# After a restart, new messages get the numbers of messages that were delivered, and count as delivered.
planted_by("after a restart a new message counts as delivered", JournalFile, "last_row")(
    lambda _real: lambda _self: 0
)


# The messages of a deleted queue are in the queue of its name that is declared later, after a restart.
planted_by("the messages of a deleted queue come back", Journal, "deleted")(
    lambda _real: lambda _self, _queue: None
)


# A client of the socket may do everything, whatever user it names.
@planted_by("a client of the socket has all rights", MemoryBroker, "connect")
def client_has_all_rights(real: Any) -> Any:
    return lambda self, user, listener=None: real(self, "" if listener else user, listener)


# A client's parcel may have other messages for readers in the server's process than its bytes say.
planted_by("message objects of the socket's clients are believed", (client, server), "in_bytes")(
    lambda _real: lambda parcel: parcel
)


# A frame of any announced size is waited for.
@planted("a client of the socket may announce a frame of any size", (client, server), "read_frame")
async def client_reads_no_limit(_real: Any, reader: Any) -> bytes:
    return bytes(await reader.readexactly(int.from_bytes(await reader.readexactly(4))))


# What a client held when it died goes to no other client.
@planted_by("what a dead client of the socket held is stuck", Session, "end")
def gone_client_keeps_its_messages(_real: Any) -> Any:
    return lambda self, _why: self._writer.close()


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
@planted_by("a client of the socket does not hear the end of an alarm", Session, "blocked_changed")
def end_of_alarm_not_told(real: Any) -> Any:
    return lambda self, why: real(self, why) if why else None


# A client that closes cuts off what it has just acknowledged.
@planted("the last acknowledgements of a client of the socket are lost", UnixConnection, "close")
async def last_acknowledgements_lost(_real: Any, self: Any) -> None:
    self.cut("closed by this end")


# A refused message leaves its channel open, and those behind it are stored out of order.
@planted("a message behind a refused one is stored", MemoryPublishing, "_store")
def closed_channel_publishes(real: Any, self: Any, parcel: Any) -> Any:
    try:
        return real(self, parcel)
    finally:
        self._over = ""
