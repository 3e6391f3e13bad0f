"""The memory broker: who may connect, and what may befall it."""

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from bus.broker import AccessRefused, ConnectionLost, HandsOver
from bus.memory.connection import MemoryConnection, Watcher, end_connections
from bus.memory.host import Hook, MemoryHost
from bus.memory.journal import Journal
from bus.permissions import ALL_RIGHTS, Rights

OUT_OF_MEMORY = "low on memory"


class MemoryBroker:
    """One broker, for all connections of one loop.

    As long as no users are known, everybody may do everything. Once some are, each has its rights and strangers are
    turned away; only who gives no name at all, which is the process that owns the broker, may still do everything.

    With `alone`, nobody outside this process has to do with it, and what is said is handed over without being put into
    bytes.
    """

    def __init__(
        self, users: Iterable[Rights] = (), journal: Journal | None = None, *, alone: bool = False
    ) -> None:
        if alone and journal is not None:
            raise ValueError("alone: a broker that keeps a journal puts what is said into bytes")
        self.hands_over = HandsOver.MESSAGES if alone else HandsOver.MESSAGES_TOO
        self._host = MemoryHost(journal)
        if journal is not None:
            journal.on_trouble = self._tell_blocked
        self._stopped = False
        self._users = {rights.user: rights for rights in users}
        # In the order in which they came, so that whatever befalls all of them does so in that order.
        self._connections: dict[MemoryConnection, None] = {}

    def as_user(self, user: str = "") -> "MemoryAccess":
        return MemoryAccess(self, user)

    def connect(self, user: str, watcher: Watcher | None = None) -> MemoryConnection:
        if self._stopped:
            raise ConnectionLost("the broker was stopped")
        rights = self._users.get(user, ALL_RIGHTS)
        if self._users and user and user not in self._users:
            raise AccessRefused(f"user {user!r} is not known here")
        connection = MemoryConnection(self._host, user, rights, self._forget, watcher)
        self._connections[connection] = None
        return connection

    def add_user(self, rights: Rights) -> None:
        """From the next connection on, this user has these rights."""
        self._users[rights.user] = rights

    def stop(self) -> None:
        """For good. What a journal keeps is in its file then, and the file is free."""
        self._stopped = True
        self.cut_connections("the broker was stopped")
        if self._host.journal is not None:
            self._host.journal.close()

    # What may befall it

    def cut_connections(self, why: str = "the connection was cut") -> None:
        """As a failing network would: nobody knows what of the last moments has arrived."""
        end_connections([*self._connections], why)

    def restart(self) -> None:
        """Durable queues keep their persistent parcels; everything else is gone."""
        self.cut_connections("the broker was restarted")
        self._host.restart()

    def set_alarm(self, why: str = OUT_OF_MEMORY) -> None:
        """Take nothing from publishers until the alarm ends."""
        self._tell_blocked(why)

    def end_alarm(self) -> None:
        self._tell_blocked("")

    def delete_exchange(self, name: str) -> None:
        self._host.delete_exchange(name)

    def delete_queue(self, name: str) -> None:
        self._host.delete_queue(name)

    def set_consumer_timeout_s(self, seconds: float) -> None:
        """How long a delivery may be held, for consumers that are opened from now on."""
        self._host.consumer_timeout_s = seconds

    def on_stored(self, hook: Hook) -> None:
        """Call this each time a parcel was stored and its publisher does not know yet; cutting there loses the confirm."""
        self._host.on_stored = hook

    def _tell_blocked(self, why: str) -> None:
        self._host.blocked = why
        for connection in [*self._connections]:
            connection.alarm_changed()

    def _forget(self, connection: MemoryConnection) -> None:
        self._connections.pop(connection, None)


@contextmanager
def kept_broker(path: str | os.PathLike[str], users: Iterable[Rights] = ()) -> Iterator[MemoryBroker]:
    """A memory broker that finds in this file what it knew when it, or its process, last ended."""
    with ExitStack() as undo:
        journal = Journal(path)
        undo.callback(journal.close)
        broker = MemoryBroker(users, journal)
        undo.pop_all()
    try:
        yield broker
    finally:
        broker.stop()


class MemoryAccess:
    """The way in to a memory broker as one user; a `Broker`."""

    def __init__(self, broker: MemoryBroker, user: str) -> None:
        self._broker = broker
        self._user = user

    @property
    def user(self) -> str:
        return self._user

    @property
    def hands_over(self) -> HandsOver:
        return self._broker.hands_over

    async def connect(self) -> MemoryConnection:
        return self._broker.connect(self._user)
