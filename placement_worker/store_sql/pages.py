"""Read providers in pages: all of them, those that changed since a cursor, and their revisions."""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from bus.messages.placement import LogPosition, RevisionsPage, SnapshotPage
from placement_worker.store_sql.cursors import NOTHING_SEEN, Snapshot, has_seen, is_position
from placement_worker.store_sql.feed import (
    come_to,
    entries_since,
    gone_in,
    is_ahead,
    touched_in,
    unseen_by,
)
from placement_worker.store_sql.name_cache import CachedVocabulary
from placement_worker.store_sql.provider_states import read_page, read_providers
from placement_worker.tables import change_log, feed, providers


def snapshot_page(
    connection: Connection, vocabulary: CachedVocabulary, after: int, limit: int
) -> SnapshotPage:
    # One row more than requested tells whether there is another page.
    found = read_page(connection, vocabulary, after, limit + 1)
    page = found[:limit]
    return SnapshotPage(
        providers=page,
        published=_published(connection),
        next=page[-1].internal if len(found) > limit else None,
        cursor=come_to(connection),
    )


def changes_page(
    connection: Connection, vocabulary: CachedVocabulary, since: str, after: int, limit: int
) -> SnapshotPage | None:
    if not is_remembered(connection, since):
        return None
    entries = entries_since(connection, since)
    touched = [internal for internal in touched_in(entries) if internal > after]
    page = touched[:limit]
    return SnapshotPage(
        providers=read_providers(connection, vocabulary, page),
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
    """Delete log rows that are published and older than this, and note how far the log is pruned."""
    published, forgotten = connection.execute(sa.select(feed.c.cursor, feed.c.forgotten)).one()
    on_postgresql = connection.dialect.name == "postgresql"
    number = (
        sa.cast(sa.cast(change_log.c.written_by, sa.String), sa.BigInteger)
        if on_postgresql
        else change_log.c.position
    )
    pruned = connection.scalars(
        sa.delete(change_log)
        .where(change_log.c.at < logged_before, ~unseen_by(connection, published))
        .returning(number)
    ).all()
    if pruned:
        last = max(pruned)
        reached = (
            _forgotten_by(published, forgotten, last) if on_postgresql else max(last, int(forgotten or 0))
        )
        connection.execute(sa.update(feed).values(forgotten=str(reached)))
    return len(pruned)


def _forgotten_by(published: str, forgotten: str, last: int) -> Snapshot:
    """Only published rows are pruned, so no transaction that this snapshot missed wrote any of them."""
    seen, before = Snapshot.of(published), Snapshot.of(forgotten or NOTHING_SEEN)
    assert seen is not None
    assert before is not None
    return seen.before(max(before.end, last + 1))


def _published(connection: Connection) -> LogPosition:
    term, position = connection.execute(sa.select(feed.c.term, feed.c.position)).one()
    return LogPosition(term=term, position=position)


def is_remembered(connection: Connection, since: str) -> bool:
    """Does the log still have everything that this cursor has not seen? A cursor of another database, or of this one before a
    restore, may be ahead of the log.
    """
    forgotten = connection.scalar(sa.select(feed.c.forgotten)) or ""
    if connection.dialect.name != "postgresql":
        return is_position(since) and int(forgotten or 0) <= int(since) <= int(come_to(connection))
    return has_seen(since, forgotten) and not is_ahead(connection, since)
