"""One transaction on the tables in memory. It writes in place and notes how to undo each step, so it costs as much as it
changes, and not as much as the tables have.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from functools import partial
from typing import TypeVar

from msgspec import structs

from bus.messages.administration import KindOfNames
from bus.messages.placement import ProviderGone
from engine.inventories import (
    ConsumerId,
    GroupMember,
    Holder,
    InventoryState,
    ProviderId,
    ProviderState,
    ResourceAmount,
)
from placement_worker.core.ledger import (
    ClaimChanges,
    ClaimKeys,
    Consumer,
    Forest,
    ForestKeys,
    GroupBook,
    Ledger,
    NameChanges,
    NameKeys,
    NamesInUse,
    ProviderBook,
    ProviderRow,
    Quota,
    QuotaBook,
    StoredNames,
    Touched,
    TreeBook,
    TreeChanges,
    limits_in,
    used_in,
)
from placement_worker.core.limits import QuotaKeys
from placement_worker.core.owners import Owner, is_tombstone
from placement_worker.store import AdminDecision, DecideAllocations
from placement_worker.store_sql.names import custom_of
from tests.memory_stores.placement.memory_tables import (
    Logged,
    MemoryTables,
    ProviderEntry,
    Tombstone,
    TreeEntry,
)

K = TypeVar("K")
V = TypeVar("V")


class MemoryTransaction:
    """Writes in place, and can undo it."""

    def __init__(self, tables: MemoryTables, clock: Callable[[], datetime]) -> None:
        self._tables = tables
        self._clock = clock
        self._undo: list[Callable[[], None]] = []
        self._touched: dict[ProviderId, None] = {}
        self._used: dict[ProviderId, None] = {}
        self._gone: list[ProviderGone] = []
        self._claimed: list[Holder] = []
        self._ended: list[Holder] = []
        self._joined: list[GroupMember] = []
        self._left: list[Holder] = []

    async def tombstones(self, owners: Sequence[Owner], limit: int) -> dict[Owner, int]:
        rows = [row for row in self._tables.consumers.values() if is_tombstone(row)]
        return {owner: min(limit, sum((row.cell, row.project) == owner for row in rows)) for owner in owners}

    async def lock_claims(self, keys: ClaimKeys) -> Ledger:
        providers = self._tables.providers
        # A consumer that an administrator gives something, without a host, may live at any of these roots from now on.
        named = () if keys.orders else keys.providers
        roots = [providers[one].root for one in named if one in providers]
        classes = frozenset(name for name in keys.classes if name in self._tables.custom["classes"])
        return structs.replace(self._ledger(keys, roots), classes=classes)

    async def decided_at_once(self, keys: ClaimKeys, decide: DecideAllocations) -> AdminDecision | None:
        """It has no locks that could be saved."""

    def _ledger(self, keys: ClaimKeys, roots: Sequence[ProviderId] = ()) -> Ledger:
        consumers, held = self._lock_consumers(keys.consumers)
        hosts = [host for number in held if (host := consumers[number].host) is not None]
        of_held = [amount.provider for amounts in held.values() for amount in amounts]
        # Each provider once, in any order; integers hash faster than UUIDs.
        named = {one.int: one for one in (*keys.providers, *roots, *of_held, *hosts)}
        groups = {
            each.id: GroupBook(known, self._tables.members_of(each.id))
            for each in keys.groups
            if (known := self._tables.groups.get(each.id)) is not None
        }
        projects = keys.projects() | {row.project for row in consumers.values()}
        quotas = {project: self._tables.quotas[project] for project in projects & self._tables.quotas.keys()}
        return Ledger(consumers, held, self._provider_rows(named.values()), groups=groups, quotas=quotas)

    async def write_claims(self, changes: ClaimChanges) -> None:
        tables = self._tables
        for group in changes.groups:
            self._put(tables.groups, group.definition.id, group)
        for quota in changes.quotas:
            self._put(tables.quotas, quota.project, quota)
        for consumer in changes.consumers:
            self._put_consumer(consumer.id, consumer)
        for forgotten in changes.forgotten:
            self._put_consumer(forgotten, None)
        for holder, amounts in changes.held:
            self._put(tables.held, holder, amounts or None)
        for touched in changes.touched:
            self._rewrite(touched)
        for provider, count in changes.counted:
            self._put(
                tables.providers, provider, structs.replace(tables.providers[provider], consumers=count)
            )
        self._claimed += changes.claimed
        self._ended += changes.ended
        self._joined += changes.joined
        self._left += changes.left

    async def lock_quotas(self, keys: QuotaKeys) -> QuotaBook:
        projects, classes = keys
        tables = self._tables
        quotas = {one: tables.quotas.get(one) or Quota(one, used=tables.used_by(one)) for one in projects}
        return QuotaBook(quotas, frozenset(name for name in classes if name in tables.custom["classes"]))

    async def write_quotas(self, changed: Sequence[Quota]) -> None:
        for quota in changed:
            self._put(self._tables.quotas, quota.project, quota if quota.limits else None)

    async def recount(self) -> None:
        tables = self._tables
        for quota in [*tables.quotas.values()]:
            recounted = structs.replace(quota, used=tables.used_by(quota.project))
            self._put(tables.quotas, quota.project, recounted)
        held: Counter[tuple[ProviderId, str]] = Counter()
        for amount in (each for amounts in tables.held.values() for each in amounts):
            held[amount.provider, amount.resource] += amount.amount
        for provider, row in list(tables.providers.items()):
            used = {resource: held[provider, resource] for resource in row.book.inventories}
            living = tables.living_on(provider)
            if used != used_in(row.book.inventories) or living != row.consumers:
                self._rewrite(Touched(provider, row.book.generation, used, living))

    def _put_consumer(self, consumer: ConsumerId, row: Consumer | None) -> None:
        tables = self._tables
        before = tables.consumers.get(consumer)
        if before is not None and before.group is not None:
            members = tables.members[before.group]
            self._put(members, consumer, None)
            if not members:
                self._put(tables.members, before.group, None)
        if row is not None and row.group is not None:
            if row.group not in tables.members:
                self._put(tables.members, row.group, {})
            self._put(tables.members[row.group], consumer, (tables.new_internal(), row))
        self._put(tables.consumers, consumer, row)

    async def lock_trees(self, keys: ForestKeys) -> Forest:
        tables = self._tables
        standing = {provider: row.root for provider in keys.trees if (row := tables.providers.get(provider))}
        tombstones = {root: tables.tombstones[root].tree for root in keys.trees if root in tables.tombstones}
        roots = dict.fromkeys(standing.values())
        names = {name: tables.names[name] for name in keys.names if name in tables.names}
        return Forest(
            trees=tombstones | {root: tables.tree_book(root) for root in roots},
            elsewhere={
                provider: row.root
                for provider in keys.providers
                if (row := tables.providers.get(provider)) is not None and row.root not in roots
            },
            names=names,
            cells={bearer: tables.tree_book(tables.providers[bearer].root).cell for bearer in names.values()},
            classes=frozenset(name for name in keys.classes if name in tables.custom["classes"]),
            traits=frozenset(name for name in keys.traits if name in tables.custom["traits"]),
        )

    async def write_trees(self, changes: TreeChanges) -> None:
        tables = self._tables
        changed = frozenset(changes.changed)
        for removed in changes.removed:
            self._remove(removed)
        # A name may move from one provider to another: all old names are removed before any is added.
        for provider in changes.changed:
            if row := tables.providers.get(provider):
                self._put(tables.names, row.book.name, None)
        for tree in changes.trees:
            if not tree.providers:
                self._put(tables.tombstones, tree.root, Tombstone(tree, self._clock()))
                self._put(tables.trees, tree.root, None)
                continue
            kept = TreeEntry(tree.cell, tree.shape, tree.epoch, tree.sequence, tuple(tree.providers))
            self._put(tables.trees, tree.root, kept)
            self._put(tables.tombstones, tree.root, None)
            for book in tree.providers.values():
                if book.id in changed:
                    self._write_provider(tree, book)

    async def lock_names(self, keys: NameKeys) -> StoredNames:
        return {
            kind: NamesInUse(
                existing=names & self._tables.custom[kind].keys(),
                users={
                    name: row.book.id
                    for row in self._tables.providers.values()
                    for name in names & _names_in(row.book)[kind]
                },
            )
            for kind, names in keys.items()
        }

    async def write_names(self, changes: NameChanges) -> None:
        for kind, change in changes.items():
            for name in change.gone:
                self._put(self._tables.custom[kind], name, None)
            self._name(kind, change.new)

    async def read_trees(self, roots: Sequence[ProviderId]) -> tuple[ProviderState, ...]:
        tables = self._tables
        return tables.states_of(
            member for root in roots if root in tables.trees for member in tables.trees[root].members
        )

    def commit(self) -> None:
        of_members = self._joined or self._left
        if not (self._touched or self._used or self._gone or self._claimed or self._ended or of_members):
            return
        tables = self._tables
        tables.logged += 1
        tables.log.append(
            Logged(
                number=tables.logged,
                at=self._clock(),
                touched=tuple(self._touched),
                used=tuple(self._used),
                gone=tuple(self._gone),
                claimed=tuple(self._claimed),
                ended=tuple(self._ended),
                joined=tuple(self._joined),
                left=tuple(self._left),
            )
        )

    def roll_back(self) -> None:
        for undo in reversed(self._undo):
            undo()

    def _lock_consumers(
        self, keys: Iterable[ConsumerId]
    ) -> tuple[dict[int, Consumer], dict[int, tuple[ResourceAmount, ...]]]:
        tables = self._tables
        consumers: dict[int, Consumer] = {}
        held: dict[int, tuple[ResourceAmount, ...]] = {}
        for consumer in keys:
            row = tables.consumers.get(consumer)
            if row is None:
                row = Consumer(id=consumer)
                self._put(tables.consumers, consumer, row)
            consumers[consumer.int] = row
            if amounts := tables.held.get(consumer):
                held[consumer.int] = amounts
        return consumers, held

    def _provider_rows(self, providers: Iterable[ProviderId]) -> dict[int, ProviderRow]:
        tables = self._tables
        return {
            provider.int: self._seen_by_claims(row)
            for provider in providers
            if (row := tables.providers.get(provider)) is not None
        }

    def _seen_by_claims(self, row: ProviderEntry) -> ProviderRow:
        book = row.book
        return ProviderRow(
            id=book.id,
            root=row.root,
            cell=row.cell,
            generation=book.generation,
            shape=self._tables.trees[row.root].shape if row.root.int == book.id.int else None,
            limits=row.limits,
            used=used_in(book.inventories),
            consumers=row.consumers,
        )

    def _put(self, rows: dict[K, V], key: K, row: V | None) -> None:
        """Write a row, or delete it if `row` is None."""
        self._undo.append(partial(_write, rows, key, rows.get(key)))
        _write(rows, key, row)

    def _rewrite(self, touched: Touched) -> None:
        row = self._tables.providers[touched.provider]
        inventories: Mapping[str, InventoryState] = {
            resource: structs.replace(inventory, used=touched.used[resource])
            for resource, inventory in row.book.inventories.items()
        }
        book = structs.replace(row.book, generation=touched.generation, inventories=inventories)
        rewritten = structs.replace(row, revision=row.revision + 1, book=book, consumers=touched.consumers)
        self._put(self._tables.providers, touched.provider, rewritten)
        self._used[touched.provider] = None

    def _write_provider(self, tree: TreeBook, book: ProviderBook) -> None:
        """Write a provider that is new or changed."""
        tables = self._tables
        old = tables.providers.get(book.id)
        internal = old.internal if old else tables.new_internal()
        revision = old.revision + 1 if old else 1
        entry = ProviderEntry(
            internal=internal,
            root=tree.root,
            cell=tree.cell,
            revision=revision,
            base=revision,
            book=book,
            limits=limits_in(book.inventories),
            consumers=old.consumers if old else tables.living_on(book.id),
        )
        self._put(tables.providers, book.id, entry)
        self._put(tables.internals, internal, book.id)
        self._put(tables.names, book.name, book.id)
        for kind, names in _names_in(book).items():
            self._name(kind, custom_of(names))
        self._touched[book.id] = None

    def _name(self, kind: KindOfNames, wanted: Iterable[str]) -> None:
        names = self._tables.custom[kind]
        for name in wanted:
            if name not in names:
                self._put(names, name, name)

    def _remove(self, provider: ProviderId) -> None:
        tables = self._tables
        row = tables.providers[provider]
        self._put(tables.providers, provider, None)
        self._put(tables.internals, row.internal, None)
        self._put(tables.names, row.book.name, None)
        if row.root == provider:
            self._put(tables.trees, provider, None)
        self._gone.append(ProviderGone(internal=row.internal, id=provider, revision=row.revision + 1))


def _write(rows: dict[K, V], key: K, row: V | None) -> None:
    if row is None:
        rows.pop(key, None)
    else:
        rows[key] = row


def _names_in(book: ProviderBook) -> dict[KindOfNames, AbstractSet[str]]:
    return {"classes": book.inventories.keys(), "traits": book.traits | book.operator_traits}
