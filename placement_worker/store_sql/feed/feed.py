"""Notes how far the change log is published, and begins the term of a process that becomes the publisher."""

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection
from sqlalchemy.types import UserDefinedType

from bus.errors import Transient
from bus.messages.placement import LogPosition
from bus.sql import PostgresSession, SqliteDatabase
from placement_worker.store import FEED_ENTRIES, Unpublished
from placement_worker.store_sql.feed.cursors import NOTHING_SEEN
from placement_worker.store_sql.feed.log_reader import read_log, unpublished
from placement_worker.store_sql.name_cache import CachedVocabulary, VocabularyCache
from placement_worker.tables import change_log, feed

# If a crash of the server loses a mark, some messages are published again, and nothing else happens. So the publisher
# does not wait until the mark is on disk.
_MARK_ON_POSTGRESQL = """
WITH lazily AS (SELECT set_config('synchronous_commit', 'off', true))
UPDATE feed SET position = $2, cursor = $3 FROM lazily WHERE term = $1 RETURNING 1
"""
_MARK_ON_SQLITE = "UPDATE feed SET position = ?2, cursor = ?3 WHERE term = ?1 RETURNING 1"


class _Snapshot(UserDefinedType[str]):
    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "pg_snapshot"


class SqlFeed:
    """Reads the change log for the one worker that publishes it, until another worker takes over."""

    def __init__(
        self,
        session: SqliteDatabase | PostgresSession,
        known: VocabularyCache,
        published: LogPosition,
        cursor: str,
    ) -> None:
        self._session = session
        self._known = known
        self.published = published
        self._cursor = cursor

    async def read(self, entries_max: int = FEED_ENTRIES) -> Unpublished:
        """Read the next changes to publish. All of them come from one database snapshot."""
        vocabulary = CachedVocabulary(self._known)
        async with self._session.reading() as transaction:
            read = await read_log(transaction, self._cursor, entries_max)
            assert read is not None, f"only what is published is pruned; this is not: {self._cursor}"
            found = await unpublished(transaction, vocabulary, read)
        vocabulary.committed()
        return found

    async def mark(self, position: int, cursor: str) -> None:
        term = self.published.term
        if isinstance(self._session, PostgresSession):
            marked = await self._session.alone(_MARK_ON_POSTGRESQL, term, position, cursor)
        else:
            async with self._session.writing(is_lazy=True) as transaction:
                marked = await transaction.fetch(_MARK_ON_SQLITE, term, position, cursor)
        if not marked:
            raise Transient(f"the feed of term {term} is over: another process publishes the log")
        self.published = LogPosition(term=term, position=position)
        self._cursor = cursor


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
