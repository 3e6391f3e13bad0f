"""Lock and read what a batch of claims touches, by a constant number of statements, and write what the decision has changed.

The statements that are rare are the same on both databases. Those that each boot writes are each database's own: SQLite's are
at the end, PostgreSQL's in postgres_claims.py.

No statement both locks and checks. In PostgreSQL's READ COMMITTED, a statement that waited for a row sees that row's new
version, but everything it joins as it was before the wait. If it also checked, a batch would be granted what others had
taken meanwhile, without any error (measured: 7,050 claims where 4,000 fit). So locks come first, and later statements read.
On SQLite, after BEGIN IMMEDIATE the writer has the file for itself, so everything read stays valid until the end.
"""

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Generic, TypeVar

import sqlalchemy as sa
from msgspec import Struct, structs
from sqlalchemy import Connection

from engine.inventories import CUSTOM, GroupId, ProviderId, ServerGroup, rules_as_text, rules_in
from kit.clock import now
from kit.errors import Bug, Transient
from kit.sql import (
    KeyStatement,
    RowColumns,
    SqliteTransaction,
    Transaction,
    Values,
    by_keys,
    driver_of,
    moment_text,
)
from placement_worker.core.ledger import ClaimChanges, ClaimKeys, GroupRow, Ledger, Quota
from placement_worker.core.limits import is_judged
from placement_worker.store import AdminDecision, DecideAllocations
from placement_worker.store_sql import log
from placement_worker.store_sql.consumers import LAST_QUOTA, LOCK_QUOTAS, quota_of
from placement_worker.store_sql.names import CachedNames, existing_names
from placement_worker.store_sql.rows import (
    CachedProviders,
    ClaimRows,
    ConsumerRecord,
    ConsumerRow,
    UsageRow,
    classes_in,
    id_of,
    text_of,
)
from placement_worker.tables import consumers, holders, providers, quotas, resource_classes, server_groups

# In the order of `FoundProvider`. The claims will need the inventories, too: they hold while `base` is the same after the lock.
_FIND = """
SELECT providers.id, providers.uuid, root.id, root.uuid, providers.base,
       providers.generation, providers.shape, providers.used, providers.consumers, providers.cell,
       stock.class_id, stock.total, stock.reserved, stock.min_unit, stock.max_unit,
       stock.step_size, stock.allocation_ratio
FROM providers
JOIN providers AS root ON root.id = ANY (ARRAY[providers.root_id])
LEFT JOIN inventories AS stock ON stock.provider_id = ANY (ARRAY[providers.id])
WHERE NAMED
ORDER BY providers.id + 0, stock.class_id
"""
FIND_BY_ID = by_keys(_FIND.replace("NAMED", "providers.uuid = ANY ($1::text::uuid[])"))
_FIND_BY_NUMBER = by_keys(_FIND.replace("NAMED", "providers.id = ANY ($1::text::bigint[])"))

# A statement that waited for a row reads that row anew, and evaluates its own condition on it again. So the condition has
# only numbers. It returns the row as it is now, so a decision may use it. Everything else is read by later statements.
_READ = (
    "SELECT id, root_id, base, generation, shape, used, consumers FROM providers"
    " WHERE id = ANY ($1::text::bigint[])"
)
READ_PROVIDERS = by_keys(_READ)
LOCK_ROOTS = by_keys(_READ + " ORDER BY id + 0 FOR NO KEY UPDATE")

_READ_MEMBERS = by_keys(
    "SELECT uuid, server_group, host FROM consumers WHERE server_group = ANY ($1::text::uuid[])"
)

_READ_PLACES = by_keys(
    "SELECT providers.uuid, spot.place FROM providers"
    " JOIN provider_places AS spot ON spot.provider_id = ANY (ARRAY[providers.id])"
    " WHERE providers.uuid = ANY ($1::text::uuid[]) ORDER BY spot.set_by_operator"
)

# Rows inserted here are locked already: no other transaction can see them.
_MAKE_GROUPS = RowColumns(
    server_groups, "uuid", "policy", "max_per_host", "rules", free_texts=("rules",)
).insert("ON CONFLICT (uuid) DO NOTHING", returning=("uuid",))
_GROUP = RowColumns(
    server_groups,
    *("uuid", "policy", "max_per_host", "project_id", "rules"),
    free_texts=("project_id", "rules"),
)
_LOCK_GROUPS, _WRITE_GROUPS = _GROUP.lock("uuid"), _GROUP.update()
_DROP_GROUPS = RowColumns(server_groups).delete_unlocked("uuid")

# In the order of `ConsumerRow`.
LOCK_CONSUMERS = RowColumns(
    consumers,
    *("uuid", "id", "type", "project_id", "user_id", "cell", "generation", "attempt"),
    *("ended_at", "host", "server_group", "held", "kept"),
).lock("uuid")
_COUNT = RowColumns(providers, "id", "consumers").update()
_KEEP = RowColumns(consumers, "id", "kept", free_texts=("kept",)).update()
_FORGET = RowColumns(consumers).delete_unlocked("id")

END_HOLDING = RowColumns(holders, "provider_id", "consumer_id").statement(
    """
DELETE FROM holders USING unnest($1::text::bigint[], $2::text::bigint[]) AS old (provider_id, consumer_id)
WHERE holders.provider_id = ANY (ARRAY[old.provider_id]) AND holders.consumer_id = ANY (ARRAY[old.consumer_id])
""",
    "DELETE FROM holders WHERE provider_id = ?1 AND consumer_id = ?2",
)

# Of the projects that have a quota: most batches concern none.
_PROJECTS_OF = by_keys("SELECT DISTINCT project_id FROM consumers WHERE uuid = ANY ($1::text::uuid[])")
_WRITE_QUOTAS = RowColumns(quotas, "project_id", "used", free_texts=("project_id", "used")).update()

AnyTransaction = TypeVar("AnyTransaction", bound=Transaction)


class ClaimLocks(ABC, Generic[AnyTransaction]):
    """Locks and reads the rows that the claims of one transaction need, once, and then writes the changes."""

    def __init__(
        self,
        transaction: AnyTransaction,
        classes: CachedNames,
        providers: CachedProviders,
        limited: "QuotaCache",
    ) -> None:
        self._transaction = transaction
        self._quotas = ClaimQuotas(transaction, limited)
        self._classes = classes
        self._providers = providers
        self._locked: ClaimRows | None = None
        # The rows of the roots, if they were locked together with the consumers.
        self._locked_roots: Sequence[UsageRow] = ()
        # The groups that this transaction has inserted.
        self._made_groups: Sequence[GroupId] = ()

    async def lock(self, keys: ClaimKeys) -> Ledger:
        locked = self._locked = ClaimRows(keys, self._classes, self._providers)
        locked.quotas = await self._quotas.lock(keys)
        self._locked_roots = ()
        await self._find(locked, FIND_BY_ID, locked.unknown())
        if keys.groups:
            await self._add_groups(locked, await self._lock_groups(keys.groups))
        if rows := await self._lock_consumers(locked):
            await self._add_consumers(locked, rows)
            self._quotas.check_projects(locked.projects_of_holders())
        await self._lock_providers(locked)
        # After the locks: the place of a host that the batch names stays until it ends.
        if hosts := locked.hosts_with_rules():
            locked.add_places(await _READ_PLACES.fetch(self._transaction, hosts))
        ledger = locked.ledger()
        if not any(name.startswith(CUSTOM) for name in keys.classes):
            return ledger
        classes = await self._transaction.run(existing_names, resource_classes, keys.classes)
        return structs.replace(ledger, classes=classes)

    async def decided_at_once(self, keys: ClaimKeys, decide: DecideAllocations) -> AdminDecision | None:  # noqa: ARG002 - only PostgreSQL has use for it
        """Decide a claim of one new consumer by rows that are not locked, then write and commit it, if it is granted and was
        decided by what is still true. None if nothing was written: these keys are of anything else, it was not granted, the rows
        have changed, or the store has no use for it. Then the transaction goes on as if this was never called. It comes first.
        """
        return None

    def made(self, providers: Mapping[ProviderId, int]) -> None:
        """These providers have been inserted meanwhile, with these internal ids."""
        if self._locked is not None:
            self._locked.provider_ids.update((one.int, number) for one, number in providers.items())

    async def write(self, changes: ClaimChanges) -> None:
        locked = self._locked
        assert locked is not None, "claims are written only after they were locked"
        await self._quotas.write_used(changes.quotas)
        await self._write_groups(changes.groups)
        # Consumers that the batch made and did not use have no row on SQLite.
        ids = locked.consumer_ids
        await _FORGET.fetch(self._transaction, [ids[one.int] for one in changes.forgotten if one.int in ids])
        await _COUNT.change(self._transaction, locked.counted(changes))
        if changes.consumers or changes.held or changes.touched:
            self._quotas.check_last(await self._write(locked, changes))
            await _KEEP.change(self._transaction, locked.kept(changes))

    @abstractmethod
    async def _lock_consumers(self, locked: ClaimRows) -> Sequence[ConsumerRow]:
        """Lock the consumers of the claims. Returns the rows that existed before. If none did, it may also lock the roots, which
        come next.
        """

    @abstractmethod
    async def _write(self, locked: ClaimRows, changes: ClaimChanges) -> int:
        """Write consumers and what they hold, the usage of providers, and the log. Returns the highest id of a quota's row."""

    async def _lock_groups(self, groups: Sequence[ServerGroup]) -> Sequence[GroupRow]:
        """Lock server groups by inserting those that have no row yet, as the batch first defines each. Returns those that
        existed before, as they are stored.
        """
        new = await _MAKE_GROUPS.fetch(
            self._transaction,
            [(each.id, each.policy, each.max_per_host, rules_as_text(each.rules)) for each in groups],
        )
        made = {id_of(row[0]) for row in new}
        self._made_groups = [each.id for each in groups if each.id in made]
        rows = await _LOCK_GROUPS.fetch(self._transaction, [group.id for group in groups])
        if len(rows) < len(groups):
            raise Transient(
                "a server group was pruned at the moment of a new claim in it: the batch is tried again"
            )
        known = [
            GroupRow(
                ServerGroup(id=GroupId(id_of(uuid)), policy=policy, max_per_host=most, rules=rules_in(rules)),
                project,
            )
            for uuid, policy, most, project, rules in rows
        ]
        return [each for each in known if each.definition.id not in made]

    async def _write_groups(self, groups: Sequence[GroupRow]) -> None:
        """Write the server groups as the granted claims define them. Those that this transaction has inserted, and that no
        granted claim is in, are deleted.
        """
        written = [(each.definition, each.project) for each in groups]
        await _WRITE_GROUPS.change(
            self._transaction,
            [
                (one.id, one.policy, one.max_per_host, project, rules_as_text(one.rules))
                for one, project in written
            ],
        )
        granted = {one.id for one, _ in written}
        unused = [group for group in self._made_groups if group not in granted]
        await _DROP_GROUPS.fetch(self._transaction, unused)

    async def _find(
        self, locked: ClaimRows, by: KeyStatement, keys: Collection[ProviderId] | Collection[int]
    ) -> int:
        """Look up ids, roots and inventories of the providers with these keys; returns how many of them exist."""
        rows = await by.fetch(self._transaction, keys)
        # In most batches all are in the cache.
        return (
            locked.learn(rows, await self._classes.naming(self._transaction, classes_in(rows))) if rows else 0
        )

    async def _add_groups(self, locked: ClaimRows, known: Sequence[GroupRow]) -> None:
        """Add server groups that are locked, with their members: no consumer joins these groups until this transaction ends."""
        named = {each.id for each in locked.keys.groups if is_judged(each)}
        judged = [
            each.definition.id for each in known if is_judged(each.definition) or each.definition.id in named
        ]
        locked.add_groups(known, await _READ_MEMBERS.fetch(self._transaction, judged))

    async def _add_consumers(self, locked: ClaimRows, rows: Sequence[ConsumerRow]) -> None:
        unknown = locked.add_consumers(rows)
        await self._find(locked, _FIND_BY_NUMBER, unknown)
        await self._classes.naming(self._transaction, locked.held_classes())
        locked.find_held()
        await self._find(locked, FIND_BY_ID, locked.unknown_hosts())

    async def _lock_providers(self, locked: ClaimRows) -> None:
        known, numbers, roots = self._providers, locked.provider_ids.values(), locked.roots()
        provider_rows = {row[0]: row for row in await self._lock_rows(numbers, roots)}
        await self._look_for_lost(locked, provider_rows, roots)
        # The roots are locked and read already; from here `numbers` has them, too.
        locked.add_roots([provider_rows[number] for number in numbers])
        moved = [number for number in numbers if known.of(number).base != provider_rows[number][2]]
        if moved:
            await self._find(locked, _FIND_BY_NUMBER, moved)
        locked.add_providers([provider_rows[number] for number in numbers])

    async def _lock_rows(self, numbers: Collection[int], roots: Collection[int]) -> list[UsageRow]:
        below = [number for number in numbers if number not in roots]
        return [
            *(self._locked_roots or await LOCK_ROOTS.fetch(self._transaction, sorted(roots))),
            *await READ_PROVIDERS.fetch(self._transaction, below),
        ]

    async def _look_for_lost(self, locked: ClaimRows, provider_rows: Any, roots: AbstractSet[int]) -> None:
        """Drop cache entries of providers that are gone or in another tree than the cache said."""
        known = self._providers
        lost = [known.of(one) for one in locked.provider_ids.values() if one not in provider_rows]
        astray = [known.of(row[0]) for row in provider_rows.values() if row[1] not in roots]
        for one in (*lost, *astray):
            known.forget(one)
            locked.provider_ids.pop(one.id.int, None)
        # A provider found under an id that another one had is not locked yet.
        if astray or (lost and await self._find(locked, FIND_BY_ID, [one.id for one in lost])):
            raise Transient(
                "a provider moved to another tree while the batch waited for its lock: it is tried again"
            )


def check_written(written: tuple[int, int], wanted: tuple[int, int]) -> None:
    """The counts of written providers and consumers are compared with what was to be written: a missing row would be a lost
    update.
    """
    if written != wanted:
        raise Bug(
            f"claims not written: {written[0]} of {wanted[0]} providers and {written[1]} of {wanted[1]} consumers exist, "
            "although all of them were locked"
        )


def log_body(locked: ClaimRows, changes: ClaimChanges) -> bytes | None:
    ids = locked.provider_ids
    entry = log.LogEntry(
        used=tuple([ids[one.provider.int] for one in changes.touched]),
        claimed=changes.claimed,
        ended=changes.ended,
        joined=changes.joined,
        left=changes.left,
    )
    return log.body_of(entry)


# The quotas of the projects that a batch concerns: see consumers.py.


class KnownProjects(Struct, frozen=True):
    """The projects that have a quota, and the highest id of a quota's row."""

    last: int
    limited: frozenset[str]


class QuotaCache:
    """The projects that have a quota, as a process knows them; None before they are read, and after one was outdated."""

    def __init__(self) -> None:
        self.known: KnownProjects | None = None


class ClaimQuotas:
    """The quotas that one transaction of claims needs."""

    def __init__(self, transaction: Transaction, cache: QuotaCache) -> None:
        self._transaction = transaction
        self._cache = cache
        self._known = cache.known
        self._locked: frozenset[str] = frozenset()

    async def lock(self, keys: ClaimKeys) -> Mapping[str, Quota]:
        """Lock and read the quotas of all projects that the batch concerns. Most batches concern none."""
        if self._known is None:
            self._cache.known = self._known = await self._transaction.run(_known_projects)
        if not (limited := self._known.limited):
            return {}
        rows = await _PROJECTS_OF.fetch(self._transaction, keys.maybe_known())
        self._locked = limited & (keys.projects() | {row[0] for row in rows})
        found = await LOCK_QUOTAS.fetch(self._transaction, self._locked)
        return {project: quota_of(project, limits, used) for project, limits, used in found}

    def last_if_none(self) -> int | None:
        """The highest id of a quota's row, if no project is known to have a limit; None if one has, or if that is not known."""
        known = self._cache.known
        return None if known is None or known.limited else known.last

    def check_projects(self, projects: Collection[str]) -> None:
        """These are the projects of the locked consumers. A consumer may have changed its project before it was locked."""
        known = self._known
        if known is not None and known.limited and not (known.limited & {*projects} <= self._locked):
            raise Transient("a consumer changed its project while the batch began: the batch is tried again")

    def check_last(self, last: int) -> None:
        """`last` is the highest id of a quota's row, now that the batch is written."""
        assert self._known is not None, "claims are written only after they were locked"
        if last != self._known.last:
            self._cache.known = None
            raise Transient("a project got its first limit, or lost its last one: the batch is tried again")

    async def write_used(self, changed: Sequence[Quota]) -> None:
        rows = [(one.project, text_of(one.used)) for one in changed]
        await _WRITE_QUOTAS.change(self._transaction, rows)


def _known_projects(connection: Connection) -> KnownProjects:
    rows = connection.execute(sa.select(quotas.c.id, quotas.c.project_id)).all()
    return KnownProjects(max([id_ for id_, _ in rows], default=0), frozenset(project for _, project in rows))


# Claims on SQLite. BEGIN IMMEDIATE has locked the whole file, so no rows are locked here.


_CONSUMER = (
    *("type", "project_id", "user_id", "cell", "generation", "attempt"),
    *("ended_at", "host", "server_group", "held"),
)
# An empty string stands for NULL: the driver takes longer to bind a None.
_NULLS = {name: f"NULLIF(new.{name}, '')" for name in ("ended_at", "host", "server_group")}
_ADD_CONSUMERS = RowColumns(consumers, "id", *_CONSUMER, "uuid").insert(**_NULLS)
_KEEP_CONSUMERS = RowColumns(consumers, "id", *_CONSUMER).update(**_NULLS)
_TOUCH = RowColumns(providers, "id", "generation", "used", "consumers").update(revision="kept.revision + 1")
_HOLD = RowColumns(holders, "provider_id", "consumer_id").insert()

_LOG = f"{log.ON_SQLITE} RETURNING {LAST_QUOTA}"

# The highest id ever given, also to rows that are deleted.
_LAST_CONSUMER = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'consumers'"


class SqliteClaims(ClaimLocks[SqliteTransaction]):
    """Reads and writes claims on SQLite, each row by a statement of its own."""

    async def _lock_consumers(self, locked: ClaimRows) -> Sequence[ConsumerRow]:
        rows = await LOCK_CONSUMERS.fetch(self._transaction, locked.keys.consumers)
        locked.consumer_ids.update((row[0].int, row[1]) for row in rows)
        return rows

    async def _write(self, locked: ClaimRows, changes: ClaimChanges) -> int:
        # In one piece: to enter the transaction for each statement would cost a lone boot more than its statements.
        return await self._transaction.run(_write, locked, changes)


def _write(connection: Connection, locked: ClaimRows, changes: ClaimChanges) -> int:
    driver, ids = driver_of(connection), locked.consumer_ids
    kept = locked.consumer_writes(changes, {})
    known = [one for one in kept.consumers if one.row.id.int in ids]
    if len(known) < len(kept.consumers):
        _add_consumers(driver, locked, [one for one in kept.consumers if one.row.id.int not in ids])
    touched = list(locked.touched(changes))
    rows = [(ids[one.row.id.int], *_values(one)) for one in known]
    written = (
        driver.executemany(_TOUCH.on_sqlite, touched).rowcount,
        driver.executemany(_KEEP_CONSUMERS.on_sqlite, rows).rowcount,
    )
    check_written(written, (len(touched), len(known)))
    ended, begun = locked.holders(kept)
    driver.executemany(END_HOLDING.on_sqlite, ended)
    driver.executemany(_HOLD.on_sqlite, begun)
    if (body := log_body(locked, changes)) is None:
        (last_quota,) = driver.execute(f"SELECT {LAST_QUOTA}").fetchone()
    else:
        (last_quota,) = driver.execute(_LOG, (moment_text(now()), body)).fetchone()
    return int(last_quota)


def _add_consumers(driver: sqlite3.Connection, locked: ClaimRows, new: Sequence[ConsumerRecord]) -> None:
    """Insert new consumers, with ids that are chosen here: SQLite returns the id of only one inserted row at a time."""
    (last,) = driver.execute(_LAST_CONSUMER).fetchone()
    ids = locked.consumer_ids
    ids.update((one.row.id.int, number) for number, one in enumerate(new, start=last + 1))
    rows = [(ids[one.row.id.int], *_values(one), one.row.id.hex) for one in new]
    driver.executemany(_ADD_CONSUMERS.on_sqlite, rows)


def _values(record: ConsumerRecord) -> Values:
    row = record.row
    return (
        *(row.type, row.project, row.user, row.cell, row.generation, row.attempt),
        "" if row.ended_at is None else moment_text(row.ended_at),
        "" if row.host is None else row.host.hex,
        "" if row.group is None else row.group.hex,
        record.text,
    )
