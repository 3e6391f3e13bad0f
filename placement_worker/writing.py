"""What is written into the books by name: load, decide, save. The rules live in core/.

Each function writes a batch of one kind in a transaction of its own. Kinds do not mix in one: consumers are locked before
trees, and whoever came back to a consumer after a tree could wait for somebody who waits for it.
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
from placement_worker.core.allocating import decide_allocations, shares_named_by
from placement_worker.core.ledger import Named, NamedShares
from placement_worker.core.naming import decide_names, names_named_by
from placement_worker.core.providing import decide_provider_writes, named_by
from placement_worker.core.reshaping import decide_reshape, shares_named_in, trees_named_by
from placement_worker.core.vocabulary import Vocabulary
from placement_worker.store import PlacementTransaction

Verdicts = tuple[WriteVerdict, ...]
WriteBatch = Callable[[PlacementTransaction, Sequence[Any], Vocabulary, datetime], Awaitable[Verdicts]]


async def write_providers(
    tx: PlacementTransaction, writes: Sequence[ProviderWrite], vocabulary: Vocabulary, _: datetime
) -> Verdicts:
    forest = await tx.lock_trees(named_by(writes))
    decision = decide_provider_writes(forest, writes, vocabulary)
    await tx.write_trees(decision.changes)
    return decision.verdicts


async def write_allocations(
    tx: PlacementTransaction, writes: Sequence[AllocationWrite], vocabulary: Vocabulary, now: datetime
) -> Verdicts:
    ledger = await tx.lock_shares(shares_named_by(writes))
    decision = decide_allocations(ledger, writes, vocabulary, now)
    await tx.write_claims(decision.changes)
    return decision.verdicts


async def write_names(
    tx: PlacementTransaction, writes: Sequence[NameWrite], vocabulary: Vocabulary, _: datetime
) -> Verdicts:
    names = await tx.lock_names(names_named_by(writes))
    decision = decide_names(names, writes, vocabulary)
    await tx.write_names(decision.changes)
    return decision.verdicts


async def write_reshape(
    tx: PlacementTransaction, writes: Sequence[Reshape], vocabulary: Vocabulary, now: datetime
) -> Verdicts:
    """One at a time."""
    (reshape,) = writes
    ledger = await tx.lock_shares(shares_named_in(reshape))
    forest = await tx.lock_trees(trees_named_by(reshape))
    decision = decide_reshape(ledger, forest, reshape, vocabulary, now)
    await tx.write_trees(decision.trees)
    await tx.write_claims(decision.claims)
    return (decision.verdict,)


async def lock_reshapes(tx: PlacementTransaction, reshapes: Sequence[Any]) -> None:
    """Lock all that these reshapes need, in the order of locks: the second would lock its consumers after the first has
    locked its trees, and could wait for another writer that waits for it.
    """
    shares = [shares_named_in(reshape) for reshape in reshapes]
    trees = [trees_named_by(reshape) for reshape in reshapes]
    await tx.lock_shares(
        NamedShares(
            consumers=tuple(dict.fromkeys(one for named in shares for one in named.consumers)),
            providers=tuple(dict.fromkeys(one for named in shares for one in named.providers)),
        )
    )
    await tx.lock_trees(Named(trees=frozenset(one for named in trees for one in named.trees)))


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

# Which function writes which message.
WRITES: Mapping[type[Message], WriteBatch] = {
    **dict.fromkeys(_OF_PROVIDERS, write_providers),
    **dict.fromkeys(_OF_ALLOCATIONS, write_allocations),
    **dict.fromkeys(_OF_NAMES, write_names),
    Reshape: write_reshape,
}
