"""Changes since a cursor, for a reader that keeps a copy of all providers. It asks before each of its answers, and most
times nothing or only usage has changed. So that case is cheap: one statement, or two.
"""

from collections.abc import Sequence

from sqlalchemy import Connection

from bus.sql import PostgresTransaction, Transaction, driver_of
from placement_worker.store import Unpublished
from placement_worker.store_sql import log
from placement_worker.store_sql.cursors import Snapshot, has_seen, is_position
from placement_worker.store_sql.feed import ALL_OF_IT, LOG_ON_SQLITE, gone_in
from placement_worker.store_sql.name_cache import CachedVocabulary
from placement_worker.store_sql.stored_providers import read_states
from placement_worker.store_sql.usage import read_usage

# The log since the cursor, as the feed reads it; how far it was pruned; and whether the cursor is ahead of this database, as
# after a restore or with a cursor of another database.
_ON_POSTGRESQL = """
SELECT
    pg_current_snapshot()::text,
    (SELECT forgotten FROM feed),
    pg_snapshot_xmax($1::text::pg_snapshot) > pg_snapshot_xmax(pg_current_snapshot()),
    ARRAY(
        SELECT body FROM change_log
        WHERE written_by >= pg_snapshot_xmax($1::text::pg_snapshot)
           OR written_by = ANY(ARRAY(SELECT pg_snapshot_xip($1::text::pg_snapshot)))
        ORDER BY position
    )
"""

# How far the log was pruned, and how far it has come.
_REACH_ON_SQLITE = """
SELECT (SELECT forgotten FROM feed), coalesce((SELECT max(position) FROM change_log), 0)
"""


async def changes_since(
    transaction: Transaction, vocabulary: CachedVocabulary, since: str
) -> Unpublished | None:
    """All from one snapshot; None if the log no longer has all changes since then."""
    found = await _read_log(transaction, since)
    if found is None:
        return None
    cursor, entries = found
    changed = {provider for entry in entries for provider in entry.providers}
    used = {provider for entry in entries for provider in entry.used}
    return Unpublished(
        cursor=cursor,
        providers=await read_states(transaction, vocabulary, changed),
        usage=await read_usage(transaction, vocabulary.classes, used - changed),
        gone=gone_in(entries),
    )


async def _read_log(transaction: Transaction, since: str) -> tuple[str, Sequence[log.LogEntry]] | None:
    if not isinstance(transaction, PostgresTransaction):
        return await transaction.run(_log_of_file, since) if is_position(since) else None
    if Snapshot.of(since) is None:
        return None
    driver = await transaction.driver()
    cursor, forgotten, is_ahead, bodies = await driver.fetchrow(_ON_POSTGRESQL, since)
    if is_ahead or not has_seen(since, forgotten or ""):
        return None
    return cursor, [log.decode(body) for body in bodies]


def _log_of_file(connection: Connection, since: str) -> tuple[str, Sequence[log.LogEntry]] | None:
    driver, position = driver_of(connection), int(since)
    forgotten, last = driver.execute(_REACH_ON_SQLITE).fetchone()
    pruned = int(forgotten or 0)
    if not pruned <= position <= max(pruned, last):
        return None
    rows = driver.execute(LOG_ON_SQLITE, (position, ALL_OF_IT)).fetchall() if last > position else []
    return str(max(pruned, last)), [log.decode(body) for _, body in rows]
