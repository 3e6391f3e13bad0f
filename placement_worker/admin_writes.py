"""Administrators' writes, from the bus and over HTTP: load, decide, save. The rules are in core/.

Each function writes a batch of one kind in its own transaction. Kinds do not mix: consumers are locked before trees, so a
transaction that locked a consumer after a tree could deadlock with another one.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar

from bus.message import Message
from bus.messages.books import (
    AllocationWrite,
    AlreadyThere,
    AskConsumer,
    AskHolders,
    AskNames,
    AskQuotas,
    AskUsages,
    ConsumerFound,
    CreateClass,
    CreateProvider,
    CreateTrait,
    DeleteAllocations,
    DeleteClass,
    DeleteProvider,
    DeleteTrait,
    Done,
    DropInventory,
    HoldersFound,
    NamesFound,
    NameWrite,
    ProviderWrite,
    ProviderWritten,
    PutInventory,
    QuotasFound,
    RenameClass,
    Reshape,
    SetAggregates,
    SetAllocations,
    SetInventories,
    SetPlaces,
    SetQuota,
    SetTraits,
    UpdateProvider,
    UsagesFound,
    Write,
    WriteAnswered,
    WriteVerdict,
)
from bus.messages.cloud import page_that_fits
from bus.workers.consuming import Transactions
from bus.workers.handlers import Answer, Bury, Handler, Handlers, Received, Said, Weighed, answering
from engine.inventories import Vocabulary
from kit.errors import Transient
from kit.parts import Retrying
from placement_worker.core.allocation_writes import decide_allocations, keys_of_allocation_writes
from placement_worker.core.ledger import Forest, Ledger
from placement_worker.core.limits import decide_quotas, keys_of_quotas
from placement_worker.core.provider_writes import (
    decide_names,
    decide_provider_writes,
    keys_of_name_writes,
    keys_of_provider_writes,
)
from placement_worker.core.reshapes import ReshapeDecision, ReshapeKeys, decide_reshape, keys_of_reshape
from placement_worker.store import AdminDecision
from placement_worker.store_sql import PlacementStore, PlacementTransaction

T = TypeVar("T")
Verdicts = tuple[WriteVerdict, ...]
WriteBatch = Callable[[PlacementTransaction, Sequence[Any], Vocabulary, datetime], Awaitable[Verdicts]]


async def write_providers(
    tx: PlacementTransaction, writes: Sequence[ProviderWrite], vocabulary: Vocabulary, _: datetime
) -> Verdicts:
    forest = await tx.lock_trees(keys_of_provider_writes(writes))
    decision = decide_provider_writes(forest, writes, vocabulary)
    await tx.write_trees(decision.changes)
    return decision.verdicts


async def write_allocations(
    tx: PlacementTransaction, writes: Sequence[AllocationWrite], vocabulary: Vocabulary, now: datetime
) -> Verdicts:
    keys = keys_of_allocation_writes(writes)

    def decide(ledger: Ledger) -> AdminDecision:
        return decide_allocations(ledger, writes, vocabulary, now)

    if len(writes) == 1 and (decided := await tx.decided_at_once(keys, decide)):
        return decided.verdicts
    decision = decide(await tx.lock_claims(keys))
    await tx.write_claims(decision.changes)
    return decision.verdicts


async def write_names(
    tx: PlacementTransaction, writes: Sequence[NameWrite], vocabulary: Vocabulary, _: datetime
) -> Verdicts:
    names = await tx.lock_names(keys_of_name_writes(writes))
    decision = decide_names(names, writes, vocabulary)
    await tx.write_names(decision.changes)
    return decision.verdicts


async def write_quotas(
    tx: PlacementTransaction, orders: Sequence[SetQuota], vocabulary: Vocabulary, _: datetime
) -> Verdicts:
    book = await tx.lock_quotas(keys_of_quotas(orders))
    decision = decide_quotas(book, orders, vocabulary)
    await tx.write_quotas(decision.changes)
    return decision.verdicts


async def write_reshapes(
    tx: PlacementTransaction, writes: Sequence[Reshape], vocabulary: Vocabulary, now: datetime
) -> Verdicts:
    """Write a reshape: one in each transaction, since a second one would lock its consumers after the trees of the first."""
    (write,) = writes
    verdict = await reshape_by(
        tx,
        keys_of_reshape(write),
        lambda ledger, forest: decide_reshape(ledger, forest, write, vocabulary, now),
    )
    return (verdict,)


async def reshape_by(
    tx: PlacementTransaction, keys: ReshapeKeys, decide: Callable[[Ledger, Forest], ReshapeDecision[T]]
) -> T:
    """Decide a reshape on the rows of these keys, and write it."""
    claims, trees = keys
    ledger = await tx.lock_claims(claims)
    decision = decide(ledger, await tx.lock_trees(trees))
    await tx.write_trees(decision.trees)
    await tx.write_claims(decision.claims)
    return decision.verdict


_OF_PROVIDERS: tuple[type[Message], ...] = (
    CreateProvider,
    UpdateProvider,
    DeleteProvider,
    SetInventories,
    PutInventory,
    DropInventory,
    SetTraits,
    SetAggregates,
    SetPlaces,
)
_OF_ALLOCATIONS: tuple[type[Message], ...] = (SetAllocations, DeleteAllocations)
_OF_NAMES: tuple[type[Message], ...] = (CreateTrait, DeleteTrait, CreateClass, RenameClass, DeleteClass)

# The function that writes each message.
WRITES: Mapping[type[Message], WriteBatch] = {
    **dict.fromkeys(_OF_PROVIDERS, write_providers),
    **dict.fromkeys(_OF_ALLOCATIONS, write_allocations),
    **dict.fromkeys(_OF_NAMES, write_names),
    Reshape: write_reshapes,
    SetQuota: write_quotas,
}

# Batch administrators' writes: writes that wait at the same time share one transaction.
#
# Each kind of write has a queue. A write to an idle queue starts at once, alone or with others of the same moment. Writes
# that arrive during a batch form the next one. So a single write does not wait, and many writes cost the database one
# transaction. A batch that fails is written again one by one, so that a bad write harms only itself. Transient errors are
# retried before that.
#
# Callers that write again as soon as they are answered would split into two halves, each waiting for the other's batch. So
# the next batch first waits until it has as many writes as there were before: those of the last batch, and those that
# waited behind it. It does not wait long, since those callers come back at once, or not at all. The batch is soon complete,
# costs the database half, and all of the callers are answered sooner.


# The size at which a batch of claims is cheapest.
BATCH_MAX = 200
TRIES_MAX = 8
# The next batch waits for this share of the last batch's time at most: no caller loses more than that by waiting.
LINGER_SHARE = 0.25


class WriteBatcher:
    """Collects writes that run at the same time, and commits them in batches. `batches` counts committed transactions."""

    def __init__(
        self,
        transactions: Transactions[PlacementTransaction],
        vocabulary: Vocabulary,
        clock: Callable[[], datetime],
        *,
        tries_max: int = TRIES_MAX,
    ) -> None:
        self._transactions = transactions
        self._vocabulary = vocabulary
        self._clock = clock
        self._retrying = Retrying(tries_max)
        self._queues = {write: _WriteQueue(self, write) for write in dict.fromkeys(WRITES.values())}
        self.batches = 0

    async def ask(self, write: Write) -> WriteVerdict:
        """Write this with others of its kind, and return its verdict.

        Raises `Transient` if the database cannot be reached: then nothing was written.
        """
        return await self._queues[WRITES[type(write)]].ask(write)

    async def write(self, batch: WriteBatch, writes: Sequence[Write]) -> tuple[WriteVerdict, ...]:
        """Write these writes, which are of one kind, in one transaction."""
        verdicts = await self._retrying(self._write_once, batch, writes)
        self.batches += 1
        return verdicts

    async def _write_once(self, batch: WriteBatch, writes: Sequence[Write]) -> tuple[WriteVerdict, ...]:
        async with self._transactions.transaction() as tx:
            return await batch(tx, writes, self._vocabulary, self._clock())

    async def close(self) -> None:
        """Wait until all writes are answered."""
        await asyncio.gather(*[queue.emptied() for queue in self._queues.values()])


class _PendingWrite(NamedTuple):
    write: Write
    answer: asyncio.Future[WriteVerdict]


class _WriteQueue:
    """The waiting writes of one kind. One batch runs at a time."""

    def __init__(self, batcher: WriteBatcher, batch: WriteBatch) -> None:
        self._batcher = batcher
        self._batch = batch
        self._size_max = 1 if batch is write_reshapes else BATCH_MAX
        self._waiting: deque[_PendingWrite] = deque()
        self._work: asyncio.Task[None] | None = None
        # How many writes the next batch expects, until when it waits for them, and the event that all have come.
        self._expected = 1
        self._until_s = 0.0
        self._all_there = asyncio.Event()

    async def ask(self, write: Write) -> WriteVerdict:
        loop = asyncio.get_running_loop()
        asked = _PendingWrite(write, loop.create_future())
        self._waiting.append(asked)
        if self._work is None:
            self._work = loop.create_task(self._empty())
        elif len(self._waiting) >= self._expected:
            self._all_there.set()
        return await asked.answer

    async def emptied(self) -> None:
        # After close() no more writes come.
        self._expected = 1
        self._all_there.set()
        if self._work is not None:
            await self._work

    async def _empty(self) -> None:
        try:
            while self._waiting:
                await self._linger()
                await self._write_next()
        finally:
            self._work = None

    async def _linger(self) -> None:
        left_s = self._until_s - asyncio.get_running_loop().time()
        if len(self._waiting) >= self._expected or left_s <= 0:
            return
        self._all_there.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._all_there.wait()

    async def _write_next(self) -> None:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        if batch := self._next():
            await self._settle(batch)
        ended_s = clock()
        self._expected = min(len(batch) + len(self._waiting), self._size_max)
        self._until_s = ended_s + (ended_s - began_s) * LINGER_SHARE

    def _next(self) -> list[_PendingWrite]:
        """Take the writes of the next batch from the queue, without those whose callers have given up."""
        batch: list[_PendingWrite] = []
        while self._waiting and len(batch) < self._size_max:
            asked = self._waiting.popleft()
            if not asked.answer.done():
                batch.append(asked)
        return batch

    async def _settle(self, batch: Sequence[_PendingWrite]) -> None:
        try:
            verdicts = await self._batcher.write(self._batch, [asked.write for asked in batch])
        except Exception as problem:  # noqa: BLE001 - each caller gets it; this loop also serves others
            if len(batch) == 1 or isinstance(problem, Transient):
                _fail(batch, problem)
                return
            for asked in batch:
                await self._settle((asked,))
            return
        for asked, verdict in zip(batch, verdicts, strict=True):
            if not asked.answer.done():
                asked.answer.set_result(verdict)


def _fail(batch: Sequence[_PendingWrite], problem: Exception) -> None:
    for asked in batch:
        if not asked.answer.done():
            asked.answer.set_exception(problem)


# Handlers for administrators' writes, and for questions about consumers and names, as they arrive on the bus.


def write_handlers(vocabulary: Vocabulary, clock: Callable[[], datetime]) -> Handlers:
    """The handlers of administrators' writes, by message type.

    Writes of one kind share a handler, so that neighbours in the queue are written in one batch.
    """

    def by(batch: WriteBatch) -> Handler:
        async def on_writes(asks: Sequence[Received[Write]], tx: PlacementTransaction) -> list[Said]:
            verdicts = await batch(tx, [ask.message for ask in asks], vocabulary, clock())
            return [_answer(ask, verdict) for ask, verdict in zip(asks, verdicts, strict=True)]

        return on_writes

    handlers: dict[WriteBatch, Handler | Weighed] = {
        batch: by(batch) for batch in dict.fromkeys(WRITES.values())
    }
    handlers[write_reshapes] = Weighed(by(write_reshapes), lambda _: 1, 1)
    return {kind: handlers[batch] for kind, batch in WRITES.items()}


def question_handlers(store: PlacementStore) -> Handlers:
    return {
        AskConsumer: answering(partial(_consumer, store)),
        AskHolders: answering(partial(_holders, store)),
        AskUsages: answering(partial(_usages, store)),
        AskNames: answering(partial(_names, store)),
        AskQuotas: answering(partial(_quotas, store)),
    }


def _answer(ask: Received[Write], verdict: WriteVerdict) -> Said:
    # A provider or trait that exists already is as good as created. For a rename, a taken name is a refusal.
    is_as_wanted = isinstance(verdict, Done | ProviderWritten) or (
        isinstance(verdict, AlreadyThere) and not isinstance(ask.message, RenameClass)
    )
    if not ask.reply_to and not is_as_wanted:
        # No one waits for an answer, and a refused write must not vanish: it becomes a dead letter.
        return Bury(ask, f"not written, {_in_words(verdict)}")
    return Answer(ask, WriteAnswered(verdict=verdict))


def _in_words(verdict: WriteVerdict) -> str:
    what = ", ".join(f"{field} {getattr(verdict, field)}" for field in verdict.__struct_fields__)
    return f"{verdict.__struct_config__.tag}: {what}"


async def _consumer(store: PlacementStore, ask: AskConsumer) -> ConsumerFound:
    return ConsumerFound(consumer=await store.consumer(ask.consumer))


async def _usages(store: PlacementStore, ask: AskUsages) -> UsagesFound:
    return UsagesFound(usages=await store.usages(ask.project, ask.user))


async def _holders(store: PlacementStore, ask: AskHolders) -> HoldersFound:
    """Answer which consumers hold something of a provider: as many as fit into one message.

    The next page starts after the last consumer of this one.
    """
    holders = await store.holders_of(ask.provider, ask.after, ask.limit + 1)
    page = page_that_fits(holders[: ask.limit])
    return HoldersFound(holders=page, next=page[-1].id if len(page) < len(holders) else None)


async def _names(store: PlacementStore, ask: AskNames) -> NamesFound:
    names = await store.custom_names(ask.of, ask.after, ask.limit + 1)
    if len(names) <= ask.limit:
        return NamesFound(names=names)
    return NamesFound(names=names[: ask.limit], next=names[ask.limit - 1])


async def _quotas(store: PlacementStore, ask: AskQuotas) -> QuotasFound:
    found = await store.quotas(ask.project, ask.after, ask.limit + 1)
    page = page_that_fits(found[: ask.limit])
    return QuotasFound(quotas=page, next=page[-1].project if len(page) < len(found) else "")
