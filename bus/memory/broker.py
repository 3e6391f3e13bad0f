"""The memory broker. It checks which users may connect, and breaks connections as tests and the simulation ask for."""

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from bus.broker import AccessRefused, ConnectionLost
from bus.memory.connection import ConnectionListener, MemoryConnection, end_connections
from bus.memory.journal import Journal
from bus.memory.virtual_host import MemoryVirtualHost
from bus.permissions import ALL_RIGHTS, Rights


class MemoryBroker:
    """One broker for all connections of one event loop.

    Without users, every connection may do everything. With users, each has its rights and unknown users are rejected. A
    connection without a user name belongs to the process that owns the broker, and may still do everything. A change of
    `users` counts from a user's next connection on.
    """

    def __init__(self, users: Iterable[Rights] = (), journal: Journal | None = None) -> None:
        self.host = MemoryVirtualHost(journal)
        if journal is not None:
            journal.on_trouble = self.block
        self._stopped = False
        self.users = {rights.user: rights for rights in users}
        # In the order of connecting, so that a failure of all of them hits them in that order.
        self._connections: dict[MemoryConnection, None] = {}

    def as_user(self, user: str = "") -> "MemoryAccess":
        return MemoryAccess(self, user)

    def connect(self, user: str, listener: ConnectionListener | None = None) -> MemoryConnection:
        if self._stopped:
            raise ConnectionLost("the broker was stopped")
        rights = self.users.get(user, ALL_RIGHTS)
        if self.users and user and user not in self.users:
            raise AccessRefused(f"user {user!r} is unknown to this broker")
        connection = MemoryConnection(self.host, user, rights, self._forget, listener)
        self._connections[connection] = None
        return connection

    def stop(self) -> None:
        """Break all connections, accept no new ones, and close the journal if there is one."""
        self._stopped = True
        self.cut_connections("the broker was stopped")
        if self.host.journal is not None:
            self.host.journal.close()

    def cut_connections(self, why: str = "the connection was cut") -> None:
        """Break all connections as a network failure does: what was sent last may or may not have arrived."""
        end_connections([*self._connections], why)

    def restart(self) -> None:
        """Restart: durable queues keep their persistent parcels, everything else is lost."""
        self.cut_connections("the broker was restarted")
        self.host.restart()

    def block(self, why: str) -> None:
        """Take nothing from publishers from now on, for the reason `why`. If `why` is empty, take everything again."""
        self.host.blocked = why
        for connection in [*self._connections]:
            connection.alarm_changed()

    def _forget(self, connection: MemoryConnection) -> None:
        self._connections.pop(connection, None)


@contextmanager
def journaled_broker(path: str | os.PathLike[str], users: Iterable[Rights] = ()) -> Iterator[MemoryBroker]:
    """A memory broker with a journal file: it begins with the queues and parcels that the file has.

    The file has what the broker had when it was last stopped, or when its process was killed.
    """
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
    """Access to a memory broker as one user; a `Broker`."""

    def __init__(self, broker: MemoryBroker, user: str) -> None:
        self._broker = broker
        self.user = user

    async def connect(self) -> MemoryConnection:
        return self._broker.connect(self.user)
