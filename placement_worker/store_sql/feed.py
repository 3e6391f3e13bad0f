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
from bus.sql import Database, PostgresSession, PostgresTransaction, Transaction, driver_of
from placement_worker.store import FEED_ENTRIES, Unpublished
from placement_worker.store_sql import log
from placement_worker.store_sql.cursors import NOTHING_SEEN, Snapshot
from placement_worker.store_sql.names import KnownVocabulary, Vocabulary
from placement_worker.store_sql.usage import read_usage
from placement_worker.store_sql.whole import read_states
from placement_worker.tables import change_log, feed

# The transactions that the cursor missed are few. Those that began later are read in the order of their numbers, each
# whole, so that a snapshot can say up to which of them all was read.
_LOG_ON_POSTGRESQL = """
WITH missed AS (
    SELECT position, body FROM change_log
    WHERE written_by = ANY(ARRAY(SELECT pg_snapshot_xip($1::text::pg_snapshot)))
), page AS (
    SELECT position, body, written_by FROM change_log
    WHERE written_by >= pg_snapshot_xmax($1::text::pg_snapshot)
    ORDER BY written_by FETCH FIRST ($2::bigint) ROWS WITH TIES
)
SELECT
    pg_current_snapshot()::text,
    (SELECT count(*) FROM page),
    (SELECT max(written_by::text::bigint) FROM page),
    ARRAY(
        SELECT body FROM (
            SELECT position, body FROM missed UNION ALL SELECT position, body FROM page
        ) AS unseen ORDER BY position
    )
"""

# A limit below zero is none.
LOG_ON_SQLITE = "SELECT position, body FROM change_log WHERE position > ? ORDER BY position LIMIT ?"
ALL_OF_IT = -1

# A mark that is lost in a crash of the server has no other effect than that some things are told again: nobody need
# wait until it is on disk.
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
    """The feed in one term of publishing."""

    def __init__(
        self, session: Database | PostgresSession, known: KnownVocabulary, published: LogPosition, cursor: str
    ) -> None:
        self._session = session
        self._known = known
        self._published = published
        self._cursor = cursor

    @property
    def published(self) -> LogPosition:
        return self._published

    async def read(self, entries_max: int = FEED_ENTRIES) -> Unpublished:
        """From one view of the books. Where there were only claims, as is usual, two statements see to all of it."""
        vocabulary = Vocabulary(self._known)
        async with self._session.reading() as transaction:
            cursor, entries, is_cut = await _read_log(transaction, self._cursor, entries_max)
            changed = {provider for entry in entries for provider in entry.providers}
            providers = await read_states(transaction, vocabulary, changed)
            used = {provider for entry in entries for provider in entry.used}
            usage = await read_usage(transaction, vocabulary.classes, used - changed)
        vocabulary.committed()
        return Unpublished(
            cursor=cursor,
            providers=providers,
            gone=gone_in(entries),
            usage=usage,
            claimed=tuple([holder for entry in entries for holder in entry.claimed]),
            ended=tuple([holder for entry in entries for holder in entry.ended]),
            is_cut=is_cut,
        )

    async def mark(self, position: int, cursor: str) -> None:
        term = self._published.term
        if isinstance(self._session, PostgresSession):
            marked = await self._session.alone(_MARK_ON_POSTGRESQL, term, position, cursor)
        else:
            async with self._session.writing(is_lazy=True) as transaction:
                marked = await transaction.run(_mark_in_file, term, position, cursor)
        if not marked:
            raise Transient(f"the feed of term {term} is over: another process publishes the log")
        self._published = LogPosition(term=term, position=position)
        self._cursor = cursor


def _mark_in_file(connection: Connection, term: int, position: int, cursor: str) -> Sequence[tuple[int]]:
    return driver_of(connection).execute(_MARK_ON_SQLITE, (term, position, cursor)).fetchall()


def begin_term(connection: Connection) -> tuple[LogPosition, str]:
    """Where the publishing stands, in a term that is ours alone."""
    begun = sa.update(feed).values(term=feed.c.term + 1, position=0).returning(feed.c.term, feed.c.cursor)
    term, cursor = connection.execute(begun).one()
    if connection.dialect.name == "postgresql" and cursor and is_ahead(connection, cursor):
        # The tables were restored into a database that counts anew. Our new term makes every reader catch up by a
        # snapshot, so what is in the log need not be told.
        connection.execute(sa.delete(change_log))
        cursor = come_to(connection)
        connection.execute(sa.update(feed).values(cursor=cursor, forgotten=cursor))
    return LogPosition(term=term, position=0), cursor


def is_ahead(connection: Connection, cursor: str) -> bool:
    now = sa.func.pg_snapshot_xmax(sa.func.pg_current_snapshot())
    return bool(connection.scalar(sa.select(sa.func.pg_snapshot_xmax(_snapshot(cursor)) > now)))


# Where the reading leads, what was read, and whether it came to its limit.
_Read = tuple[str, Sequence[log.LogEntry], bool]


async def _read_log(transaction: Transaction, since: str, entries_max: int) -> _Read:
    """What was not committed at this cursor."""
    if not isinstance(transaction, PostgresTransaction):
        return await transaction.run(_log_of_file, since, entries_max)
    driver = await transaction.driver()
    now, count, last, bodies = await driver.fetchrow(_LOG_ON_POSTGRESQL, since or NOTHING_SEEN, entries_max)
    is_cut = count >= entries_max
    snapshot = Snapshot.of(now)
    assert snapshot is not None, f"PostgreSQL's own snapshot, {now!r}, is read"
    cursor = str(snapshot.before(last + 1)) if is_cut else now
    return cursor, [log.decode(body) for body in bodies], is_cut


def _log_of_file(connection: Connection, since: str, entries_max: int) -> _Read:
    rows = driver_of(connection).execute(LOG_ON_SQLITE, (int(since or 0), entries_max)).fetchall()
    cursor = str(rows[-1][0]) if rows else come_to(connection)
    return cursor, [log.decode(body) for _, body in rows], len(rows) == entries_max


def come_to(connection: Connection) -> str:
    """A cursor that has seen all that this view of the books has."""
    if connection.dialect.name == "postgresql":
        return str(connection.scalar(sa.text("SELECT pg_current_snapshot()::text")))
    # When all of the log is forgotten, what was forgotten last tells how far it had come.
    last = connection.scalar(sa.select(sa.func.max(change_log.c.position)))
    return str(max(last or 0, int(connection.scalar(sa.select(feed.c.forgotten)) or 0)))


def entries_since(connection: Connection, cursor: str) -> Sequence[log.LogEntry]:
    bodies = connection.scalars(
        sa.select(change_log.c.body).where(unseen_by(connection, cursor)).order_by(change_log.c.position)
    )
    return [log.decode(body) for body in bodies]


def touched_in(entries: Iterable[log.LogEntry]) -> list[int]:
    return sorted({provider for entry in entries for provider in (*entry.providers, *entry.used)})


def gone_in(entries: Iterable[log.LogEntry]) -> tuple[ProviderGone, ...]:
    return tuple([gone for entry in entries for gone in entry.gone])


def unseen_by(connection: Connection, cursor: str) -> ColumnElement[bool]:
    """Was this row of the log not yet committed when the cursor was taken?"""
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
