"""The rows of a store in memory, and how to read them."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from bus.messages.administration import ConsumerState, KindOfNames, TypeUsage
from bus.messages.audit import BookEntry
from bus.messages.placement import LogPosition, ProviderGone
from engine.inventories import (
    ConsumerId,
    GroupId,
    GroupMember,
    Holder,
    ProviderId,
    ProviderState,
    ProviderUsage,
    ResourceAmount,
)
from placement_worker.core.ledger import Consumer, GroupRow, InventoryLimits, ProviderBook, Quota, TreeBook
from placement_worker.core.limits import counted, sums_of


class ProviderEntry(Struct, frozen=True):
    """A row: the provider as the rules see it, and the columns that the rules do not need."""

    internal: int
    root: ProviderId
    cell: str
    revision: int
    # The revision at which more than its usage last changed.
    base: int
    book: ProviderBook
    limits: Mapping[str, InventoryLimits]
    # How many consumers have it as their host.
    consumers: int = 0


class TreeEntry(Struct, frozen=True):
    cell: str
    shape: int
    epoch: int
    sequence: int
    members: tuple[ProviderId, ...]


class Tombstone(Struct, frozen=True):
    tree: TreeBook
    felled_at: datetime


class Logged(Struct, frozen=True):
    """Everything that one transaction wrote."""

    number: int
    at: datetime
    touched: tuple[ProviderId, ...]
    used: tuple[ProviderId, ...]
    gone: tuple[ProviderGone, ...]
    claimed: tuple[Holder, ...]
    ended: tuple[Holder, ...]
    joined: tuple[GroupMember, ...]
    left: tuple[Holder, ...]


class MemoryTables:
    """All rows. Only a transaction changes them, except for the marks of the log."""

    def __init__(self) -> None:
        self.consumers: dict[ConsumerId, Consumer] = {}
        self.held: dict[ConsumerId, tuple[ResourceAmount, ...]] = {}
        self.groups: dict[GroupId, GroupRow] = {}
        self.quotas: dict[str, Quota] = {}
        # The members of each server group, each with a number that grows with every write; a group without members has no
        # entry.
        self.members: dict[GroupId, dict[ConsumerId, tuple[int, Consumer]]] = {}
        self.providers: dict[ProviderId, ProviderEntry] = {}
        self.trees: dict[ProviderId, TreeEntry] = {}
        self.tombstones: dict[ProviderId, Tombstone] = {}
        self.names: dict[str, ProviderId] = {}
        self.internals: dict[int, ProviderId] = {}
        self.log: list[Logged] = []
        self.logged = 0
        self.marked = 0
        self.pruned = 0
        self.published = LogPosition(term=0, position=0)
        # Custom names only; each name is its own value.
        self.custom: dict[KindOfNames, dict[str, str]] = {"classes": {}, "traits": {}}
        self._internal = 0

    def members_of(self, group: GroupId) -> tuple[tuple[ConsumerId, ProviderId], ...]:
        """The members that live on a host, and where."""
        return tuple(
            (row.id, row.host) for _, row in self.members.get(group, {}).values() if row.host is not None
        )

    def new_internal(self) -> int:
        # A rollback does not reset this number: a number that was used once never means another row.
        self._internal += 1
        return self._internal

    def state_of(self, provider: ProviderId) -> ProviderState:
        row = self.providers[provider]
        book = row.book
        return ProviderState(
            internal=row.internal,
            id=provider,
            name=book.name,
            root=row.root,
            parent=book.parent,
            cell=row.cell,
            generation=book.generation,
            shape=self.trees[row.root].shape,
            revision=row.revision,
            inventories=dict(book.inventories),
            traits=tuple(sorted(book.traits | book.operator_traits)),
            aggregates=tuple(sorted(book.aggregates, key=lambda aggregate: aggregate.int)),
            consumers=row.consumers,
            made_by_name=book.made_by_name,
        )

    def logged_after(self, number: int) -> Sequence[Logged]:
        return self.log[bisect_right(self.log, number, key=lambda entry: entry.number) :]

    def states_of(self, providers: Iterable[ProviderId]) -> tuple[ProviderState, ...]:
        """States of those that exist, ordered by internal id."""
        states = [
            self.state_of(provider) for provider in dict.fromkeys(providers) if provider in self.providers
        ]
        return tuple(sorted(states, key=lambda state: state.internal))

    def usage_of(self, providers: Iterable[ProviderId]) -> tuple[ProviderUsage, ...]:
        """The columns that claims change, of those that exist, ordered by internal id."""
        rows = [self.providers[one] for one in dict.fromkeys(providers) if one in self.providers]
        return tuple(
            ProviderUsage(
                internal=row.internal,
                id=row.book.id,
                base=row.base,
                revision=row.revision,
                generation=row.book.generation,
                used={resource: inventory.used for resource, inventory in row.book.inventories.items()},
                consumers=row.consumers,
            )
            for row in sorted(rows, key=lambda row: row.internal)
        )

    def used_by(self, project: str) -> dict[str, int]:
        """What the consumers of a project use, as its quota counts it."""
        used = Counter[str]()
        for consumer, held in self.held.items():
            row = self.consumers[consumer]
            if row.project == project:
                used.update(counted(row.type, row.kept, sums_of(held)))
        return dict(used)

    def living_on(self, provider: ProviderId) -> int:
        """How many consumers hold something and have it as their host."""
        return sum(self.consumers[consumer].host == provider for consumer in self.held)

    def tree_or_tombstone(self, root: ProviderId) -> TreeBook | None:
        """The tree of this root, or its tombstone."""
        if root in self.trees:
            return self.tree_book(root)
        tombstone = self.tombstones.get(root)
        return tombstone.tree if tombstone else None

    def tree_book(self, root: ProviderId) -> TreeBook:
        tree = self.trees[root]
        return TreeBook(
            root=root,
            cell=tree.cell,
            shape=tree.shape,
            epoch=tree.epoch,
            sequence=tree.sequence,
            providers={member: self.providers[member].book for member in tree.members},
        )

    def consumer(self, consumer: ConsumerId) -> ConsumerState | None:
        held = self.held.get(consumer)
        if held is None:
            return None
        row = self.consumers[consumer]
        return ConsumerState(
            id=consumer,
            project=row.project,
            user=row.user,
            type=row.type,
            generation=row.generation,
            attempt=row.attempt,
            held=held,
        )

    def book_entry(self, consumer: ConsumerId) -> BookEntry:
        row = self.consumers[consumer]
        return BookEntry(
            id=consumer,
            type=row.type,
            project=row.project,
            user=row.user,
            cell=row.cell,
            generation=row.generation,
            attempt=row.attempt,
            ended=row.ended_at is not None,
            host=row.host,
            group=row.group,
            held=self.held.get(consumer, ()),
        )

    def usages(self, project: str, user: str) -> tuple[TypeUsage, ...]:
        holders: dict[str, int] = {}
        used: dict[str, dict[str, int]] = {}
        for consumer, held in self.held.items():
            row = self.consumers[consumer]
            if row.project != project or user not in ("", row.user):
                continue
            holders[row.type] = holders.get(row.type, 0) + 1
            sums = used.setdefault(row.type, {})
            for amount in held:
                sums[amount.resource] = sums.get(amount.resource, 0) + amount.amount
        return tuple(TypeUsage(type=kind, consumers=holders[kind], used=used[kind]) for kind in sorted(used))
