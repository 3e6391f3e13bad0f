"""Read the change log from a cursor on: for its publisher, and for readers that keep a copy of all providers.

PostgreSQL numbers rows before their commit, so a reader that went by numbers would miss a row that commits late. Its
cursor is a snapshot instead: the next reading takes each row whose transaction that snapshot did not see. SQLite has one
writer at a time, so rows commit in the order of their numbers, and its cursor is a number.

Most times nothing or only usage has changed. So that case is cheap: one statement, or two.
"""

from collections.abc import Collection
from uuid import UUID

from msgspec import Struct, convert
from sqlalchemy import Connection

from bus.message import ProviderId
from bus.messages.placement import ProviderUsage
from bus.sql import PostgresTransaction, Transaction, driver_of
from placement_worker.store import Unpublished
from placement_worker.store_sql import log
from placement_worker.store_sql.amounts import decode_used
from placement_worker.store_sql.driver_rows import portable, rows_of
from placement_worker.store_sql.feed.cursors import Snapshot, has_seen, is_position
from placement_worker.store_sql.name_cache import CachedNames, CachedVocabulary
from placement_worker.store_sql.trees.stored_providers import read_states

# Few transactions are missed by the cursor. Later ones are read in the order of their ids, and each as a whole, so that a
# snapshot can express how far the reading came. Then: how far the log was pruned; and whether the cursor is ahead of this
# database, as after a restore or with a cursor of another database.
_ON_POSTGRESQL = """
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
    ),
    (SELECT forgotten FROM feed),
    pg_snapshot_xmax($1::text::pg_snapshot) > pg_snapshot_xmax(pg_current_snapshot())
"""

_ON_SQLITE = "SELECT position, body FROM change_log WHERE position > ? ORDER BY position LIMIT ?"
# How far the log was pruned, and how far it has come.
_REACH_ON_SQLITE = """
SELECT coalesce((SELECT forgotten FROM feed), ''), coalesce((SELECT max(position) FROM change_log), 0)
"""

# Only what claims change of providers: most of what the feed publishes, so it is as small as possible.
_READ_USAGE = portable(
    "SELECT id, uuid, base, revision, generation, used, consumers FROM providers"
    " WHERE id = ANY ($1::text::bigint[]) ORDER BY id + 0"
)

ALL_ENTRIES = 2**62


class LogRead(Struct, frozen=True):
    """The entries of one reading of the change log, combined into `entry`.

    `cursor` is how far the reading came. `is_cut`: it stopped at its limit, so there may be more.
    """

    cursor: str
    entry: log.LogEntry
    is_cut: bool = False


async def read_log(transaction: Transaction, since: str, entries_max: int = ALL_ENTRIES) -> LogRead | None:
    """Read the entries of the change log that were not committed when this cursor was taken.

    None if the log no longer has all of them, or if the cursor is of another database.
    """
    if not isinstance(transaction, PostgresTransaction):
        return await transaction.run(_log_of_file, since, entries_max) if is_position(since) else None
    if Snapshot.of(since) is None:
        return None
    ((now, count, last, bodies, forgotten, is_ahead),) = await transaction.fetch(
        _ON_POSTGRESQL, since, entries_max
    )
    if is_ahead or not has_seen(since, forgotten or ""):
        return None
    is_cut = count >= entries_max
    snapshot = Snapshot.of(now)
    assert snapshot is not None, f"PostgreSQL's own snapshot can be parsed: {now!r}"
    cursor = str(snapshot.before(last + 1)) if is_cut else now
    return LogRead(cursor, log.decode_all(bodies), is_cut)


def _log_of_file(connection: Connection, since: str, entries_max: int) -> LogRead | None:
    driver, position = driver_of(connection), int(since)
    forgotten, last = driver.execute(_REACH_ON_SQLITE).fetchone()
    pruned = int(forgotten or 0)
    if not pruned <= position <= max(pruned, last):
        return None
    rows = driver.execute(_ON_SQLITE, (position, entries_max)).fetchall() if last > position else []
    is_cut = len(rows) == entries_max
    cursor = rows[-1][0] if is_cut else max(pruned, last)
    return LogRead(str(cursor), log.decode_all([body for _, body in rows]), is_cut)


async def unpublished(transaction: Transaction, vocabulary: CachedVocabulary, read: LogRead) -> Unpublished:
    """The providers that these log entries name, with their current state, and everything else in the entries.

    After claims alone, which is the usual case, this takes one statement.
    """
    entry, changed = read.entry, set(read.entry.providers)
    return Unpublished(
        cursor=read.cursor,
        providers=await read_states(transaction, vocabulary, changed),
        gone=entry.gone,
        usage=await _read_usage(transaction, vocabulary.classes, set(entry.used) - changed),
        claimed=entry.claimed,
        ended=entry.ended,
        joined=entry.joined,
        left=entry.left,
        is_cut=read.is_cut,
    )


async def _read_usage(
    transaction: Transaction, classes: CachedNames, internal: Collection[int]
) -> tuple[ProviderUsage, ...]:
    """The usage of the providers with these internal ids that still exist, ordered by internal id."""
    rows = await rows_of(transaction, _READ_USAGE, internal)
    ids = convert([row[1] for row in rows], list[UUID])
    used = [decode_used(row[5]) for row in rows]
    if classes.lack({class_id for amounts in used for class_id in amounts}):
        await transaction.run(classes.load)
    names = classes.names
    return tuple(
        [
            ProviderUsage(
                internal=number,
                id=ProviderId(uuid),
                base=base,
                revision=revision,
                generation=generation,
                used={names[class_id]: amount for class_id, amount in amounts.items()},
                consumers=consumers,
            )
            for (number, _, base, revision, generation, _, consumers), uuid, amounts in zip(
                rows, ids, used, strict=True
            )
        ]
    )
