"""Administrators' writes against an oracle: any writes, in any batches, end as if they had come one by one. Also the
promises about shapes and revisions.
"""

import asyncio
from collections import Counter
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Struct, structs

from bus.messages.books import (
    ConsumerAllocations,
    CreateClass,
    CreateProvider,
    CreateTrait,
    DeleteAllocations,
    DeleteClass,
    DeleteProvider,
    DeleteTrait,
    DropInventory,
    ProviderInventories,
    ProviderPlace,
    PutInventory,
    RenameClass,
    Reshape,
    SetAggregates,
    SetAllocations,
    SetInventories,
    SetPlaces,
    SetQuota,
    SetTraits,
    UpdateProvider,
    Write,
    WriteVerdict,
)
from engine.inventories import AggregateId, ReportedInventory, ResourceAmount
from kit.parts import Retrying
from placement_worker.admin_writes import WRITES, write_reshapes
from tests.contracts.placement_orders import NOON, VOCABULARY, aggregate, consumer, provider
from tests.contracts.store_client import StoreClient
from tests.properties.bounds import THOROUGH, TIMEOUT_S, not_reached
from tests.running import once
from tests.simulation.findings import Findings
from tests.simulation.stored_books import InspectableStore
from tests.simulation.write_oracle import WriteOracle
from tests.simulation.write_rules import ExpectedBooks

CONSUMERS = tuple(consumer(name) for name in ("web", "db"))
CUSTOM = ("CUSTOM_A", "CUSTOM_B")
NAMES = ("one", "two", "three")
AS_IT_IS = 1_000

providers = st.sampled_from([provider(name) for name in ("p1", "p2", "p3", "p4")])
classes = st.sampled_from(["VCPU", "VCPU", "MEMORY_MB", *CUSTOM])
traits = st.sampled_from(["STORAGE_DISK_SSD", *CUSTOM])
custom = st.sampled_from(CUSTOM)
aggregates: st.SearchStrategy[AggregateId] = st.sampled_from([aggregate("rack")])
# Mostly right: a write that its generation refuses tests no other rule.
seen = st.sampled_from([None, None, None, 0, 1, 2])
stocks = st.builds(
    ReportedInventory,
    total=st.integers(3, 6),
    reserved=st.sampled_from([0, 0, 1]),
    allocation_ratio=st.sampled_from([1.0, 1.0, 1.5]),
    min_unit=st.sampled_from([1, 1, 2]),
    max_unit=st.sampled_from([4, 9]),
    step_size=st.sampled_from([1, 1, 2]),
)
shelves = st.dictionaries(classes, stocks, max_size=2)
# Mostly of one inventory, so that the writes conflict.
amounts = st.lists(
    st.builds(
        ResourceAmount,
        provider=st.sampled_from([provider("p1")] * 3 + [provider("p2"), provider("p3"), provider("p4")]),
        resource=st.sampled_from(["VCPU"] * 4 + ["MEMORY_MB", *CUSTOM]),
        amount=st.integers(1, 5),
    ),
    max_size=2,
).map(tuple)
wishes = st.builds(
    ConsumerAllocations,
    consumer=st.sampled_from(CONSUMERS),
    amounts=amounts,
    project=st.just("shop"),
    user=st.just("ann"),
    generation=st.sampled_from([None, 1, 2]),
    judges_generation=st.sampled_from([False, False, True]),
)
# All of them on the same inventory.
crowds = st.tuples(
    *[
        st.builds(
            ConsumerAllocations,
            consumer=st.just(who),
            amounts=st.integers(1, 5).map(
                lambda amount: (ResourceAmount(provider=provider("p1"), resource="VCPU", amount=amount),)
            ),
            project=st.just("shop"),
            user=st.just("ann"),
            generation=st.none(),
            judges_generation=st.just(False),
        )
        for who in CONSUMERS
    ]
)
lists_of_wishes = st.lists(wishes, min_size=1, max_size=2).map(tuple)
writes: st.SearchStrategy[Write] = st.one_of(
    st.builds(
        CreateProvider,
        id=providers,
        name=st.sampled_from(NAMES),
        parent=st.one_of(st.none(), providers),
    ),
    st.builds(
        UpdateProvider,
        id=providers,
        name=st.sampled_from(NAMES),
        parent=st.one_of(st.just(UNSET), st.none(), providers),
        reparents=st.sampled_from([True, True, False]),
    ),
    st.builds(DeleteProvider, id=providers),
    st.builds(SetInventories, provider=providers, generation=seen, inventories=shelves),
    st.builds(
        PutInventory,
        provider=providers,
        generation=seen,
        resource=classes,
        inventory=stocks,
        is_new=st.booleans(),
    ),
    st.builds(DropInventory, provider=providers, resource=classes),
    st.builds(SetTraits, provider=providers, generation=seen, traits=st.lists(traits, max_size=2).map(tuple)),
    st.builds(
        SetAggregates,
        provider=providers,
        generation=seen,
        aggregates=st.lists(aggregates, max_size=1).map(tuple),
        moves_generation=st.booleans(),
    ),
    st.builds(
        SetPlaces,
        places=st.lists(
            st.builds(
                ProviderPlace, provider=providers, place=st.sampled_from(["", "dc1/rack1", "dc1/rack2"])
            ),
            min_size=1,
            max_size=2,
        ).map(tuple),
    ),
    st.builds(SetAllocations, consumers=lists_of_wishes),
    st.builds(SetAllocations, consumers=crowds),
    st.builds(DeleteAllocations, consumer=st.sampled_from(CONSUMERS)),
    st.builds(CreateTrait, name=custom),
    st.builds(DeleteTrait, name=custom),
    st.builds(CreateClass, name=custom),
    st.builds(RenameClass, name=custom, to=custom),
    st.builds(DeleteClass, name=custom),
    st.builds(
        Reshape,
        inventories=st.lists(
            st.builds(
                ProviderInventories,
                provider=providers,
                generation=st.sampled_from([AS_IT_IS, AS_IT_IS, 0]),
                inventories=shelves,
            ),
            max_size=2,
            unique_by=lambda one: one.provider,
        ).map(tuple),
        allocations=st.one_of(st.just(()), lists_of_wishes),
    ),
)
# A forest to begin with, so that fewer writes are for providers that do not exist.
BEGINNING: tuple[Write, ...] = (
    CreateProvider(id=provider("p1"), name="p1"),
    CreateProvider(id=provider("p2"), name="p2", parent=provider("p1")),
    CreateProvider(id=provider("p3"), name="p3"),
    *[
        SetInventories(
            provider=provider(name), generation=None, inventories={"VCPU": ReportedInventory(total=6)}
        )
        for name in ("p1", "p2", "p3")
    ],
    *[CreateClass(name=name) for name in CUSTOM],
    *[CreateTrait(name=name) for name in CUSTOM],
    PutInventory(
        provider=provider("p3"),
        generation=None,
        resource="CUSTOM_A",
        inventory=ReportedInventory(total=6),
        is_new=True,
    ),
    SetTraits(provider=provider("p3"), generation=None, traits=("CUSTOM_A",)),
    SetAllocations(
        consumers=(
            ConsumerAllocations(
                consumer=CONSUMERS[0],
                amounts=(ResourceAmount(provider=provider("p1"), resource="VCPU", amount=2),),
                project="shop",
                user="ann",
                generation=None,
            ),
        )
    ),
)


class World(Struct, frozen=True):
    writes: tuple[Write, ...]
    # Where one batch ends and the next begins, even if both are of one kind.
    cuts: tuple[bool, ...]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    drawn = (*BEGINNING, *draw(st.lists(writes, min_size=4, max_size=24)))
    return World(drawn, tuple(draw(st.lists(st.booleans(), min_size=len(drawn), max_size=len(drawn)))))


def batches_of(world: World) -> list[tuple[Write, ...]]:
    numbers: list[tuple[Any, int]] = []
    for write, cut in zip(world.writes, world.cuts, strict=True):
        batch = WRITES[type(write)]
        alone = cut or batch is write_reshapes
        last = numbers[-1] if numbers else (None, 0)
        numbers.append((batch, last[1] if last[0] is batch and not alone else last[1] + 1))
    pairs = zip(numbers, world.writes, strict=True)
    return [tuple(write for _, write in group) for _, group in groupby(pairs, key=lambda pair: pair[0])]


async def written(client: StoreClient, batch: tuple[Write, ...]) -> tuple[WriteVerdict, ...]:
    """As a worker writes it, which tries again what it judged by a tree that it remembered wrong."""
    return await Retrying(2)(_written, client, batch)


async def _written(client: StoreClient, batch: tuple[Write, ...]) -> tuple[WriteVerdict, ...]:
    return tuple(
        await once(client.store.transaction, lambda tx: WRITES[type(batch[0])](tx, batch, VOCABULARY, NOON))
    )


@pytest.mark.timeout(TIMEOUT_S)
def test_every_sequence_in_any_batches_ends_as_the_keeper_says() -> None:
    met: Counter[tuple[str, str]] = Counter()

    @THOROUGH
    @given(worlds())
    def search(world: World) -> None:
        met.update(asyncio.run(compared(world)))

    search()
    verdicts = (
        *("Done", "ProviderWritten", "AlreadyThere", "UnknownProvider", "UnknownClass", "UnknownTrait"),
        *("UnknownConsumer", "GenerationMoved", "ConsumerMoved", "NameTaken", "IdTaken", "HasChildren"),
        *("InventoryPresent", "InventoryAbsent", "InventoryInUse", "NameInUse", "DoesNotFit", "NotAllowed"),
    )
    # Quotas refuse no write by name. Their own tests are in the store's contract and in the simulation.
    kinds = [kind.__name__ for kind in WRITES if kind is not SetQuota]
    done = {kind for kind, verdict in met if verdict in ("Done", "ProviderWritten")}
    assert not_reached(verdicts, {verdict for _, verdict in met}) == not_reached(kinds, done) == []
    assert done <= {*kinds}


async def compared(world: World) -> list[tuple[str, str]]:
    """The kinds of writes, with their verdicts."""
    store, findings = InspectableStore(), Findings()
    client, oracle = StoreClient(store), WriteOracle(findings, store)
    books = oracle.expected
    met = []
    for drawn in batches_of(world):
        batch = tuple([as_it_is(books, write) for write in drawn])
        verdicts = await written(client, batch)
        oracle.judged(batch, verdicts)
        oracle.written(())
        assert findings.broken is None
        met += [
            (type(write).__name__, type(each).__name__) for write, each in zip(batch, verdicts, strict=True)
        ]
        assert {id_: each.root for id_, each in store.rows.providers.items()} == {
            id_: books.ancestors(id_)[-1] for id_ in books.providers
        }
        assert await client.store.audit() == ()
    return met


def as_it_is(books: ExpectedBooks, write: Write) -> Write:
    """The write, with the provider's current generation."""
    if not isinstance(write, Reshape):
        return write
    seen_by_it = [
        structs.replace(one, generation=books.providers[one.provider].generation)
        if one.generation == AS_IT_IS and one.provider in books.providers
        else one
        for one in write.inventories
    ]
    return structs.replace(write, inventories=tuple(seen_by_it))
