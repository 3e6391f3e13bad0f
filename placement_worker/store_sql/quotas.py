"""Quotas of projects: their rows, and which projects have one.

Most projects have none, and their claims must not pay for those that have. So each process keeps the list of limited projects
in memory, with the highest id of a quota's row (claims.py). A batch with none of them reads and locks nothing. The statement that writes a
batch also returns the highest id as it is then: if it is another one, the list was outdated, and the batch is tried again.

That decides it for certain. A new row is made under a lock of the table `consumers` that waits for all transactions that have
written consumers, and that none of them gets meanwhile. So a batch either was committed before, and is counted in the new
row, or it sees the new row when it writes.
"""

from collections import Counter
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from engine.capacity import custom_of
from engine.inventories import QuotaState
from kit.errors import Transient
from kit.sql import RowColumns, Transaction, among
from placement_worker.core.drafts import QuotaKeys, counted
from placement_worker.core.ledger import Quota, QuotaBook
from placement_worker.store_sql.names import CachedVocabulary, existing_names
from placement_worker.store_sql.rows import NOTHING, decode_by_name, decode_held, kept_of, text_of
from placement_worker.tables import consumers, quotas, resource_classes

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
    """The usage of these projects, by class and as instances. The database counts consumers that are alike."""
    alike = (consumers.c.project_id, consumers.c.type, consumers.c.held, consumers.c.kept)
    rows = connection.execute(
        sa.select(*alike, sa.func.count())
        .where(consumers.c.held != NOTHING, among(connection, consumers.c.project_id, projects))
        .group_by(*alike)
    ).all()
    held = [decode_held(row.held) for row in rows]
    classes = {one for each in held for of_provider in each.values() for one in of_provider}
    names = vocabulary.classes.naming_now(connection, classes)
    used: dict[str, Counter[str]] = {}
    for (project, type_, _, kept, count), of_one in zip(rows, held, strict=True):
        sums = Counter[str]()
        for of_provider in of_one.values():
            for class_id, amount in of_provider.items():
                sums[names[class_id]] += amount
        counts = counted(type_, kept_of(kept), sums)
        used.setdefault(project, Counter()).update({name: n * count for name, n in counts.items()})
    return {project: dict(sums) for project, sums in used.items()}


def quota_of(project: str, limits: str, used: str) -> Quota:
    return Quota(project, decode_by_name(limits), decode_by_name(used))
