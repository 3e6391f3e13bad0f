"""The change log: one row for each write, committed together with it. It is read from a cursor on: by its publisher, and by
readers that keep a copy of all providers.

PostgreSQL numbers rows before their commit, so a reader that went by numbers would miss a row that commits late. Its
cursor is a snapshot instead: the next reading takes each row whose transaction that snapshot did not see. SQLite has one
writer at a time, so rows commit in the order of their numbers, and its cursor is a number.

Most times nothing or only usage has changed. So that case is cheap: one statement.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Self
from uuid import UUID

import msgspec
import sqlalchemy as sa
from msgspec import Struct, convert
from sqlalchemy import ColumnElement, Connection
from sqlalchemy.types import UserDefinedType

from bus.messages.placement import LogPosition, RevisionsPage, SnapshotPage
from engine.inventories import ProviderId, ProviderState, ProviderUsage
from kit.clock import now
from kit.errors import Transient
from kit.sql import (
    PostgresDatabase,
    PostgresSession,
    PostgresTransaction,
    SqliteDatabase,
    Transaction,
    by_keys,
    driver_of,
    moment_text,
)
from placement_worker.settings import CHANGES_MAX, FEED_ENTRIES
from placement_worker.store import LoggedChanges, Unpublished
from placement_worker.store_sql.names import (
    CachedNames,
    CachedVocabulary,
    VocabularyCache,
)
from placement_worker.store_sql.rows import decode_used
from placement_worker.store_sql.trees import read_states
from placement_worker.tables import change_log, feed, providers

# Cursors into the change log, as readers keep them: on PostgreSQL a snapshot, on SQLite a position.


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


_ON_POSTGRESQL = "INSERT INTO change_log (written_by, at, body) VALUES (pg_current_xact_id(), $1, $2)"
ON_SQLITE = "INSERT INTO change_log (written_by, at, body) VALUES (0, ?, ?)"


class LogEntry(LoggedChanges, frozen=True, kw_only=True, omit_defaults=True):
    """The changes of one write, as the change log stores them, with the internal ids of providers.

    `used` are providers of which only the usage changed, by claims; `providers` are those that changed otherwise. Their
    states are read when the entry is published, so that many writes to a provider make one message.
    """

    providers: tuple[int, ...] = ()
    used: tuple[int, ...] = ()


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
        **{
            name: tuple([one for entry in entries for one in getattr(entry, name)])
            for name in LogEntry.__struct_fields__
        }
    )


async def append(transaction: Transaction, entry: LogEntry) -> None:
    body = body_of(entry)
    if body is None:
        return
    if isinstance(transaction, PostgresTransaction):
        await transaction.change(_ON_POSTGRESQL, now(), body)
    else:
        await transaction.fetch(ON_SQLITE, moment_text(now()), body)


# Reading

# Few transactions are missed by the cursor. Later ones are read in the order of their ids, and each as a whole, so that a
# snapshot can express how far the reading came. Then: how far the log was pruned; and whether the cursor is ahead of this
# database, as after a restore or with a cursor of another database.
_READ = """
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
_READ_WITH_USAGE = _READ + _AND_USAGE
# For a reader that wants all or nothing, so that no transaction must be whole.
_READ_ALL, _READ_ALL_WITH_USAGE = (each.replace("WITH TIES", "ONLY") for each in (_READ, _READ_WITH_USAGE))

_READ_ON_SQLITE = "SELECT position, body FROM change_log WHERE position > ? ORDER BY position LIMIT ?"
# How far the log was pruned, and how far it has come.
_REACH_ON_SQLITE = """
SELECT coalesce((SELECT forgotten FROM feed), ''), coalesce((SELECT max(position) FROM change_log), 0)
"""

# Only what claims change of providers: most of what the feed publishes, so it is as small as possible.
_READ_USAGE = by_keys(
    "SELECT id, uuid, base, revision, generation, used, consumers FROM providers"
    " WHERE id = ANY ($1::text::bigint[]) ORDER BY id + 0"
)

# So many rows are deleted by one transaction: the log may have grown for long.
PRUNED_MAX = 10_000


class LogRead(Struct, frozen=True):
    """The entries of one reading of the change log, combined into `entry`.

    `cursor` is how far the reading came. `is_cut`: it stopped at its limit, so there may be more.
    """

    cursor: str
    entry: LogEntry
    is_cut: bool = False


async def read_log(transaction: Transaction, since: str, entries_max: int | None = None) -> LogRead | None:
    """Read the entries of the change log that were not committed when this cursor was taken: at most as many as `entries_max`, and the
    others of their transactions.

    None if the log no longer has all of them, if the cursor is of another database, or if without `entries_max` there are too many.
    """
    if not isinstance(transaction, PostgresTransaction):
        return await transaction.run(_log_of_file, since, entries_max) if is_position(since) else None
    if Snapshot.of(since) is None:
        return None
    (row,) = await transaction.fetch(_READ if entries_max else _READ_ALL, since, entries_max or CHANGES_MAX)
    return _log_of_row(row, since, entries_max)


def _log_of_row(row: Sequence[Any], since: str, entries_max: int | None) -> LogRead | None:
    now, count, last, bodies, forgotten, is_ahead, *_ = row
    is_cut = count >= (entries_max or CHANGES_MAX)
    if is_ahead or not has_seen(since, forgotten or "") or (is_cut and not entries_max):
        return None
    snapshot = Snapshot.of(now)
    assert snapshot is not None, f"PostgreSQL's own snapshot can be parsed: {now!r}"
    cursor = str(snapshot.before(last + 1)) if is_cut else now
    return LogRead(cursor, _joined(bodies), is_cut)


def _log_of_file(connection: Connection, since: str, entries_max: int | None) -> LogRead | None:
    driver, position = driver_of(connection), int(since)
    forgotten, last = driver.execute(_REACH_ON_SQLITE).fetchone()
    pruned = int(forgotten or 0)
    if not pruned <= position <= max(pruned, last):
        return None
    limit = entries_max or CHANGES_MAX
    rows = driver.execute(_READ_ON_SQLITE, (position, limit)).fetchall() if last > position else []
    is_cut = len(rows) == limit
    if is_cut and not entries_max:
        return None
    cursor = rows[-1][0] if is_cut else max(pruned, last)
    return LogRead(str(cursor), _joined([body for _, body in rows]), is_cut)


async def changes_since(
    transaction: Transaction, vocabulary: CachedVocabulary, since: str
) -> Unpublished | None:
    read = await read_log(transaction, since)
    return None if read is None else await _unpublished(transaction, vocabulary, read)


async def usage_since(
    session: PostgresDatabase | PostgresSession,
    vocabulary: CachedVocabulary,
    since: str,
    entries_max: int | None = None,
) -> Unpublished | None:
    """As `changes_since`, by one statement of PostgreSQL: a transaction would be three more round trips to the server. None if
    more has changed than the usage of providers.
    """
    if Snapshot.of(since) is None:
        return None
    async with session.reading_each() as statements:
        (row,) = await statements.fetch(
            _READ_WITH_USAGE if entries_max else _READ_ALL_WITH_USAGE, since, entries_max or CHANGES_MAX
        )
        return await _usage_in(statements, vocabulary, row, _log_of_row(row, since, entries_max))


async def _usage_in(
    transaction: Transaction, vocabulary: CachedVocabulary, row: Sequence[Any], read: LogRead | None
) -> Unpublished | None:
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
    rows = await _READ_USAGE.fetch(transaction, set(read.entry.used) - changed)
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


# Pages of providers: all of them, those that changed since a cursor, and their revisions.


async def snapshot_page(
    transaction: Transaction, vocabulary: CachedVocabulary, after: int, limit: int
) -> SnapshotPage:
    following = await transaction.run(revisions_page, after, limit)
    published, cursor = await transaction.run(_reach)
    return SnapshotPage(
        providers=await read_states(transaction, vocabulary, following.internals),
        published=published,
        next=following.next,
        cursor=cursor,
    )


async def changes_page(
    transaction: Transaction, vocabulary: CachedVocabulary, since: str, after: int, limit: int
) -> SnapshotPage | None:
    read = await read_log(transaction, since)
    if read is None:
        return None
    touched = {*read.entry.providers, *read.entry.used}
    following = sorted(internal for internal in touched if internal > after)
    page = following[:limit]
    published, _ = await transaction.run(_reach)
    return SnapshotPage(
        providers=await read_states(transaction, vocabulary, page),
        published=published,
        next=page[-1] if len(following) > limit else None,
        since=since,
        cursor=read.cursor,
        gone=read.entry.gone,
        joined=read.entry.joined,
        left=read.entry.left,
    )


def revisions_page(connection: Connection, after: int, limit: int) -> RevisionsPage:
    # One row more than requested tells whether there is another page.
    rows = connection.execute(
        sa.select(providers.c.id, providers.c.revision)
        .where(providers.c.id > after)
        .order_by(providers.c.id)
        .limit(limit + 1)
    ).all()
    page = rows[:limit]
    return RevisionsPage(
        internals=tuple([row.id for row in page]),
        revisions=tuple([row.revision for row in page]),
        next=page[-1].id if len(rows) > limit else None,
    )


def prune_log(connection: Connection, logged_before: datetime, *, is_published: bool = True) -> int:
    """Delete some of the log rows that are older than this time, and note how far the log is pruned. Unless the log `is_published`, by
    whichever process, also those that were not: a later leader begins behind them, with a new term, at which readers ask what they missed.
    """
    (published,) = connection.execute(sa.select(feed.c.cursor)).one()
    seen = published if is_published else come_to(connection)
    on_postgresql = connection.dialect.name == "postgresql"
    number = (
        sa.cast(sa.cast(change_log.c.written_by, sa.String), sa.BigInteger)
        if on_postgresql
        else change_log.c.position
    )
    old = sa.select(change_log.c.position).where(
        change_log.c.at < logged_before, ~unseen_by(connection, seen)
    )
    some = old.order_by(change_log.c.position).limit(PRUNED_MAX)
    pruned = connection.scalars(
        sa.delete(change_log).where(change_log.c.position.in_(some)).returning(number)
    ).all()
    if pruned:
        last = max(pruned)
        # The publisher and other pruners have gone on meanwhile, perhaps: what they wrote may not go back.
        stored = sa.select(feed.c.cursor, feed.c.forgotten).with_for_update()
        published, forgotten = connection.execute(stored).one()
        seen = published if is_published else come_to(connection)
        reached = str(
            _forgotten_by(seen, forgotten, last) if on_postgresql else max(last, int(forgotten or 0))
        )
        is_behind = (
            not has_seen(published or NOTHING_SEEN, reached)
            if on_postgresql
            else int(published or 0) < int(reached)
        )
        cursor = reached if is_behind else published
        connection.execute(sa.update(feed).values(forgotten=reached, cursor=cursor))
    return len(pruned)


def _forgotten_by(published: str, forgotten: str, last: int) -> Snapshot:
    """The snapshot that covers the transactions of all log rows pruned so far; `last` is the last one of those just
    pruned.

    It is the publisher's snapshot, ended after those transactions: only rows that it has seen are pruned. If nobody publishes, it is that of
    the pruner.
    """
    seen, before = Snapshot.of(published), Snapshot.of(forgotten or NOTHING_SEEN)
    assert seen is not None
    assert before is not None
    return seen.before(max(before.end, last + 1))


def _reach(connection: Connection) -> tuple[LogPosition, str]:
    """How far the log is published, and a cursor that covers everything this transaction sees of it."""
    term, position = connection.execute(sa.select(feed.c.term, feed.c.position)).one()
    return LogPosition(term=term, position=position), come_to(connection)


# Publishing

# If a crash of the server loses a mark, some messages are published again, and nothing else happens. So the publisher
# does not wait until the mark is on disk.
_MARK_ON_POSTGRESQL = """
WITH lazily AS (SELECT set_config('synchronous_commit', 'off', true))
UPDATE feed SET position = $2, cursor = $3 FROM lazily WHERE term = $1 RETURNING 1
"""
_MARK_ON_SQLITE = "UPDATE feed SET position = ?2, cursor = ?3 WHERE term = ?1 RETURNING 1"


class ChangeFeed:
    """The change log, as the one process reads it that publishes it, until another one takes over. Each process that becomes
    the leader starts a new term.
    """

    def __init__(
        self,
        session: SqliteDatabase | PostgresSession,
        known: VocabularyCache,
        published: LogPosition,
        cursor: str,
    ) -> None:
        self._session = session
        self._known = known
        # The position in the change log of the last message that is known to be published.
        self.published = published
        self._cursor = cursor

    async def read(self, entries_max: int = FEED_ENTRIES) -> Unpublished:
        """Read committed entries that are not marked as published yet: as many as `entries_max`, or a few more. All of them come
        from one database snapshot.

        Entries of one transaction come together, and so do those that an earlier reading had to skip. An entry that
        commits late is found by a later reading.
        """
        with self._known.begun() as vocabulary:
            if isinstance(self._session, PostgresSession):
                usage = await usage_since(self._session, vocabulary, self._cursor, entries_max)
                if usage is not None:
                    return usage
            async with self._session.reading_by_keys() as transaction:
                read = await read_log(transaction, self._cursor, entries_max)
                assert read is not None, f"only what is published is pruned; this is not: {self._cursor}"
                return await _unpublished(transaction, vocabulary, read)

    async def mark(self, position: int, cursor: str) -> None:
        """Note that everything up to this cursor is published, the last of it at this position."""
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
