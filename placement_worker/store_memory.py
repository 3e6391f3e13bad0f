"""Placement's books in the memory of one process, for the embedded mode, tests and simulation.

One transaction runs at a time, and readers wait for it. A transaction writes in place and notes how to undo each step,
so that it costs what it changes and not what there is.
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from msgspec import Struct, structs

from bus.message import ConsumerId, ProviderId
from bus.messages.placement import (
    Holder,
    InventoryState,
    LogPosition,
    ProviderGone,
    ProviderState,
    ProviderUsage,
    ReleaseClaim,
    ReportInventory,
    ResourceAmount,
    RevisionsPage,
    SnapshotPage,
    SwapClaim,
)
from placement_worker.core.audit import contradictions
from placement_worker.core.ledger import (
    ClaimChanges,
    ClaimOrder,
    Consumer,
    Forest,
    Ledger,
    ProviderBook,
    ProviderRow,
    TreeBook,
    TreeChanges,
)
from placement_worker.store import ChangeFeed, PlacementTransaction, Unpublished

K = TypeVar("K")
V = TypeVar("V")


class _Provider(Struct, frozen=True):
    """A row: a book, and what the books do not tell."""

    internal: int
    root: ProviderId
    cell: str
    revision: int
    # The last revision at which more of it changed than what is used.
    base: int
    book: ProviderBook


class _Tree(Struct, frozen=True):
    cell: str
    shape: int
    epoch: int
    sequence: int
    members: tuple[ProviderId, ...]


class _Stump(Struct, frozen=True):
    tree: TreeBook
    felled_at: datetime


class _Logged(Struct, frozen=True):
    """What one transaction wrote."""

    number: int
    at: datetime
    touched: tuple[ProviderId, ...]
    used: tuple[ProviderId, ...]
    gone: tuple[ProviderGone, ...]
    claimed: tuple[Holder, ...]
    ended: tuple[Holder, ...]


class _Books:
    """All rows. Only a transaction changes them, but for the log's marks."""

    def __init__(self) -> None:
        self.consumers: dict[ConsumerId, Consumer] = {}
        self.held: dict[ConsumerId, tuple[ResourceAmount, ...]] = {}
        self.providers: dict[ProviderId, _Provider] = {}
        self.trees: dict[ProviderId, _Tree] = {}
        self.stumps: dict[ProviderId, _Stump] = {}
        self.names: dict[str, ProviderId] = {}
        self.internals: dict[int, ProviderId] = {}
        self.log: list[_Logged] = []
        self.logged = 0
        self.marked = 0
        self.pruned = 0
        self.published = LogPosition(term=0, position=0)
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
        )

    def logged_after(self, number: int) -> Sequence[_Logged]:
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
            )
            for row in sorted(rows, key=lambda row: row.internal)
        )

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


class _Transaction:
    """Writes in place, and knows how to take it back."""

    def __init__(self, books: _Books, clock: Callable[[], datetime]) -> None:
        self._books = books
        self._clock = clock
        self._undo: list[Callable[[], None]] = []
        self._touched: dict[ProviderId, None] = {}
        self._used: dict[ProviderId, None] = {}
        self._gone: list[ProviderGone] = []
        self._claimed: list[Holder] = []
        self._ended: list[Holder] = []

    async def lock_claims(self, orders: Sequence[ClaimOrder]) -> Ledger:
        books = self._books
        consumers: dict[int, Consumer] = {}
        held: dict[int, tuple[ResourceAmount, ...]] = {}
        for consumer in _consumers_named(orders):
            row = books.consumers.get(consumer)
            if row is None:
                row = Consumer(id=consumer)
                self._put(books.consumers, consumer, row)
            consumers[consumer.int] = row
            if amounts := books.held.get(consumer):
                held[consumer.int] = amounts
        return Ledger(
            consumers=consumers,
            held=held,
            providers={
                provider.int: self._seen_by_claims(standing)
                for provider in _providers_named(orders, held)
                if (standing := books.providers.get(provider)) is not None
            },
        )

    async def write_claims(self, changes: ClaimChanges) -> None:
        books = self._books
        for consumer in changes.consumers:
            self._put(books.consumers, consumer.id, consumer)
        for forgotten in changes.forgotten:
            self._put(books.consumers, forgotten, None)
        for holder, amounts in changes.held:
            self._put(books.held, holder, amounts or None)
        used: dict[int, dict[str, int]] = {}
        for provider, resource, amount in changes.used:
            used.setdefault(provider.int, {})[resource] = amount
        for provider, generation in changes.generations:
            self._rewrite(provider, generation, used.get(provider.int, {}))
        self._claimed += changes.claimed
        self._ended += changes.ended

    async def lock_trees(self, reports: Sequence[ReportInventory]) -> Forest:
        books = self._books
        roots = dict.fromkeys(report.root for report in reports)
        named = [
            provider
            for report in reports
            for provider in (report.root, *[one.id for one in report.providers], *report.removed)
        ]
        names = [one.name for report in reports for one in report.providers]
        return Forest(
            trees={root: ground for root in roots if (ground := books.ground(root)) is not None},
            elsewhere={
                provider: row.root
                for provider in named
                if (row := books.providers.get(provider)) is not None and row.root not in roots
            },
            names={name: books.names[name] for name in names if name in books.names},
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
                self._put(books.stumps, tree.root, _Stump(tree, self._clock()))
                continue
            kept = _Tree(tree.cell, tree.shape, tree.epoch, tree.sequence, tuple(tree.providers))
            self._put(books.trees, tree.root, kept)
            self._put(books.stumps, tree.root, None)
            for book in tree.providers.values():
                if book.id in changed:
                    self._plant(tree, book)

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
            _Logged(
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

    def _seen_by_claims(self, row: _Provider) -> ProviderRow:
        book = row.book
        return ProviderRow(
            id=book.id,
            root=row.root,
            cell=row.cell,
            generation=book.generation,
            shape=self._books.trees[row.root].shape if row.root.int == book.id.int else None,
            inventories=book.inventories,
        )

    def _put(self, rows: dict[K, V], key: K, row: V | None) -> None:
        """Write a row, or without one, delete it."""
        self._undo.append(partial(_write, rows, key, rows.get(key)))
        _write(rows, key, row)

    def _rewrite(self, provider: ProviderId, generation: int, used: Mapping[str, int]) -> None:
        row = self._books.providers[provider]
        inventories: Mapping[str, InventoryState] = row.book.inventories
        if used:
            inventories = {
                resource: structs.replace(inventory, used=used[resource]) if resource in used else inventory
                for resource, inventory in inventories.items()
            }
        book = structs.replace(row.book, generation=generation, inventories=inventories)
        self._put(self._books.providers, provider, structs.replace(row, revision=row.revision + 1, book=book))
        self._used[provider] = None

    def _plant(self, tree: TreeBook, book: ProviderBook) -> None:
        """Write a provider that is new or changed."""
        books = self._books
        old = books.providers.get(book.id)
        internal = old.internal if old else books.new_internal()
        revision = old.revision + 1 if old else 1
        self._put(
            books.providers, book.id, _Provider(internal, tree.root, tree.cell, revision, revision, book)
        )
        self._put(books.internals, internal, book.id)
        self._put(books.names, book.name, book.id)
        self._touched[book.id] = None

    def _remove(self, provider: ProviderId) -> None:
        books = self._books
        row = books.providers[provider]
        self._put(books.providers, provider, None)
        self._put(books.internals, row.internal, None)
        self._put(books.names, row.book.name, None)
        if row.root == provider:
            self._put(books.trees, provider, None)
        self._gone.append(ProviderGone(internal=row.internal, id=provider, revision=row.revision + 1))


class _Feed:
    def __init__(self, books: _Books, lock: asyncio.Lock, term: int) -> None:
        self._books = books
        self._lock = lock
        self._term = term

    @property
    def published(self) -> LogPosition:
        return self._books.published

    async def read(self) -> Unpublished:
        async with self._lock:
            books = self._books
            entries = books.logged_after(books.marked)
            touched = dict.fromkeys(provider for entry in entries for provider in entry.touched)
            return Unpublished(
                cursor=str(books.logged),
                providers=books.states_of(touched),
                usage=books.usage_of(one for entry in entries for one in entry.used if one not in touched),
                gone=tuple(gone for entry in entries for gone in entry.gone),
                claimed=tuple(holder for entry in entries for holder in entry.claimed),
                ended=tuple(holder for entry in entries for holder in entry.ended),
            )

    async def mark(self, position: int, cursor: str) -> None:
        async with self._lock:
            self._books.marked = int(cursor)
            self._books.published = LogPosition(term=self._term, position=position)


def _now() -> datetime:
    return datetime.now(UTC)


class MemoryPlacementStore:
    """`clock` says when a log row was written or a tree felled, which only pruning asks for."""

    def __init__(self, clock: Callable[[], datetime] = _now) -> None:
        self._books = _Books()
        self._lock = asyncio.Lock()
        self._clock = clock
        self._is_led = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PlacementTransaction]:
        async with self._lock:
            transaction = _Transaction(self._books, self._clock)
            try:
                yield transaction
            except BaseException:
                # A cancellation undoes it, too.
                transaction.roll_back()
                raise
            transaction.commit()

    async def snapshot_page(self, after: int, limit: int) -> SnapshotPage:
        async with self._lock:
            books = self._books
            following = sorted(internal for internal in books.internals if internal > after)
            page = following[:limit]
            return SnapshotPage(
                providers=books.states_of(books.internals[internal] for internal in page),
                published=books.published,
                next=page[-1] if len(following) > limit else None,
                cursor=str(books.logged),
            )

    async def changes_page(self, since: str, after: int, limit: int) -> SnapshotPage | None:
        async with self._lock:
            books = self._books
            if not since.isdecimal() or not books.pruned <= int(since) <= books.logged:
                return None
            entries = books.logged_after(int(since))
            changed = books.states_of(one for entry in entries for one in (*entry.touched, *entry.used))
            following = [state for state in changed if state.internal > after]
            page = tuple(following[:limit])
            return SnapshotPage(
                providers=page,
                published=books.published,
                next=page[-1].internal if len(following) > limit else None,
                since=since,
                cursor=str(books.logged),
                gone=tuple(gone for entry in entries for gone in entry.gone),
            )

    async def revisions_page(self, after: int, limit: int) -> RevisionsPage:
        async with self._lock:
            books = self._books
            following = sorted(internal for internal in books.internals if internal > after)
            page = following[:limit]
            return RevisionsPage(
                internals=tuple(page),
                revisions=tuple(books.providers[books.internals[internal]].revision for internal in page),
                next=page[-1] if len(following) > limit else None,
            )

    @asynccontextmanager
    async def lead_feed(self) -> AsyncIterator[ChangeFeed | None]:
        if self._is_led:
            yield None
            return
        self._is_led = True
        term = self._books.published.term + 1
        self._books.published = LogPosition(term=term, position=0)
        try:
            yield _Feed(self._books, self._lock, term)
        finally:
            self._is_led = False

    async def prune(self, ended_before: datetime, logged_before: datetime) -> int:
        async with self._lock:
            books = self._books
            forgotten = [
                consumer.id
                for consumer in books.consumers.values()
                if consumer.ended_at is not None and consumer.ended_at < ended_before
            ]
            for consumer in forgotten:
                del books.consumers[consumer]
            rotten = [root for root, stump in books.stumps.items() if stump.felled_at < ended_before]
            for root in rotten:
                del books.stumps[root]
            kept = [entry for entry in books.log if entry.number > books.marked or entry.at >= logged_before]
            gone = [entry for entry in books.log if entry.number <= books.marked and entry.at < logged_before]
            books.pruned = max([books.pruned, *[entry.number for entry in gone]])
            books.log = kept
            return len(forgotten) + len(rotten) + len(gone)

    async def audit(self) -> tuple[str, ...]:
        async with self._lock:
            books = self._books
            trees = {root: books.tree_book(root) for root in books.trees}
            return contradictions(books.consumers, books.held, trees)

    async def close(self) -> None:
        """Nothing to let go of."""


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
) -> Iterable[ProviderId]:
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
    return named.values()
