"""Administrators' writes: load, decide, save. The rules are in core/.

Each function writes a batch of one kind in its own transaction. Kinds do not mix: consumers are locked before trees, so a
transaction that locked a consumer after a tree could deadlock with another one.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from bus.message import Message
from bus.messages.administration import (
    AllocationWrite,
    CreateClass,
    CreateProvider,
    CreateTrait,
    DeleteAllocations,
    DeleteClass,
    DeleteProvider,
    DeleteTrait,
    DropInventory,
    NameWrite,
    ProviderWrite,
    PutInventory,
    RenameClass,
    Reshape,
    SetAggregates,
    SetAllocations,
    SetInventories,
    SetTraits,
    UpdateProvider,
    WriteVerdict,
)
from bus.messages.quotas import SetQuota
from placement_worker.core.claim_keys import keys_of_shares
from placement_worker.core.ledger import ForestKeys
from placement_worker.core.quotas import decide_quotas, keys_of_quotas
from placement_worker.core.vocabulary import Vocabulary
from placement_worker.core.writes.allocation_writes import decide_allocations, keys_of_allocation_writes
from placement_worker.core.writes.name_writes import decide_names, keys_of_name_writes
from placement_worker.core.writes.provider_writes import decide_provider_writes, keys_of_provider_writes
from placement_worker.core.writes.reshapes import allocation_keys_of, decide_reshape, forest_keys_of
from placement_worker.store import PlacementTransaction

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
    if len(writes) == 1 and (claim := await tx.at_once(keys)) is not None:
        decision = decide_allocations(claim.ledger, writes, vocabulary, now)
        if await claim.is_written(decision.changes):
            return decision.verdicts
    ledger = await tx.lock_allocations(keys)
    decision = decide_allocations(ledger, writes, vocabulary, now)
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
    """Decide and write reshapes one after another in one transaction, which first takes the locks of all of them.

    Otherwise the second reshape would lock its consumers after the first one has locked its trees, and the transaction
    could deadlock with another writer.
    """
    if len(writes) > 1:
        await lock_reshapes(tx, writes)
    verdicts: list[WriteVerdict] = []
    for reshape in writes:
        ledger = await tx.lock_allocations(allocation_keys_of(reshape))
        forest = await tx.lock_trees(forest_keys_of(reshape))
        decision = decide_reshape(ledger, forest, reshape, vocabulary, now)
        await tx.write_trees(decision.trees)
        await tx.write_claims(decision.claims)
        verdicts.append(decision.verdict)
    return tuple(verdicts)


async def lock_reshapes(tx: PlacementTransaction, reshapes: Sequence[Reshape]) -> None:
    """Lock what these reshapes change.

    First come the consumers and the providers that their allocations name, then the trees whose inventories change.
    """
    shares = [allocation_keys_of(reshape) for reshape in reshapes]
    await tx.lock_allocations(
        keys_of_shares(
            consumers=[one for keys in shares for one in keys.consumers],
            providers=[one for keys in shares for one in keys.providers],
        )
    )
    trees = [one.provider for reshape in reshapes for one in reshape.inventories]
    await tx.lock_trees(ForestKeys(trees=frozenset(trees)))


_OF_PROVIDERS: tuple[type[Message], ...] = (
    CreateProvider,
    UpdateProvider,
    DeleteProvider,
    SetInventories,
    PutInventory,
    DropInventory,
    SetTraits,
    SetAggregates,
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
