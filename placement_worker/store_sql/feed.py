"""The change log as its publisher reads it, and the election of that publisher.

PostgreSQL numbers rows before their commit, so a reader that went by numbers would miss a row that commits late. Its
cursor is a snapshot instead: the next reading takes each row whose transaction that snapshot did not see. SQLite has one
writer at a time, so rows commit in the order of their numbers, and its cursor is a number.
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
from placement_worker.store_sql.name_cache import CachedVocabulary, VocabularyCache
from placement_worker.store_sql.stored_providers import read_states
from placement_worker.store_sql.usage import read_usage
from placement_worker.tables import change_log, feed

# Few transactions are missed by the cursor. Later ones are read in the order of their ids, and each as a whole, so that a
# snapshot can express how far the reading came.
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

# SQLite takes a negative limit as no limit.
LOG_ON_SQLITE = "SELECT position, body FROM change_log WHERE position > ? ORDER BY position LIMIT ?"
ALL_OF_IT = -1

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
    """The feed in one term of publishing."""

    def __init__(
        self, session: Database | PostgresSession, known: VocabularyCache, published: LogPosition, cursor: str
    ) -> None:
        self._session = session
        self._known = known
        self._published = published
        self._cursor = cursor

    @property
    def published(self) -> LogPosition:
        return self._published

    async def read(self, entries_max: int = FEED_ENTRIES) -> Unpublished:
        """All from one snapshot. After claims alone, which is the usual case, two statements read everything."""
        vocabulary = CachedVocabulary(self._known)
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
    """Begin a new term, and return the position and the cursor from which its leader goes on."""
    begun = sa.update(feed).values(term=feed.c.term + 1, position=0).returning(feed.c.term, feed.c.cursor)
    term, cursor = connection.execute(begun).one()
    if connection.dialect.name == "postgresql" and cursor and is_ahead(connection, cursor):
        # The tables were restored into a database that counts transactions from the start. The new term makes each reader
        # read all again, so nothing in the log needs to be published.
        connection.execute(sa.delete(change_log))
        cursor = come_to(connection)
        connection.execute(sa.update(feed).values(cursor=cursor, forgotten=cursor))
    return LogPosition(term=term, position=0), cursor


def is_ahead(connection: Connection, cursor: str) -> bool:
    now = sa.func.pg_snapshot_xmax(sa.func.pg_current_snapshot())
    return bool(connection.scalar(sa.select(sa.func.pg_snapshot_xmax(_snapshot(cursor)) > now)))


# The new cursor, the entries, and whether the reading came to its limit.
_Read = tuple[str, Sequence[log.LogEntry], bool]


async def _read_log(transaction: Transaction, since: str, entries_max: int) -> _Read:
    """The entries that were not committed at this cursor."""
    if not isinstance(transaction, PostgresTransaction):
        return await transaction.run(_log_of_file, since, entries_max)
    driver = await transaction.driver()
    now, count, last, bodies = await driver.fetchrow(_LOG_ON_POSTGRESQL, since or NOTHING_SEEN, entries_max)
    is_cut = count >= entries_max
    snapshot = Snapshot.of(now)
    assert snapshot is not None, f"PostgreSQL's own snapshot can be parsed: {now!r}"
    cursor = str(snapshot.before(last + 1)) if is_cut else now
    return cursor, [log.decode(body) for body in bodies], is_cut


def _log_of_file(connection: Connection, since: str, entries_max: int) -> _Read:
    rows = driver_of(connection).execute(LOG_ON_SQLITE, (int(since or 0), entries_max)).fetchall()
    cursor = str(rows[-1][0]) if rows else come_to(connection)
    return cursor, [log.decode(body) for _, body in rows], len(rows) == entries_max


def come_to(connection: Connection) -> str:
    """A cursor that covers everything this transaction sees."""
    if connection.dialect.name == "postgresql":
        return str(connection.scalar(sa.text("SELECT pg_current_snapshot()::text")))
    # When the whole log is pruned, the last pruned position tells how far it had come.
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
    """Condition: this row of the log was not yet committed when the cursor was taken."""
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
