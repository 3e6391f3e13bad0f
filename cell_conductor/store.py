"""What a conductor asks of its database. Two implementations, one contract suite: store_memory.py and store_sql.py.

Cells may share a database: each store sees the rows of one cell only.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Protocol

from bus.handling import Kept
from bus.message import Message
from bus.messages.build import InstanceId
from cell_conductor.core.instance import Instance

# What was said more recently may be on its way in this very moment: it need not be said again yet.
JUST_SAID = timedelta(seconds=5)


class ConductorTransaction(Protocol):
    """All or nothing."""

    async def load(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Instance]:
        """Those of these that there are, locked."""

    async def take_due(self, now: datetime, limit: int) -> Mapping[InstanceId, Instance]:
        """Those that have been due for longest, locked; what another process has locked is its own to look after."""

    async def save(self, rows: Sequence[Instance], forgotten: Sequence[InstanceId]) -> None:
        """Rows that were loaded here are replaced, others are new: `Transient` if another process was faster."""


class ConductorStore(Protocol):
    """Also what keeps the conductor's words until they are confirmed: clearing.py says when `clear` is asked of it."""

    def transaction(self) -> AbstractAsyncContextManager[ConductorTransaction]:
        """Commits when left in peace, rolls back on any exception. May raise `Transient` at any step: try again."""

    async def clear(self, tx: ConductorTransaction, said: Sequence[Kept]) -> None:
        """These are confirmed, their rows need not keep them: part of the transaction, and the last of it."""

    async def pending(self) -> Sequence[tuple[Kept, Message]]:
        """Everything when asked for the first time, by a process that starts; then only what was not said just now."""

    async def read(self, instances: Sequence[InstanceId]) -> tuple[Instance, ...]:
        """Those of these that there are, in the order of their ids, not locked."""

    async def close(self) -> None: ...


def now() -> datetime:
    return datetime.now(UTC)


def kept_of(instance: InstanceId, sequence: int) -> Kept:
    """Where an instance keeps the word with this number. Its id without dashes, which is the shortest way to write it."""
    return Kept(instance.hex, sequence)


def by_entity(said: Sequence[Kept]) -> dict[str, set[int]]:
    """The numbers of what was said, by who said it."""
    numbers: dict[str, set[int]] = {}
    for each in said:
        numbers.setdefault(each.entity, set()).add(each.sequence)
    return numbers
