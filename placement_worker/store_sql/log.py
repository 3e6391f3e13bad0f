"""The change log: one row for each write, committed together with it. It is read from a cursor on: by its publisher, and by
readers that keep a copy of all providers.

PostgreSQL numbers rows before their commit, so a reader that went by numbers would miss a row that commits late. Its
cursor is a snapshot instead: the next reading takes each row whose transaction that snapshot did not see. SQLite has one
writer at a time, so rows commit in the order of their numbers, and its cursor is a number.

Most times nothing or only usage has changed. So that case is cheap: one statement, or two.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from msgspec import Struct, convert
from sqlalchemy import Connection

from bus.clock import now
from bus.errors import Transient
from bus.message import ProviderId
from bus.messages.placement import (
    GroupMember,
    Holder,
    LogPosition,
    ProviderGone,
    ProviderState,
    ProviderUsage,
)
from bus.sql import PostgresSession, PostgresTransaction, SqliteDatabase, Transaction, driver_of
from placement_worker.store import FEED_ENTRIES, Unpublished
from placement_worker.store_sql.driver_rows import decode_used, portable, rows_of
from placement_worker.store_sql.log_cursors import Snapshot, has_seen, is_position
from placement_worker.store_sql.name_cache import CachedNames, CachedVocabulary, VocabularyCache
from placement_worker.store_sql.trees.stored_providers import read_states
from placement_worker.tables import change_log

ON_SQLITE = "INSERT INTO change_log (written_by, at, body) VALUES (0, ?, ?)"


class LogEntry(Struct, frozen=True, omit_defaults=True):
    """The changes of one write, as the change log stores them, with the internal ids of providers.

    `used` are providers of which only the usage changed, by claims; `providers` are those that changed otherwise. Their
    states are read when the entry is published, so that many writes to a provider make one message.
    """

    providers: tuple[int, ...] = ()
    used: tuple[int, ...] = ()
    gone: tuple[ProviderGone, ...] = ()
    claimed: tuple[Holder, ...] = ()
    ended: tuple[Holder, ...] = ()
    joined: tuple[GroupMember, ...] = ()
    left: tuple[Holder, ...] = ()


_UNCHANGED = LogEntry()
_encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(LogEntry).decode
# internal id, id, base, revision, generation, used, consumers
_decode_usage = msgspec.json.Decoder(list[tuple[int, UUID, int, int, int, str, int]]).decode


def body_of(entry: LogEntry) -> bytes | None:
    """The entry of the change log as it is stored; None if nothing changed."""
    return None if entry == _UNCHANGED else _encode(entry)


def _joined(bodies: Sequence[bytes]) -> LogEntry:
    """Decode these entries of the change log, and join them into one entry, whose lists have all their items."""
    if not bodies:
        return _UNCHANGED
    entries = [decode(body) for body in bodies]
    return LogEntry(
        *[
            tuple([one for entry in entries for one in getattr(entry, name)])
            for name in LogEntry.__struct_fields__
        ]
    )


def append(connection: Connection, entry: LogEntry) -> None:
    body = body_of(entry)
    if body is None:
        return
    on_postgresql = connection.dialect.name == "postgresql"
    written_by = sa.func.pg_current_xact_id() if on_postgresql else sa.literal(0)
    connection.execute(
        sa.insert(change_log).values(written_by=written_by, at=now(), body=body),
    )


# Reading

# Few transactions are missed by the cursor. Later ones are read in the order of their ids, and each as a whole, so that a
# snapshot can express how far the reading came. Then: how far the log was pruned; and whether the cursor is ahead of this
# database, as after a restore or with a cursor of another database.
_READ_ON_POSTGRESQL = """
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

# And what claims have changed of the providers that these entries name: in one statement, and so of one moment.
_AND_USAGE = """, (
    SELECT json_agg(json_build_array(id, uuid, base, revision, generation, used, consumers) ORDER BY id)::text
    FROM providers WHERE id = ANY(ARRAY(
        SELECT json_array_elements_text(convert_from(body, 'UTF8')::json -> 'used')::bigint
        FROM (SELECT body FROM missed UNION ALL SELECT body FROM page) AS unseen
    ))
)
"""
_READ_WITH_USAGE = _READ_ON_POSTGRESQL + _AND_USAGE

_READ_ON_SQLITE = "SELECT position, body FROM change_log WHERE position > ? ORDER BY position LIMIT ?"
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
    entry: LogEntry
    is_cut: bool = False


async def read_log(transaction: Transaction, since: str, entries_max: int = ALL_ENTRIES) -> LogRead | None:
    """Read the entries of the change log that were not committed when this cursor was taken.

    None if the log no longer has all of them, or if the cursor is of another database.
    """
    if not isinstance(transaction, PostgresTransaction):
        return await transaction.run(_log_of_file, since, entries_max) if is_position(since) else None
    if Snapshot.of(since) is None:
        return None
    (row,) = await transaction.fetch(_READ_ON_POSTGRESQL, since, entries_max)
    return _log_of_row(row, since, entries_max)


def _log_of_row(row: Sequence[Any], since: str, entries_max: int) -> LogRead | None:
    now, count, last, bodies, forgotten, is_ahead, *_ = row
    if is_ahead or not has_seen(since, forgotten or ""):
        return None
    is_cut = count >= entries_max
    snapshot = Snapshot.of(now)
    assert snapshot is not None, f"PostgreSQL's own snapshot can be parsed: {now!r}"
    cursor = str(snapshot.before(last + 1)) if is_cut else now
    return LogRead(cursor, _joined(bodies), is_cut)


def _log_of_file(connection: Connection, since: str, entries_max: int) -> LogRead | None:
    driver, position = driver_of(connection), int(since)
    forgotten, last = driver.execute(_REACH_ON_SQLITE).fetchone()
    pruned = int(forgotten or 0)
    if not pruned <= position <= max(pruned, last):
        return None
    rows = driver.execute(_READ_ON_SQLITE, (position, entries_max)).fetchall() if last > position else []
    is_cut = len(rows) == entries_max
    cursor = rows[-1][0] if is_cut else max(pruned, last)
    return LogRead(str(cursor), _joined([body for _, body in rows]), is_cut)


async def changes_since(
    transaction: Transaction, vocabulary: CachedVocabulary, since: str
) -> Unpublished | None:
    read = await read_log(transaction, since)
    return None if read is None else await _unpublished(transaction, vocabulary, read)


async def unchanged_since(transaction: Transaction, since: str) -> str | None:
    """The cursor of now, if the log has nothing since this one; None if it has, or if it does not reach back so far."""
    read = await read_log(transaction, since, 1)
    return read.cursor if read is not None and read.entry == _UNCHANGED and not read.is_cut else None


async def usage_since(
    transaction: Transaction, vocabulary: CachedVocabulary, since: str
) -> Unpublished | None:
    """As `changes_since`, by one statement of PostgreSQL. None if more has changed than the usage of providers."""
    if Snapshot.of(since) is None:
        return None
    (row,) = await transaction.fetch(_READ_WITH_USAGE, since, ALL_ENTRIES)
    read = _log_of_row(row, since, ALL_ENTRIES)
    if read is None or read.entry.providers or read.entry.gone:
        return None
    rows = _decode_usage(row[6] or "[]")
    ids = [each[1] for each in rows]
    return _joined_with(read, await _usage_of(transaction, vocabulary.classes, rows, ids))


async def _unpublished(transaction: Transaction, vocabulary: CachedVocabulary, read: LogRead) -> Unpublished:
    """The providers that these log entries name, with their current state, and everything else in the entries.

    After claims alone, which is the usual case, this takes one statement.
    """
    changed = set(read.entry.providers)
    providers = await read_states(transaction, vocabulary, changed)
    rows = await rows_of(transaction, _READ_USAGE, set(read.entry.used) - changed)
    ids = convert([row[1] for row in rows], list[UUID])
    return _joined_with(read, await _usage_of(transaction, vocabulary.classes, rows, ids), providers)


def _joined_with(
    read: LogRead, usage: tuple[ProviderUsage, ...], providers: tuple[ProviderState, ...] = ()
) -> Unpublished:
    entry = read.entry
    return Unpublished(
        cursor=read.cursor,
        providers=providers,
        gone=entry.gone,
        usage=usage,
        claimed=entry.claimed,
        ended=entry.ended,
        joined=entry.joined,
        left=entry.left,
        is_cut=read.is_cut,
    )


async def _usage_of(
    transaction: Transaction, classes: CachedNames, rows: Sequence[Any], ids: Sequence[UUID]
) -> tuple[ProviderUsage, ...]:
    used = [decode_used(row[5]) for row in rows]
    names = await classes.naming(transaction, {class_id for amounts in used for class_id in amounts})
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


# Publishing

# If a crash of the server loses a mark, some messages are published again, and nothing else happens. So the publisher
# does not wait until the mark is on disk.
_MARK_ON_POSTGRESQL = """
WITH lazily AS (SELECT set_config('synchronous_commit', 'off', true))
UPDATE feed SET position = $2, cursor = $3 FROM lazily WHERE term = $1 RETURNING 1
"""
_MARK_ON_SQLITE = "UPDATE feed SET position = ?2, cursor = ?3 WHERE term = ?1 RETURNING 1"


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

    async def read(self, entries_max: int = FEED_ENTRIES, *, is_poll: bool = False) -> Unpublished:
        """Read the next changes to publish. All of them come from one database snapshot."""
        if is_poll and isinstance(self._session, PostgresSession):
            async with self._session.reading_each() as statements:
                if (cursor := await unchanged_since(statements, self._cursor)) is not None:
                    return Unpublished(cursor=cursor)
        vocabulary = CachedVocabulary(self._known)
        async with self._session.reading_by_keys() as transaction:
            read = await read_log(transaction, self._cursor, entries_max)
            assert read is not None, f"only what is published is pruned; this is not: {self._cursor}"
            found = await _unpublished(transaction, vocabulary, read)
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
