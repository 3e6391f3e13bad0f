"""What a conductor asks of its database. Two implementations, one contract suite: store_memory.py and store_sql.py.

Cells may share a database: each store sees the rows of one cell only.

An instance's words stay on its row. Which of them are confirmed is not written there: most rows are not written again for
a long time, and to do so for this alone would be a third of all writes. What a transaction says is noted beside the rows,
all of it in one note, which is gone when it is confirmed; and a word without a note counts as confirmed.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Protocol

from msgspec import structs

from bus.handling import Kept
from bus.message import Message
from bus.messages.build import InstanceId
from cell_conductor.core.instance import Instance

# A word: the bytes of its instance's id, and its number there.
Spoken = tuple[bytes, int]

# What was said more recently may be on its way in this very moment: it need not be said again yet.
JUST_SAID = timedelta(seconds=5)
# How many names, each with the words of a batch, are read at once.
NAMES_PAGE = 20


class ConductorTransaction(Protocol):
    """All or nothing."""

    async def load(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Instance]:
        """Those of these that there are, locked."""

    async def take_due(self, now: datetime, limit: int) -> Mapping[InstanceId, Instance]:
        """Those that have been due for longest, locked; what another process has locked is its own to look after."""

    async def save(
        self, rows: Sequence[Instance], forgotten: Sequence[InstanceId], said: Sequence[Spoken]
    ) -> Kept | None:
        """Rows that were loaded here are replaced, others are new: `Transient` if another process was faster. What is
        said with them is kept under this name until it is confirmed; there is none if nothing is.
        """


class ConductorStore(Protocol):
    """Also what keeps the conductor's words until they are confirmed."""

    def transaction(self) -> AbstractAsyncContextManager[ConductorTransaction]:
        """Commits when left in peace, rolls back on any exception. May raise `Transient` at any step: try again."""

    async def clear(self, tx: ConductorTransaction, said: Sequence[Kept]) -> None:
        """All that is kept under these names is confirmed: part of the transaction, and the last of it."""

    async def pending(self, after: Kept | None = None) -> Sequence[tuple[Kept, Message]]:
        """A page of what is kept behind this name; empty at the end. A process that starts reads everything, to the end;
        then only what was not said just now.
        """

    async def read(self, instances: Sequence[InstanceId]) -> tuple[Instance, ...]:
        """Those of these that there are, in the order of their ids, not locked."""

    async def close(self) -> None: ...


def now() -> datetime:
    return datetime.now(UTC)


def left_of(row: Instance, unsaid: Collection[Spoken]) -> Instance:
    """The row without those of its words that are confirmed."""
    if not row.outbox:
        return row
    id_ = row.id.bytes
    left = tuple([each for each in row.outbox if (id_, each.sequence) in unsaid])
    return row if len(left) == len(row.outbox) else structs.replace(row, outbox=left)
