"""Read what consumers hold: by consumer, by provider, by project and user, and for an audit. Nothing is locked."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row

from bus.messages.administration import ConsumerState, TypeUsage
from bus.messages.audit import BookEntry
from bus.messages.placement import MembersPage
from engine.inventories import ConsumerId, GroupMember, ProviderId, ResourceAmount
from kit.sql import Transaction, among
from placement_worker.core.shares import Owner
from placement_worker.store import Holdings
from placement_worker.store_sql import log
from placement_worker.store_sql.names import CachedVocabulary
from placement_worker.store_sql.rows import NOTHING, Held, Statement, decode_held, id_of, rows_of
from placement_worker.tables import TOMBSTONE, change_log, consumers, holders, providers, server_groups

# With a row for each provider that gives something. Nova's computes ask for this a dozen times for each instance that they get.
_CONSUMER = Statement(
    "SELECT kept.project_id, kept.user_id, kept.type, kept.generation, kept.attempt, kept.held, providers.id, providers.uuid,"
    " providers.generation"
    " FROM consumers AS kept CROSS JOIN LATERAL json_object_keys(kept.held::json) AS giver (id)"
    " LEFT JOIN providers ON providers.id = ANY (ARRAY[giver.id::bigint])"
    " WHERE kept.uuid = ANY ($1::text::uuid[])",
    "SELECT kept.project_id, kept.user_id, kept.type, kept.generation, kept.attempt, kept.held, providers.id, providers.uuid,"
    " providers.generation"
    " FROM consumers AS kept CROSS JOIN json_each(kept.held) AS giver"
    " LEFT JOIN providers ON providers.id = CAST(giver.key AS INTEGER)"
    " WHERE kept.uuid IN (SELECT value FROM json_each(?))",
)


async def holdings(
    transaction: Transaction, vocabulary: CachedVocabulary, which: ConsumerId
) -> Holdings | None:
    rows = await rows_of(transaction, _CONSUMER, (which,))
    if not rows:
        return None
    project, user, type_, generation, attempt, text, *_ = rows[0]
    held = decode_held(text)
    names = await vocabulary.classes.naming(transaction, {one for used in held.values() for one in used})
    ids = {row[6]: ProviderId(id_of(row[7])) for row in rows if row[7]}
    consumer = ConsumerState(
        id=which,
        project=project,
        user=user,
        type=type_,
        generation=generation,
        attempt=attempt,
        held=_amounts(held, ids, names),
    )
    return Holdings(consumer, {ids[row[6]]: row[8] for row in rows if row[7]})


def holders_of(
    connection: Connection,
    vocabulary: CachedVocabulary,
    provider: ProviderId,
    after: ConsumerId | None,
    limit: int,
) -> tuple[ConsumerState, ...]:
    query = (
        sa.select(consumers)
        .join(holders, holders.c.consumer_id == consumers.c.id)
        .join(providers, providers.c.id == holders.c.provider_id)
        .where(providers.c.uuid == provider, consumers.c.held != NOTHING)
        .order_by(consumers.c.uuid)
        .limit(limit)
    )
    if after is not None:
        query = query.where(consumers.c.uuid > after)
    return tuple([_state(row, held) for row, held in _read(connection, vocabulary, query)])


def usages(
    connection: Connection, vocabulary: CachedVocabulary, project: str, user: str
) -> tuple[TypeUsage, ...]:
    """Sum up what the consumers of a project, or of one of its users, hold, by consumer type.

    The database counts consumers that hold the same, and their JSON is read here. That costs less than to let the
    database unfold the JSON into a row for each amount.
    """
    theirs = [consumers.c.held != NOTHING, consumers.c.project_id == project]
    if user:
        theirs.append(consumers.c.user_id == user)
    alike = sa.select(consumers.c.type, consumers.c.held, sa.func.count()).where(*theirs)
    counts: Counter[str] = Counter()
    used: dict[str, Counter[int]] = {}
    for kind, text, count in connection.execute(alike.group_by(consumers.c.type, consumers.c.held)):
        counts[kind] += count
        of_kind = used.setdefault(kind, Counter())
        for of_provider in decode_held(text).values():
            for class_id, amount in of_provider.items():
                of_kind[class_id] += amount * count
    classes = {class_id for of_kind in used.values() for class_id in of_kind}
    names = vocabulary.classes.naming_now(connection, classes)
    return tuple(
        TypeUsage(
            type=kind,
            consumers=counts[kind],
            used={names[class_id]: amount for class_id, amount in used[kind].items()},
        )
        for kind in sorted(counts)
    )


def books_page(
    connection: Connection, vocabulary: CachedVocabulary, after: ConsumerId | None, limit: int
) -> tuple[BookEntry, ...]:
    """A page of the consumers that hold something, with the fields that an audit compares."""
    query = sa.select(consumers).where(consumers.c.held != NOTHING)
    if after is not None:
        query = query.where(consumers.c.uuid > after)
    rows = _read(connection, vocabulary, query.order_by(consumers.c.uuid).limit(limit))
    return tuple([_entry(row, held) for row, held in rows])


def book_entries(
    connection: Connection,
    vocabulary: CachedVocabulary,
    named: Sequence[ConsumerId],
    new_since: datetime | None,
) -> tuple[BookEntry, ...]:
    query = sa.select(consumers).where(among(connection, consumers.c.uuid, named))
    new = frozenset[ConsumerId]() if new_since is None else _claimed_since(connection, new_since)
    rows = _read(connection, vocabulary, query.order_by(consumers.c.uuid))
    return tuple([_entry(row, held, is_new=row.uuid in new) for row, held in rows])


def _claimed_since(connection: Connection, since: datetime) -> frozenset[ConsumerId]:
    entries = connection.scalars(sa.select(change_log.c.body).where(change_log.c.at >= since))
    return frozenset(holder.consumer for body in entries for holder in log.decode(body).claimed)


def _read(
    connection: Connection, vocabulary: CachedVocabulary, query: sa.Select[Any]
) -> list[tuple[Row[Any], tuple[ResourceAmount, ...]]]:
    """The rows of these consumers, each with what it holds.

    Amounts of providers that do not exist are left out: the audit of the tables reports them.
    """
    rows = [(row, decode_held(row.held)) for row in connection.execute(query)]
    classes = {one for _, held in rows for used in held.values() for one in used}
    names = vocabulary.classes.naming_now(connection, classes)
    numbers = sorted({number for _, held in rows for number in held})
    found = sa.select(providers.c.id, providers.c.uuid).where(among(connection, providers.c.id, numbers))
    ids = {number: ProviderId(uuid) for number, uuid in connection.execute(found)} if numbers else {}
    return [(row, _amounts(held, ids, names)) for row, held in rows]


def _amounts(
    held: Held, ids: Mapping[int, ProviderId], names: Mapping[int, str]
) -> tuple[ResourceAmount, ...]:
    return tuple(
        [
            ResourceAmount(provider=ids[number], resource=names[class_id], amount=amount)
            for number, used in held.items()
            if number in ids
            for class_id, amount in used.items()
        ]
    )


def _state(row: Row[Any], held: tuple[ResourceAmount, ...]) -> ConsumerState:
    return ConsumerState(
        id=row.uuid,
        project=row.project_id,
        user=row.user_id,
        type=row.type,
        generation=row.generation,
        attempt=row.attempt,
        held=held,
    )


def _entry(row: Row[Any], held: tuple[ResourceAmount, ...], *, is_new: bool = False) -> BookEntry:
    return BookEntry(
        id=row.uuid,
        type=row.type,
        project=row.project_id,
        user=row.user_id,
        cell=row.cell,
        generation=row.generation,
        attempt=row.attempt,
        ended=row.ended_at is not None,
        host=row.host,
        group=row.server_group,
        held=held,
        is_new=is_new,
    )


def tombstones(connection: Connection, owners: Sequence[Owner], limit: int) -> dict[Owner, int]:
    return {owner: _tombstones_of(connection, *owner, limit) for owner in owners}


def _tombstones_of(connection: Connection, cell: str, project: str, limit: int) -> int:
    some = (
        sa.select(consumers.c.id)
        .where(consumers.c.cell == cell, consumers.c.project_id == project, TOMBSTONE)
        .limit(limit)
    )
    return int(connection.scalar(sa.select(sa.func.count()).select_from(some.subquery())) or 0)


# Members of server groups.


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
