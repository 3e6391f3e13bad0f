"""Cursors into the change log, as readers keep them: on PostgreSQL a snapshot, on SQLite a position."""

import re
from functools import lru_cache
from typing import Self

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import ColumnElement, Connection
from sqlalchemy.types import UserDefinedType

from bus.messages.placement import LogPosition
from placement_worker.tables import change_log, feed

# PostgreSQL's text of a snapshot: xmin (it sees all before), xmax (it sees nothing from here), and what was open in between.
_SNAPSHOT = re.compile(r"(\d{1,18}):(\d{1,18}):((?:\d{1,18},)*\d{1,18})?", re.ASCII)
_POSITION = re.compile(r"\d{1,18}", re.ASCII)

# PostgreSQL numbers its transactions from 3 on.
NOTHING_SEEN = "1:1:"


class Snapshot(Struct, frozen=True):
    """A snapshot of PostgreSQL. It covers all transactions before `end`, except for those in `missed`, which were still
    open.
    """

    end: int
    missed: tuple[int, ...] = ()

    # Most readers are where they were.
    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, cursor: str) -> Self | None:
        """Parse a cursor as PostgreSQL writes a snapshot; None if the text is no snapshot."""
        match = _SNAPSHOT.fullmatch(cursor)
        if match is None:
            return None
        first, end = int(match[1]), int(match[2])
        missed = tuple([int(number) for number in (match[3] or "").split(",") if number])
        in_order = [first, *missed, end]
        return cls(end, missed) if first > 0 and in_order == sorted(in_order) else None

    def before(self, end: int) -> "Snapshot":
        """This snapshot, limited to the transactions with numbers below `end`."""
        return Snapshot(min(end, self.end), tuple([number for number in self.missed if number < end]))

    def sees_all_of(self, other: "Snapshot") -> bool:
        return other.end <= self.end and not set(self.before(other.end).missed).difference(other.missed)

    def __str__(self) -> str:
        first = self.missed[0] if self.missed else self.end
        return f"{first}:{self.end}:{','.join(map(str, self.missed))}"


@lru_cache(maxsize=64)
def has_seen(cursor: str, forgotten: str) -> bool:
    """Has the reader with this cursor seen all log rows that were pruned?

    `forgotten` is the snapshot, as text, that covers the transactions that wrote those rows. It is empty if nothing was
    pruned yet.
    """
    seen, gone = Snapshot.of(cursor), Snapshot.of(forgotten or NOTHING_SEEN)
    return seen is not None and gone is not None and seen.sees_all_of(gone)


def is_position(cursor: str) -> bool:
    """Does this text have the form of a cursor on SQLite (a position in the change log)?"""
    return _POSITION.fullmatch(cursor) is not None


# In statements


class _Snapshot(UserDefinedType[str]):
    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "pg_snapshot"


def begin_term(connection: Connection) -> tuple[LogPosition, str]:
    """Begin the term of a new leader: of the one placement worker that publishes changes for all.

    Returns the position with which its messages begin, and the cursor in the log of changes from which it goes on.
    """
    begun = sa.update(feed).values(term=feed.c.term + 1, position=0).returning(feed.c.term, feed.c.cursor)
    term, cursor = connection.execute(begun).one()
    if connection.dialect.name != "postgresql":
        return LogPosition(term=term, position=0), cursor or "0"
    cursor = cursor or NOTHING_SEEN
    if is_ahead(connection, cursor):
        # The tables were restored into a database that counts transactions from the start. The new term makes each reader
        # read all again, so nothing in the log needs to be published.
        connection.execute(sa.delete(change_log))
        cursor = come_to(connection)
        connection.execute(sa.update(feed).values(cursor=cursor, forgotten=cursor))
    return LogPosition(term=term, position=0), cursor


def is_ahead(connection: Connection, cursor: str) -> bool:
    now = sa.func.pg_snapshot_xmax(sa.func.pg_current_snapshot())
    return bool(connection.scalar(sa.select(sa.func.pg_snapshot_xmax(_snapshot(cursor)) > now)))


def come_to(connection: Connection) -> str:
    """A cursor into the change log that covers everything this transaction sees."""
    if connection.dialect.name == "postgresql":
        return str(connection.scalar(sa.text("SELECT pg_current_snapshot()::text")))
    # When the whole log is pruned, the last pruned position tells how far it had come.
    last = connection.scalar(sa.select(sa.func.max(change_log.c.position)))
    return str(max(last or 0, int(connection.scalar(sa.select(feed.c.forgotten)) or 0)))


def unseen_by(connection: Connection, cursor: str) -> ColumnElement[bool]:
    """A SQL condition: this row of the log was not yet committed when the cursor was taken."""
    if connection.dialect.name != "postgresql":
        return change_log.c.position > int(cursor or 0)
    snapshot = _snapshot(cursor or NOTHING_SEEN)
    return sa.or_(
        change_log.c.written_by >= sa.func.pg_snapshot_xmax(snapshot),
        change_log.c.written_by
        == sa.func.any(sa.func.array(sa.select(sa.func.pg_snapshot_xip(snapshot)).scalar_subquery())),
    )


def _snapshot(cursor: str) -> ColumnElement[str]:
    return sa.cast(sa.literal(cursor, sa.String), _Snapshot())
