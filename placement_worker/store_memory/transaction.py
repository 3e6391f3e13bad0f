"""One transaction on books that are kept in memory: it writes in place and notes how to undo each step, so that it costs
what it changes and not what there is.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TypeVar

from msgspec import structs

from bus.message import ConsumerId, ProviderId
from bus.messages.placement import (
    Holder,
    InventoryState,
    ProviderGone,
    ProviderState,
    ReleaseClaim,
    ResourceAmount,
    SwapClaim,
)
from placement_worker.core.capacity import terms_in, used_in
from placement_worker.core.ledger import (
    ClaimChanges,
    ClaimOrder,
    Consumer,
    Forest,
    Ledger,
    NameChanges,
    Named,
    NamedNames,
    NamedShares,
    Names,
    ProviderBook,
    ProviderRow,
    Touched,
    TreeBook,
    TreeChanges,
)
from placement_worker.core.vocabulary import custom_of
from placement_worker.store_memory.books import Books, Logged, ProviderEntry, Stump, TreeEntry

K = TypeVar("K")
V = TypeVar("V")


class MemoryTransaction:
    """Writes in place, and knows how to take it back."""

    def __init__(self, books: Books, clock: Callable[[], datetime]) -> None:
        self._books = books
        self._clock = clock
        self._undo: list[Callable[[], None]] = []
        self._touched: dict[ProviderId, None] = {}
        self._used: dict[ProviderId, None] = {}
        self._gone: list[ProviderGone] = []
        self._claimed: list[Holder] = []
        self._ended: list[Holder] = []

    async def lock_claims(self, orders: Sequence[ClaimOrder]) -> Ledger:
        consumers, held = self._lock_consumers(_consumers_named(orders))
        named = _providers_named(orders, held) | _hosts_of(consumers, held)
        return Ledger(consumers, held, self._standing(named.values()))

    async def lock_shares(self, named: NamedShares) -> Ledger:
        consumers, held = self._lock_consumers(named.consumers)
        providers = self._books.providers
        touched = (
            *named.providers,
            # Who is given something by name, and no host, may live on any of their roots from now on.
            *[providers[one].root for one in named.providers if one in providers],
            *[amount.provider for amounts in held.values() for amount in amounts],
            *_hosts_of(consumers, held).values(),
        )
        known = frozenset(name for name in named.classes if name in self._books.classes)
        return Ledger(consumers, held, self._standing(dict.fromkeys(touched)), known)

    async def write_claims(self, changes: ClaimChanges) -> None:
        books = self._books
        for consumer in changes.consumers:
            self._put(books.consumers, consumer.id, consumer)
        for forgotten in changes.forgotten:
            self._put(books.consumers, forgotten, None)
        for holder, amounts in changes.held:
            self._put(books.held, holder, amounts or None)
        for touched in changes.touched:
            self._rewrite(touched)
        for provider, count in changes.counted:
            self._put(books.providers, provider, structs.replace(books.providers[provider], consumers=count))
        self._claimed += changes.claimed
        self._ended += changes.ended

    async def lock_trees(self, named: Named) -> Forest:
        books = self._books
        standing = {provider: row.root for provider in named.trees if (row := books.providers.get(provider))}
        stumps = {root: books.stumps[root].tree for root in named.trees if root in books.stumps}
        roots = dict.fromkeys(standing.values())
        return Forest(
            trees=stumps | {root: books.tree_book(root) for root in roots},
            elsewhere={
                provider: row.root
                for provider in named.providers
                if (row := books.providers.get(provider)) is not None and row.root not in roots
            },
            names={name: books.names[name] for name in named.names if name in books.names},
            classes=frozenset(name for name in named.classes if name in books.classes),
            traits=frozenset(name for name in named.traits if name in books.traits),
        )

    async def write_trees(self, changes: TreeChanges) -> None:
        books = self._books
        changed = frozenset(changes.changed)
        for removed in changes.removed:
            self._remove(removed)
        # A name may be handed from one to another: all are taken down before any is put up.
        for provider in changes.changed:
            if row := books.providers.get(provider):
                self._put(books.names, row.book.name, None)
        for tree in changes.trees:
            if not tree.providers:
                self._put(books.stumps, tree.root, Stump(tree, self._clock()))
                self._put(books.trees, tree.root, None)
                continue
            kept = TreeEntry(tree.cell, tree.shape, tree.epoch, tree.sequence, tuple(tree.providers))
            self._put(books.trees, tree.root, kept)
            self._put(books.stumps, tree.root, None)
            for book in tree.providers.values():
                if book.id in changed:
                    self._plant(tree, book)

    async def lock_names(self, named: NamedNames) -> Names:
        books = self._books
        return Names(
            classes=frozenset(name for name in named.classes if name in books.classes),
            traits=frozenset(name for name in named.traits if name in books.traits),
            users_of_classes={
                name: row.book.id
                for row in books.providers.values()
                for name in row.book.inventories
                if name in named.classes
            },
            users_of_traits={
                name: row.book.id
                for row in books.providers.values()
                for name in row.book.traits | row.book.operator_traits
                if name in named.traits
            },
        )

    async def write_names(self, changes: NameChanges) -> None:
        books = self._books
        for name in changes.gone_classes:
            self._put(books.classes, name, None)
        for name in changes.gone_traits:
            self._put(books.traits, name, None)
        self._name(books.classes, changes.new_classes)
        self._name(books.traits, changes.new_traits)

    async def read_trees(self, roots: Sequence[ProviderId]) -> tuple[ProviderState, ...]:
        books = self._books
        return books.states_of(
            member for root in roots if root in books.trees for member in books.trees[root].members
        )

    def commit(self) -> None:
        if not (self._touched or self._used or self._gone or self._claimed or self._ended):
            return
        books = self._books
        books.logged += 1
        books.log.append(
            Logged(
                number=books.logged,
                at=self._clock(),
                touched=tuple(self._touched),
                used=tuple(self._used),
                gone=tuple(self._gone),
                claimed=tuple(self._claimed),
                ended=tuple(self._ended),
            )
        )

    def roll_back(self) -> None:
        for undo in reversed(self._undo):
            undo()

    def _lock_consumers(
        self, named: Iterable[ConsumerId]
    ) -> tuple[dict[int, Consumer], dict[int, tuple[ResourceAmount, ...]]]:
        books = self._books
        consumers: dict[int, Consumer] = {}
        held: dict[int, tuple[ResourceAmount, ...]] = {}
        for consumer in named:
            row = books.consumers.get(consumer)
            if row is None:
                row = Consumer(id=consumer)
                self._put(books.consumers, consumer, row)
            consumers[consumer.int] = row
            if amounts := books.held.get(consumer):
                held[consumer.int] = amounts
        return consumers, held

    def _standing(self, providers: Iterable[ProviderId]) -> dict[int, ProviderRow]:
        books = self._books
        return {
            provider.int: self._seen_by_claims(row)
            for provider in providers
            if (row := books.providers.get(provider)) is not None
        }

    def _seen_by_claims(self, row: ProviderEntry) -> ProviderRow:
        book = row.book
        return ProviderRow(
            id=book.id,
            root=row.root,
            cell=row.cell,
            generation=book.generation,
            shape=self._books.trees[row.root].shape if row.root.int == book.id.int else None,
            terms=row.terms,
            used=used_in(book.inventories),
            consumers=row.consumers,
        )

    def _put(self, rows: dict[K, V], key: K, row: V | None) -> None:
        """Write a row, or without one, delete it."""
        self._undo.append(partial(_write, rows, key, rows.get(key)))
        _write(rows, key, row)

    def _rewrite(self, touched: Touched) -> None:
        row = self._books.providers[touched.provider]
        inventories: Mapping[str, InventoryState] = {
            resource: structs.replace(inventory, used=touched.used[resource])
            for resource, inventory in row.book.inventories.items()
        }
        book = structs.replace(row.book, generation=touched.generation, inventories=inventories)
        rewritten = structs.replace(row, revision=row.revision + 1, book=book, consumers=touched.consumers)
        self._put(self._books.providers, touched.provider, rewritten)
        self._used[touched.provider] = None

    def _plant(self, tree: TreeBook, book: ProviderBook) -> None:
        """Write a provider that is new or changed."""
        books = self._books
        old = books.providers.get(book.id)
        internal = old.internal if old else books.new_internal()
        revision = old.revision + 1 if old else 1
        entry = ProviderEntry(
            internal=internal,
            root=tree.root,
            cell=tree.cell,
            revision=revision,
            base=revision,
            book=book,
            terms=terms_in(book.inventories),
            consumers=old.consumers if old else books.living_on(book.id),
        )
        self._put(books.providers, book.id, entry)
        self._put(books.internals, internal, book.id)
        self._put(books.names, book.name, book.id)
        self._name(books.classes, custom_of(book.inventories))
        self._name(books.traits, custom_of(book.traits | book.operator_traits))
        self._touched[book.id] = None

    def _name(self, names: dict[str, str], wanted: Iterable[str]) -> None:
        for name in wanted:
            if name not in names:
                self._put(names, name, name)

    def _remove(self, provider: ProviderId) -> None:
        books = self._books
        row = books.providers[provider]
        self._put(books.providers, provider, None)
        self._put(books.internals, row.internal, None)
        self._put(books.names, row.book.name, None)
        if row.root == provider:
            self._put(books.trees, provider, None)
        self._gone.append(ProviderGone(internal=row.internal, id=provider, revision=row.revision + 1))


def _write(rows: dict[K, V], key: K, row: V | None) -> None:
    if row is None:
        rows.pop(key, None)
    else:
        rows[key] = row


def _consumers_named(orders: Iterable[ClaimOrder]) -> Iterator[ConsumerId]:
    for order in orders:
        yield order.consumer
        if isinstance(order, SwapClaim) and order.cleanup is not None:
            yield order.cleanup


def _providers_named(
    orders: Iterable[ClaimOrder], held: Mapping[int, Iterable[ResourceAmount]]
) -> dict[int, ProviderId]:
    """Each once. Most are named several times by one order: they are told apart as integers, which hash faster."""
    named: dict[int, ProviderId] = {}
    for order in orders:
        if isinstance(order, ReleaseClaim):
            continue
        share = order.share
        named[share.host.int] = share.host
        for amount in share.amounts:
            named[amount.provider.int] = amount.provider
        for seen in share.shapes:
            named[seen.root.int] = seen.root
    for amounts in held.values():
        for amount in amounts:
            named[amount.provider.int] = amount.provider
    return named


def _hosts_of(consumers: Mapping[int, Consumer], held: Iterable[int]) -> dict[int, ProviderId]:
    """Those that consumers live on who hold something."""
    rows = [consumers[number] for number in held]
    return {row.host.int: row.host for row in rows if row.host is not None}
