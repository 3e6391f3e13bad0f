"""What consumers hold, as it is read: by consumer, by provider, by project and user, and for an audit. And the quotas of projects."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row

from bus.messages.audit import BookEntry
from bus.messages.books import ConsumerState, TypeUsage
from bus.messages.placement import MembersPage
from engine.inventories import ConsumerId, GroupMember, ProviderId, QuotaState, ResourceAmount
from kit.errors import Transient
from kit.sql import RowColumns, Transaction, among, by_keys
from placement_worker.core.ledger import Quota, QuotaBook
from placement_worker.core.limits import QuotaKeys, counted
from placement_worker.settings import FEED_ENTRIES
from placement_worker.store import Holdings
from placement_worker.store_sql import log
from placement_worker.store_sql.names import CachedVocabulary, custom_of, existing_names
from placement_worker.store_sql.rows import (
    NOTHING,
    Held,
    decode_by_name,
    decode_held,
    id_of,
    kept_of,
    text_of,
)
from placement_worker.tables import (
    TOMBSTONE,
    change_log,
    consumers,
    holders,
    providers,
    quotas,
    resource_classes,
    server_groups,
)

# With a row for each provider that gives something. Nova's computes ask for this a dozen times for each instance that they get.
_CONSUMER = by_keys(
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
    rows = await _CONSUMER.fetch(transaction, (which,))
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
    """Sum up what the consumers of a project, or of one of its users, hold, by consumer type."""
    theirs = [consumers.c.project_id == project, *([consumers.c.user_id == user] if user else [])]
    counts: Counter[str] = Counter()
    used: dict[str, Counter[str]] = {}
    for row, sums in _alike(connection, vocabulary, (consumers.c.type,), *theirs):
        counts[row.type] += row.number
        _add(used.setdefault(row.type, Counter()), sums, row.number)
    return tuple(
        TypeUsage(type=kind, consumers=counts[kind], used=dict(used[kind])) for kind in sorted(counts)
    )


def _alike(
    connection: Connection,
    vocabulary: CachedVocabulary,
    columns: Sequence[sa.Column[Any]],
    *which: sa.ColumnElement[bool],
) -> Iterator[tuple[Any, Counter[str]]]:
    """Each kind of consumer that differs in these columns or in what it holds: its `number`, and the sums of what one holds.

    The database counts consumers that are alike, and their JSON is read here. That costs less than to let the database
    unfold the JSON into a row for each amount.
    """
    alike = (*columns, consumers.c.held)
    query = sa.select(*alike, sa.func.count().label("number")).where(consumers.c.held != NOTHING, *which)
    rows: Sequence[Any] = connection.execute(query.group_by(*alike)).all()
    held = [decode_held(row.held) for row in rows]
    classes = {one for each in held for used in each.values() for one in used}
    names = vocabulary.classes.naming_now(connection, classes)
    for row, of_one in zip(rows, held, strict=True):
        sums = Counter[str]()
        for used in of_one.values():
            _add(sums, {names[class_id]: amount for class_id, amount in used.items()}, 1)
        yield row, sums


def _add(sums: Counter[str], amounts: Mapping[str, int], times: int) -> None:
    for name, amount in amounts.items():
        sums[name] += amount * times


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
    entries = sa.select(change_log.c.position, change_log.c.body).where(change_log.c.at >= since)
    found, after = set[ConsumerId](), 0
    while rows := connection.execute(
        entries.where(change_log.c.position > after).order_by(change_log.c.position).limit(FEED_ENTRIES)
    ).all():
        found.update(holder.consumer for row in rows for holder in log.decode(row.body).claimed)
        after = rows[-1].position
    return frozenset(found)


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


def tombstones(connection: Connection, cells: Sequence[str], limit: int) -> dict[str, int]:
    return {cell: _tombstones_of(connection, cell, limit) for cell in cells}


def _tombstones_of(connection: Connection, cell: str, limit: int) -> int:
    some = sa.select(consumers.c.id).where(consumers.c.cell == cell, TOMBSTONE).limit(limit)
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


def prune_ended(connection: Connection, ended_before: datetime) -> int:
    over = sa.select(consumers.c.id).where(consumers.c.ended_at < ended_before)
    over = over.with_for_update(skip_locked=True)
    return connection.execute(sa.delete(consumers).where(consumers.c.id.in_(over))).rowcount


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


# Quotas of projects: their rows, and which projects have one.
#
# Most projects have none, and their claims must not pay for those that have. So each process keeps the list of limited projects
# in memory, with the highest id of a quota's row (claims.py). A batch with none of them reads and locks nothing. The statement that writes a
# batch also returns the highest id as it is then: if it is another one, the list was outdated, and the batch is tried again.
#
# That decides it for certain. A new row is made under a lock of the table `consumers` that waits for all transactions that have
# written consumers, and that none of them gets meanwhile. So a batch either was committed before, and is counted in the new
# row, or it sees the new row when it writes.

LAST_QUOTA = "(SELECT coalesce(max(id), 0) FROM quotas)"

# In the order of the projects. A row that was waited for is returned as it is then.
LOCK_QUOTAS = RowColumns(quotas, "project_id", "limits", "used").lock("project_id")
# It waits for all who write consumers, and they wait for it. Not long: they stand in line behind it meanwhile.
_COUNTING = (
    sa.text("SET LOCAL lock_timeout = '2s'"),
    sa.text("LOCK TABLE consumers IN SHARE ROW EXCLUSIVE MODE"),
)


async def lock_quotas(transaction: Transaction, vocabulary: CachedVocabulary, keys: QuotaKeys) -> QuotaBook:
    """Lock the quotas of these projects. A project that has none gets a row, which counts what the project uses now."""
    projects, classes = keys
    found = await LOCK_QUOTAS.fetch(transaction, projects)
    book = {project: quota_of(project, limits, used) for project, limits, used in found}
    if new := sorted(projects - book.keys()):
        book |= await transaction.run(_make, vocabulary, new)
    existing = await transaction.run(existing_names, resource_classes, custom_of(classes))
    return QuotaBook(book, existing)


def _make(connection: Connection, vocabulary: CachedVocabulary, projects: Sequence[str]) -> dict[str, Quota]:
    if connection.dialect.name == "postgresql":
        for statement in _COUNTING:
            connection.execute(statement)
    there = sa.select(quotas.c.project_id).where(among(connection, quotas.c.project_id, projects))
    if made := connection.scalars(there).all():
        raise Transient(f"project {made[0]} got its first limit meanwhile: the order is tried again")
    used = used_by_projects(connection, vocabulary, projects)
    made_now = {project: Quota(project, used=used.get(project, {})) for project in projects}
    rows = [
        {"project_id": project, "limits": NOTHING, "used": text_of(quota.used)}
        for project, quota in made_now.items()
    ]
    connection.execute(sa.insert(quotas), rows)
    return made_now


def write_quotas(connection: Connection, changed: Sequence[Quota]) -> None:
    """Write the limits of these quotas. One without a limit is deleted."""
    for quota in sorted(changed, key=lambda one: one.project):
        mine = quotas.c.project_id == quota.project
        if quota.limits:
            connection.execute(sa.update(quotas).where(mine).values(limits=text_of(quota.limits)))
        else:
            connection.execute(sa.delete(quotas).where(mine))


def quotas_page(connection: Connection, project: str, after: str, limit: int) -> tuple[QuotaState, ...]:
    """The quota of a project; or if none is named, a page of all, in the order of projects."""
    mine = quotas.c.project_id == project if project else quotas.c.project_id > after
    rows = connection.execute(
        sa.select(quotas.c.project_id, quotas.c.limits, quotas.c.used)
        .where(mine)
        .order_by(quotas.c.project_id)
        .limit(limit)
    )
    found = [quota_of(*row) for row in rows]
    return tuple(
        [QuotaState(project=one.project, limits=dict(one.limits), used=dict(one.used)) for one in found]
    )


def wrong_quotas(connection: Connection, vocabulary: CachedVocabulary) -> list[tuple[Quota, dict[str, int]]]:
    """The quotas whose row does not say what the consumers of the project use, each with what they use."""
    rows = connection.execute(
        sa.select(quotas.c.project_id, quotas.c.limits, quotas.c.used).order_by(quotas.c.project_id)
    )
    stored = [quota_of(*row) for row in rows]
    if not stored:
        return []
    used = used_by_projects(connection, vocabulary, [one.project for one in stored])
    return [(one, right) for one in stored if (right := used.get(one.project, {})) != one.used]


def recount_quotas(connection: Connection, vocabulary: CachedVocabulary) -> None:
    """Correct the quotas that count wrong. Their rows are locked first: so each claim of their projects is either committed,
    and counted, or has not begun.
    """
    wrong = [one.project for one, _ in wrong_quotas(connection, vocabulary)]
    if not wrong:
        return
    # In the order in which claims lock them; the database may sort texts otherwise.
    for project in sorted(wrong):
        connection.execute(sa.select(quotas.c.id).where(quotas.c.project_id == project).with_for_update())
    for quota, right in wrong_quotas(connection, vocabulary):
        if quota.project in wrong:
            mine = quotas.c.project_id == quota.project
            connection.execute(sa.update(quotas).where(mine).values(used=text_of(right)))


def used_by_projects(
    connection: Connection, vocabulary: CachedVocabulary, projects: Sequence[str]
) -> dict[str, dict[str, int]]:
    """The usage of these projects, by class and as instances."""
    columns = consumers.c.project_id, consumers.c.type, consumers.c.kept
    used: dict[str, Counter[str]] = {}
    for row, sums in _alike(
        connection, vocabulary, columns, among(connection, consumers.c.project_id, projects)
    ):
        counts = counted(row.type, kept_of(row.kept), sums)
        _add(used.setdefault(row.project_id, Counter()), counts, row.number)
    return {project: dict(sums) for project, sums in used.items()}


def quota_of(project: str, limits: str, used: str) -> Quota:
    return Quota(project, decode_by_name(limits), decode_by_name(used))
