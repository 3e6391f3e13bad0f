"""The conductor's interface to its database, which store_sql.py implements.

Cells may share a database: each store sees the rows of one cell only.

The messages of an instance stay on its row. The row does not record which are confirmed: most rows are not written
again for long, and writing them for this alone would be a third of all writes. Instead each transaction that sends
messages writes one note with their keys, which is deleted when they are confirmed. A message without a note counts as
confirmed.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Protocol

from bus.message import Message
from bus.workers.handling import OutboxKey
from cell_conductor.core.rows import CellHost, HeardHost, Instance
from engine.flavors import InstanceId
from engine.inventories import ProviderId

# The key of a message: the bytes of its instance's id, and its sequence there.
MessageKey = tuple[bytes, int]

# Messages sent more recently may still be under way and need not be sent again yet.
JUST_SAID = timedelta(seconds=5)
# How many notes, each with the messages of a batch, are read at once.
NOTES_PAGE = 20
# How many rows that wait are read at once.
WAITING_PAGE = 500
# A host that is silent for so long has left the cell.
SILENT_KEPT = timedelta(days=30)


class ConductorTransaction(Protocol):
    """One transaction on a cell's tables: all of its writes take effect, or none."""

    async def load(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Instance]:
        """The existing rows of these instances, locked."""

    async def take_due(self, now: datetime, limit: int) -> Mapping[InstanceId, Instance]:
        """The rows that have been due for longest, locked. Rows locked by another process are skipped."""

    async def save(
        self, rows: Sequence[Instance], forgotten: Sequence[InstanceId], said: Sequence[MessageKey]
    ) -> OutboxKey | None:
        """Save rows: loaded ones are replaced, others are new (`Transient` if another process created them first).

        The rows in `forgotten` are deleted. `said` names the messages on these rows that are sent now. Returns the key of
        the note that lists them until they are confirmed; None if there are none.
        """

    async def lock_hosts(self, hosts: Sequence[ProviderId]) -> Mapping[ProviderId, CellHost]:
        """The existing rows of these hosts, locked."""

    async def save_hosts(self, hosts: Sequence[CellHost]) -> None:
        """Save rows of hosts: loaded ones are replaced, others are new (`Transient` if another process created them first)."""


class ConductorStore(Protocol):
    """The rows of one cell. For the conductor's worker it is also the outbox, from which unconfirmed messages are sent
    again.
    """

    def transaction(self) -> AbstractAsyncContextManager[ConductorTransaction]:
        """A transaction: commits at the end, rolls back on an exception. Any step may raise `Transient`: try again."""

    async def clear(self, tx: ConductorTransaction, said: Sequence[OutboxKey]) -> None:
        """Delete the notes with these keys, since their messages are confirmed.

        This is a part of the transaction, and is done as its last step, whenever it is called.
        """

    async def pending(self, after: OutboxKey | None = None) -> Sequence[tuple[OutboxKey, Message]]:
        """A page of unconfirmed messages with their keys, after the given key; empty at the end.

        The first reading of a process has all of them. Later readings leave out those that were sent just now.
        """

    async def read(
        self, instances: Sequence[InstanceId], after: InstanceId | None = None, limit: int | None = None
    ) -> Sequence[Instance]:
        """The rows of these instances, or of all if none are named, that follow `after` in the order of their ids. Not
        locked.

        Each row has all messages that it stores, also the confirmed ones.
        """

    async def host_writes(self) -> int:
        """How often rows of hosts were written, by all processes. While this number is the same, `hosts` returns the
        same.
        """

    async def hosts(self) -> Sequence[CellHost]:
        """All hosts of the cell whose mode an operator has ever set."""

    async def heard_hosts(self) -> Sequence[HeardHost]:
        """The hosts of the cell that conductors have heard, without those that have been silent for `SILENT_KEPT`, which are
        deleted.
        """

    async def save_heard_hosts(self, hosts: Sequence[HeardHost]) -> None:
        """Save these rows, in a transaction of their own. The last write of a row wins: a conductor that finds it wrong
        writes it again.
        """

    async def waiting(
        self, until: datetime, after: tuple[datetime, InstanceId] | None = None
    ) -> tuple[Instance, ...]:
        """A page of the rows that are due by `until`, the earliest first, after the given row; empty at the end.

        They are not locked, and have no messages.
        """

    async def close(self) -> None: ...
