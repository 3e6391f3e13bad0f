"""The books in pages: all providers, those that changed since a cursor, and how late each of them is."""

import re
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from bus.messages.placement import LogPosition, RevisionsPage, SnapshotPage
from placement_worker.store_sql.feed import (
    come_to,
    entries_since,
    gone_in,
    is_ahead,
    touched_in,
    unseen_by,
)
from placement_worker.store_sql.names import Vocabulary
from placement_worker.store_sql.states import Qualities, read_page, read_providers
from placement_worker.tables import change_log, feed, providers

# As PostgreSQL writes a snapshot: what it sees all before, what it sees nothing from, and what it misses in between.
_SNAPSHOT = re.compile(r"(\d{1,18}):(\d{1,18}):((?:\d{1,18},)*\d{1,18})?", re.ASCII)
_POSITION = re.compile(r"\d{1,18}", re.ASCII)


def snapshot_page(connection: Connection, vocabulary: Vocabulary, after: int, limit: int) -> SnapshotPage:
    # One more than asked tells whether there is another page.
    found = read_page(connection, vocabulary, after, limit + 1)
    page = found[:limit]
    return SnapshotPage(
        providers=page,
        published=_published(connection),
        next=page[-1].internal if len(found) > limit else None,
        cursor=come_to(connection),
    )


def changes_page(
    connection: Connection, vocabulary: Vocabulary, since: str, after: int, limit: int
) -> SnapshotPage | None:
    if not is_remembered(connection, since):
        return None
    entries = entries_since(connection, since)
    touched = [internal for internal in touched_in(entries) if internal > after]
    page = touched[:limit]
    return SnapshotPage(
        providers=read_providers(connection, vocabulary, page, Qualities()),
        published=_published(connection),
        next=page[-1] if len(touched) > limit else None,
        since=since,
        cursor=come_to(connection),
        gone=gone_in(entries),
    )


def revisions_page(connection: Connection, after: int, limit: int) -> RevisionsPage:
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


def prune_log(connection: Connection, logged_before: datetime) -> int:
    """What was published, and is older than that. Afterwards it is known how far nobody can be told any more."""
    cursor = connection.scalar(sa.select(feed.c.cursor)) or ""
    on_postgresql = connection.dialect.name == "postgresql"
    number = (
        sa.cast(sa.cast(change_log.c.written_by, sa.String), sa.BigInteger)
        if on_postgresql
        else change_log.c.position
    )
    pruned = connection.scalars(
        sa.delete(change_log)
        .where(change_log.c.at < logged_before, ~unseen_by(connection, cursor))
        .returning(number)
    ).all()
    if pruned:
        last = max(pruned)
        connection.execute(sa.update(feed).where(feed.c.pruned < last).values(pruned=last))
    return len(pruned)


def _published(connection: Connection) -> LogPosition:
    term, position = connection.execute(sa.select(feed.c.term, feed.c.position)).one()
    return LogPosition(term=term, position=position)


def is_remembered(connection: Connection, since: str) -> bool:
    """Does the log still have all that this cursor has not seen? A cursor of other books, or of these before they were
    restored, may be ahead of them.
    """
    pruned = connection.scalar(sa.select(feed.c.pruned)) or 0
    if connection.dialect.name != "postgresql":
        return is_position(since) and pruned <= int(since) <= int(come_to(connection))
    sees_before = seen_whole(since)
    return sees_before is not None and pruned < sees_before and not is_ahead(connection, since)


def is_position(cursor: str) -> bool:
    """Can this be a cursor of SQLite's?"""
    return _POSITION.fullmatch(cursor) is not None


def seen_whole(cursor: str) -> int | None:
    """The transaction before which this snapshot of PostgreSQL's sees all; None if it is no such snapshot."""
    match = _SNAPSHOT.fullmatch(cursor)
    if match is None:
        return None
    missed = [int(number) for number in (match[3] or "").split(",") if number]
    first, last = int(match[1]), int(match[2])
    in_order = [first, *missed, last]
    return first if first > 0 and in_order == sorted(in_order) else None
