"""The change log, read by whoever publishes it; and who that is.

PostgreSQL numbers rows before they are committed, so a reader that went by numbers would pass over a row that commits
late. Its cursor is a snapshot instead: the next reading takes every row whose transaction that snapshot did not see.
SQLite has one writer at a time and so commits in the order of the numbers, which are its cursor.
"""

from collections.abc import Iterable, Sequence

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection
from sqlalchemy.types import UserDefinedType

from bus.errors import Transient
from bus.messages.placement import LogPosition, ProviderGone
from bus.sql import Database, PostgresSession
from placement_worker.store import Unpublished
from placement_worker.store_sql import log
from placement_worker.store_sql.names import KnownVocabulary, Vocabulary
from placement_worker.store_sql.states import Qualities, read_providers
from placement_worker.tables import change_log, feed

# Sees nothing: PostgreSQL's transactions are numbered from 3 on.
_SNAPSHOT_OF_NOTHING = "1:1:"


class _Snapshot(UserDefinedType[str]):
    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "pg_snapshot"


class SqlFeed:
    """The feed in one term of publishing."""

    def __init__(
        self, session: Database | PostgresSession, known: KnownVocabulary, published: LogPosition, cursor: str
    ) -> None:
        self._session = session
        self._known = known
        self._published = published
        self._cursor = cursor
        self._qualities = Qualities()

    @property
    def published(self) -> LogPosition:
        return self._published

    async def read(self) -> Unpublished:
        vocabulary = Vocabulary(self._known)
        async with self._session.reading() as transaction:
            unpublished = await transaction.run(read_log, vocabulary, self._cursor, self._qualities)
        vocabulary.committed()
        return unpublished

    async def mark(self, position: int, cursor: str) -> None:
        term = self._published.term
        async with self._session.writing() as transaction:
            if not await transaction.run(_mark, term, position, cursor):
                raise Transient(f"the feed of term {term} is over: another process publishes the log")
        self._published = LogPosition(term=term, position=position)
        self._cursor = cursor


def begin_term(connection: Connection) -> tuple[LogPosition, str]:
    """Where the publishing stands, in a term that is ours alone."""
    begun = sa.update(feed).values(term=feed.c.term + 1, position=0).returning(feed.c.term, feed.c.cursor)
    term, cursor = connection.execute(begun).one()
    if connection.dialect.name == "postgresql" and cursor and is_ahead(connection, cursor):
        # The tables were restored into a database that counts anew. Our new term makes every reader catch up by a
        # snapshot, so what is in the log need not be told.
        connection.execute(sa.delete(change_log))
        cursor = come_to(connection)
        newest = sa.cast(sa.cast(sa.func.pg_snapshot_xmax(_snapshot(cursor)), sa.String), sa.BigInteger)
        connection.execute(sa.update(feed).values(cursor=cursor, pruned=newest))
    return LogPosition(term=term, position=0), cursor


def is_ahead(connection: Connection, cursor: str) -> bool:
    now = sa.func.pg_snapshot_xmax(sa.func.pg_current_snapshot())
    return bool(connection.scalar(sa.select(sa.func.pg_snapshot_xmax(_snapshot(cursor)) > now)))


def read_log(
    connection: Connection, vocabulary: Vocabulary, cursor: str, qualities: Qualities
) -> Unpublished:
    """Everything since the cursor, from one view of the books."""
    entries = entries_since(connection, cursor)
    gone = gone_in(entries)
    for provider in gone:
        qualities.forget(provider.internal)
    return Unpublished(
        cursor=come_to(connection),
        providers=read_providers(connection, vocabulary, touched_in(entries), qualities),
        gone=gone,
        claimed=tuple(holder for entry in entries for holder in entry.claimed),
        ended=tuple(holder for entry in entries for holder in entry.ended),
    )


def come_to(connection: Connection) -> str:
    """A cursor that has seen all that this view of the books has."""
    if connection.dialect.name == "postgresql":
        return str(connection.scalar(sa.text("SELECT pg_current_snapshot()::text")))
    # When all of the log is forgotten, what was forgotten last tells how far it had come.
    last = connection.scalar(sa.select(sa.func.max(change_log.c.position)))
    return str(max(last or 0, connection.scalar(sa.select(feed.c.pruned)) or 0))


def entries_since(connection: Connection, cursor: str) -> Sequence[log.LogEntry]:
    bodies = connection.scalars(
        sa.select(change_log.c.body).where(unseen_by(connection, cursor)).order_by(change_log.c.position)
    )
    return [log.decode(body) for body in bodies]


def touched_in(entries: Iterable[log.LogEntry]) -> list[int]:
    return sorted({provider for entry in entries for provider in entry.providers})


def gone_in(entries: Iterable[log.LogEntry]) -> tuple[ProviderGone, ...]:
    return tuple([gone for entry in entries for gone in entry.gone])


def unseen_by(connection: Connection, cursor: str) -> ColumnElement[bool]:
    """Was this row of the log not yet committed when the cursor was taken?"""
    if connection.dialect.name != "postgresql":
        return change_log.c.position > int(cursor or 0)
    snapshot = _snapshot(cursor or _SNAPSHOT_OF_NOTHING)
    return sa.and_(
        # Says nothing that the next line does not, but an index can answer it.
        change_log.c.written_by >= sa.func.pg_snapshot_xmin(snapshot),
        sa.not_(sa.func.pg_visible_in_snapshot(change_log.c.written_by, snapshot)),
    )


def _snapshot(cursor: str) -> ColumnElement[str]:
    return sa.cast(sa.literal(cursor, sa.String), _Snapshot())


def _mark(connection: Connection, term: int, position: int, cursor: str) -> bool:
    marked = connection.execute(
        sa.update(feed).where(feed.c.term == term).values(position=position, cursor=cursor)
    )
    return marked.rowcount == 1
