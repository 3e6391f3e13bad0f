"""The conductor's interface to its database. Two implementations, one contract suite: store_memory.py and store_sql.

Cells may share a database: each store sees the rows of one cell only.

The messages of an instance stay on its row. The row does not record which are confirmed: most rows are not written
again for long, and writing them for this alone would be a third of all writes. Instead each transaction that sends
messages writes one note with their keys, which is deleted when they are confirmed. A message without a note counts as
confirmed.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Protocol

from msgspec import structs

from bus.message import Message
from bus.messages.build import InstanceId
from bus.workers.handling import OutboxKey
from cell_conductor.core.instance import Instance

# The key of a message: the bytes of its instance's id, and its sequence there.
MessageKey = tuple[bytes, int]

# Messages sent more recently may still be under way and need not be sent again yet.
JUST_SAID = timedelta(seconds=5)
# How many notes, each with the messages of a batch, are read at once.
NOTES_PAGE = 20


class ConductorTransaction(Protocol):
    """All or nothing."""

    async def load(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Instance]:
        """The existing rows of these, locked."""

    async def take_due(self, now: datetime, limit: int) -> Mapping[InstanceId, Instance]:
        """The rows that have been due for longest, locked. Rows locked by another process are skipped."""

    async def save(
        self, rows: Sequence[Instance], forgotten: Sequence[InstanceId], said: Sequence[MessageKey]
    ) -> OutboxKey | None:
        """Save rows: loaded ones are replaced, others are new (`Transient` if another process created them first).
        Returns the key under which the messages in `said` are kept until they are confirmed; None if there are none.
        """


class ConductorStore(Protocol):
    """The rows of one cell; also the outbox of its worker."""

    def transaction(self) -> AbstractAsyncContextManager[ConductorTransaction]:
        """A transaction: commits at the end, rolls back on an exception. Any step may raise `Transient`: try again."""

    async def clear(self, tx: ConductorTransaction, said: Sequence[OutboxKey]) -> None:
        """The messages under these keys are confirmed. Part of the transaction, and its last step."""

    async def pending(self, after: OutboxKey | None = None) -> Sequence[tuple[OutboxKey, Message]]:
        """A page of unconfirmed messages after this key; empty at the end. A process that starts reads all of them;
        later it skips those that were sent just now.
        """

    async def read(self, instances: Sequence[InstanceId]) -> tuple[Instance, ...]:
        """The existing rows of these, in the order of their ids, not locked."""

    async def close(self) -> None: ...


def now() -> datetime:
    return datetime.now(UTC)


def without_confirmed(row: Instance, unconfirmed: Collection[MessageKey]) -> Instance:
    """The row without its confirmed messages."""
    if not row.outbox:
        return row
    id_ = row.id.bytes
    left = tuple([each for each in row.outbox if (id_, each.sequence) in unconfirmed])
    return row if len(left) == len(row.outbox) else structs.replace(row, outbox=left)
