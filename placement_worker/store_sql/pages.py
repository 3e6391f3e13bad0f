"""Read providers in pages: all of them, those that changed since a cursor, and their revisions; and members of groups."""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from bus.messages.placement import GroupMember, LogPosition, MembersPage, RevisionsPage, SnapshotPage
from bus.sql import Transaction, among
from placement_worker.store_sql.log import read_log
from placement_worker.store_sql.log_cursors import NOTHING_SEEN, Snapshot, come_to, unseen_by
from placement_worker.store_sql.name_cache import CachedVocabulary
from placement_worker.store_sql.trees.stored_providers import read_states
from placement_worker.tables import change_log, consumers, feed, providers, server_groups


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


def members_page(connection: Connection, after: int, limit: int) -> MembersPage:
    number = consumers.c.id
    rows = connection.execute(
        sa.select(number, consumers.c.uuid, consumers.c.server_group, consumers.c.attempt, consumers.c.host)
        .where(consumers.c.server_group.is_not(None), consumers.c.host.is_not(None), number > after)
        # Most consumers are in no group: an index of all ids would be walked in vain.
        .order_by(number + 0)
        .limit(limit + 1)
    ).all()
    page = rows[:limit]
    return MembersPage(
        members=tuple(
            [
                GroupMember(group=row.server_group, consumer=row.uuid, attempt=row.attempt, host=row.host)
                for row in page
            ]
        ),
        next=page[-1].id if len(rows) > limit else None,
    )


def prune_groups(connection: Connection) -> int:
    """Delete server groups without members.

    They are locked first, and then looked at again: a claim may have joined one while the first statement waited.
    """
    is_empty = ~sa.exists().where(consumers.c.server_group == server_groups.c.uuid)
    empty = connection.scalars(
        sa.select(server_groups.c.uuid).where(is_empty).with_for_update(skip_locked=True)
    ).all()
    if not empty:
        return 0
    return connection.execute(
        sa.delete(server_groups).where(among(connection, server_groups.c.uuid, empty), is_empty)
    ).rowcount


def prune_log(connection: Connection, logged_before: datetime) -> int:
    """Delete the log rows that are published and older than this time, and note how far the log is pruned."""
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
    """The snapshot that covers the transactions of all log rows pruned so far; `last` is the last one of those just
    pruned.

    It is the publisher's snapshot, ended after those transactions: only rows that the publisher has seen are pruned.
    """
    seen, before = Snapshot.of(published), Snapshot.of(forgotten or NOTHING_SEEN)
    assert seen is not None
    assert before is not None
    return seen.before(max(before.end, last + 1))


def _reach(connection: Connection) -> tuple[LogPosition, str]:
    """How far the log is published, and a cursor that covers everything this transaction sees of it."""
    term, position = connection.execute(sa.select(feed.c.term, feed.c.position)).one()
    return LogPosition(term=term, position=position), come_to(connection)
