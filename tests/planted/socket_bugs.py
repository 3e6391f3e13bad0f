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
from tests.planted.replacing import PlantedBug, replaced, replaced_in


def socket_open_to_all() -> AbstractContextManager[None]:
    """Every user of the machine may open the socket, and so act as any user of the broker."""

    def planted(real: Any) -> Any:
        def listen(place: Any) -> Any:
            listening = real(place)
            place.chmod(0o666)
            return listening

        return listen

    return replaced(server, "_listen", planted)


def journal_open_to_all() -> AbstractContextManager[None]:
    """Every user of the machine may read the journal, and the secrets in its messages."""

    def planted(real: Any) -> Any:
        def init(self: Any, path: Any) -> None:
            real(self, path)
            path.chmod(0o644)

        return init

    return replaced(JournalFile, "__init__", planted)


def socket_taken_over() -> AbstractContextManager[None]:
    """A second process takes the socket from the one that serves it."""

    def planted(real: Any) -> Any:
        def make_way(place: Any) -> None:
            if place.is_socket():
                place.unlink()
            real(place)

        return make_way

    return replaced(server, "_make_way", planted)


def full_disk_counts_as_written() -> AbstractContextManager[None]:
    """What could not be written to the journal is confirmed, and gone after a restart."""

    def planted(real: Any) -> Any:
        def write(self: Any, notes: Any) -> None:
            with suppress(JournalWriteError):
                real(self, notes)

        return write

    return replaced(JournalFile, "write", planted)


def failed_sync_counts_as_done() -> AbstractContextManager[None]:
    """The disk refuses to keep what was written, and it is confirmed."""

    def planted(real: Any) -> Any:
        def sync(self: Any) -> None:
            with suppress(JournalWriteError):
                real(self)

        return sync

    return replaced(JournalFile, "sync", planted)


def confirmed_before_the_disk() -> AbstractContextManager[None]:
    """A message is confirmed when it is noted for the journal, before it is on the disk."""

    def planted(_real: Any) -> Any:
        async def written(_self: Any) -> None:
            return

        return written

    return replaced(Journal, "written", planted)


def deliveries_not_counted() -> AbstractContextManager[None]:
    """A message whose reader dies with the broker each time is delivered for ever: the count begins anew."""
    return _found(lambda kept: structs.replace(kept, returns=0))


def sender_forgotten() -> AbstractContextManager[None]:
    """After a restart nobody knows who sent the messages that waited."""
    return _found(lambda kept: structs.replace(kept, sender=""))


def headers_forgotten() -> AbstractContextManager[None]:
    """After a restart the messages that waited have lost their headers."""
    return _found(lambda kept: structs.replace(kept, parcel=structs.replace(kept.parcel, headers={})))


def _found(changed: Any) -> AbstractContextManager[None]:
    return replaced(JournalFile, "parcels", lambda real: lambda self: map(changed, real(self)))


def numbers_begin_anew() -> AbstractContextManager[None]:
    """After a restart, new messages get the numbers of messages that were delivered, and count as delivered."""
    return replaced(JournalFile, "last_row", lambda _real: lambda _self: 0)


def deleted_queue_comes_back_full() -> AbstractContextManager[None]:
    """The messages of a deleted queue are in the queue of its name that is declared later, after a restart."""
    return replaced(Journal, "deleted", lambda _real: lambda _self, _queue: None)


def client_has_all_rights() -> AbstractContextManager[None]:
    """A client of the socket may do everything, whatever user it names."""

    def planted(real: Any) -> Any:
        return lambda self, user, listener=None: real(self, "" if listener else user, listener)

    return replaced(MemoryBroker, "connect", planted)


def message_objects_of_a_client_believed() -> AbstractContextManager[None]:
    """A client's parcel may have other messages for readers in the server's process than its bytes say."""
    return replaced_in((client, server), "in_bytes", lambda _real: lambda parcel: parcel)


def client_reads_no_limit() -> AbstractContextManager[None]:
    """A frame of any announced size is waited for."""

    def planted(_real: Any) -> Any:
        async def read_frame(reader: Any) -> bytes:
            return bytes(await reader.readexactly(int.from_bytes(await reader.readexactly(4))))

        return read_frame

    return replaced_in((client, server), "read_frame", planted)


def gone_client_keeps_its_messages() -> AbstractContextManager[None]:
    """What a client held when it died goes to no other client."""

    def planted(_real: Any) -> Any:
        return lambda self, _why: self._writer.close()

    return replaced(Session, "end", planted)


def hanging_broker_waited_for() -> AbstractContextManager[None]:
    """A client waits without end for a broker that has stopped answering."""

    def planted(_real: Any) -> Any:
        async def ask(self: Any, operation: str, channel: int = 0, **arguments: object) -> Any:
            return await self.begin(operation, channel, **arguments)

        return ask

    return replaced(UnixConnection, "ask", planted)


def kind_of_refusal_dropped() -> AbstractContextManager[None]:
    """A client hears that it was refused, and not whether a right or a queue is missing."""

    def planted(real: Any) -> Any:
        async def ask(self: Any, operation: str, channel: int = 0, **arguments: object) -> Any:
            try:
                return await real(self, operation, channel, **arguments)
            except Refusal as refusal:
                raise Refusal(str(refusal)) from None

        return ask

    return replaced(UnixConnection, "ask", planted)


def standing_alarm_not_told() -> AbstractContextManager[None]:
    """A client that connects while the disk is full does not hear of it."""

    def planted(real: Any) -> Any:
        async def connect(self: Any) -> Any:
            connection = await real(self)
            connection.blocked = ""
            return connection

        return connect

    return replaced(UnixBroker, "connect", planted)


def end_of_alarm_not_told() -> AbstractContextManager[None]:
    """A client hears that the broker takes nothing, and never that it takes everything again."""

    def planted(real: Any) -> Any:
        return lambda self, why: real(self, why) if why else None

    return replaced(Session, "blocked_changed", planted)


def last_acknowledgements_lost() -> AbstractContextManager[None]:
    """A client that closes cuts off what it has just acknowledged."""

    def planted(_real: Any) -> Any:
        async def close(self: Any) -> None:
            self.cut("closed by this end")

        return close

    return replaced(UnixConnection, "close", planted)


def closed_channel_publishes() -> AbstractContextManager[None]:
    """A refused message leaves its channel open, and those behind it are stored out of order."""

    def planted(real: Any) -> Any:
        def store(self: Any, parcel: Any) -> Any:
            try:
                return real(self, parcel)
            finally:
                self._over = ""

        return store

    return replaced(MemoryPublishing, "_store", planted)


BUGS: dict[str, PlantedBug] = {
    "the bus's socket is open to all users of the machine": socket_open_to_all,
    "the journal is open to all users of the machine": journal_open_to_all,
    "the socket of a running broker is taken over": socket_taken_over,
    "a full disk of the journal counts as written": full_disk_counts_as_written,
    "a failed sync of the journal counts as done": failed_sync_counts_as_done,
    "a message is confirmed before it is on the disk": confirmed_before_the_disk,
    "a restart forgets how often a message was delivered": deliveries_not_counted,
    "a restart forgets who sent a message": sender_forgotten,
    "a restart forgets the headers of messages": headers_forgotten,
    "after a restart a new message counts as delivered": numbers_begin_anew,
    "the messages of a deleted queue come back": deleted_queue_comes_back_full,
    "a client of the socket has all rights": client_has_all_rights,
    "message objects of the socket's clients are believed": message_objects_of_a_client_believed,
    "a client of the socket may announce a frame of any size": client_reads_no_limit,
    "what a dead client of the socket held is stuck": gone_client_keeps_its_messages,
    "a client waits without end for a broker that hangs": hanging_broker_waited_for,
    "a client of the socket does not hear what is missing": kind_of_refusal_dropped,
    "a client that connects during an alarm does not hear of it": standing_alarm_not_told,
    "a client of the socket does not hear the end of an alarm": end_of_alarm_not_told,
    "the last acknowledgements of a client of the socket are lost": last_acknowledgements_lost,
    "a message behind a refused one is stored": closed_channel_publishes,
}
