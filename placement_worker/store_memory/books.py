"""The rows of books that are kept in memory, and how they read."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from msgspec import Struct

from bus.message import ConsumerId, ProviderId
from bus.messages.administration import ConsumerState, TypeUsage
from bus.messages.placement import (
    Holder,
    LogPosition,
    ProviderGone,
    ProviderState,
    ProviderUsage,
    ResourceAmount,
)
from placement_worker.core.capacity import Terms
from placement_worker.core.ledger import Consumer, ProviderBook, TreeBook
from placement_worker.store import KeptPage


class ProviderEntry(Struct, frozen=True):
    """A row: a book, and what the books do not tell."""

    internal: int
    root: ProviderId
    cell: str
    revision: int
    # The last revision at which more of it changed than what is used.
    base: int
    book: ProviderBook
    terms: Mapping[str, Terms]
    # How many consumers live on it.
    consumers: int = 0


class TreeEntry(Struct, frozen=True):
    cell: str
    shape: int
    epoch: int
    sequence: int
    members: tuple[ProviderId, ...]


class KeptAnswer(Struct, frozen=True):
    answer: UUID
    kept_at: datetime
    pages: tuple[KeptPage, ...]


class Stump(Struct, frozen=True):
    tree: TreeBook
    felled_at: datetime


class Logged(Struct, frozen=True):
    """What one transaction wrote."""

    number: int
    at: datetime
    touched: tuple[ProviderId, ...]
    used: tuple[ProviderId, ...]
    gone: tuple[ProviderGone, ...]
    claimed: tuple[Holder, ...]
    ended: tuple[Holder, ...]


class Books:
    """All rows. Only a transaction changes them, but for the log's marks."""

    def __init__(self) -> None:
        self.consumers: dict[ConsumerId, Consumer] = {}
        self.held: dict[ConsumerId, tuple[ResourceAmount, ...]] = {}
        self.providers: dict[ProviderId, ProviderEntry] = {}
        self.trees: dict[ProviderId, TreeEntry] = {}
        self.stumps: dict[ProviderId, Stump] = {}
        self.names: dict[str, ProviderId] = {}
        self.internals: dict[int, ProviderId] = {}
        self.log: list[Logged] = []
        self.kept_answers: dict[UUID, KeptAnswer] = {}
        self.logged = 0
        self.marked = 0
        self.pruned = 0
        self.published = LogPosition(term=0, position=0)
        # The custom ones, each by itself.
        self.classes: dict[str, str] = {}
        self.traits: dict[str, str] = {}
        self._internal = 0

    def new_internal(self) -> int:
        # Not given back when its transaction is undone: a number that was seen once never means another row.
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
        )

    def logged_after(self, number: int) -> Sequence[Logged]:
        return self.log[bisect_right(self.log, number, key=lambda entry: entry.number) :]

    def states_of(self, providers: Iterable[ProviderId]) -> tuple[ProviderState, ...]:
        """Of those that exist, by internal id."""
        states = [
            self.state_of(provider) for provider in dict.fromkeys(providers) if provider in self.providers
        ]
        return tuple(sorted(states, key=lambda state: state.internal))

    def usage_of(self, providers: Iterable[ProviderId]) -> tuple[ProviderUsage, ...]:
        """The same of what claims change."""
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

    def living_on(self, provider: ProviderId) -> int:
        """How many consumers that hold something have it for their host."""
        return sum(self.consumers[consumer].host == provider for consumer in self.held)

    def ground(self, root: ProviderId) -> TreeBook | None:
        """The tree of this root, or its stump."""
        if root in self.trees:
            return self.tree_book(root)
        stump = self.stumps.get(root)
        return stump.tree if stump else None

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
