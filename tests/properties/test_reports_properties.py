"""Reports of trees: after any reports, in any batches, the forest is valid and nothing in use is lost."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from bus.messages.placement import ReportAccepted, ReportInventory
from engine.inventories import AggregateId, ProviderId, ProviderState, ReportedInventory, ReportedProvider
from kit.parts import Retrying
from tests.contracts.placement_orders import a_claim, a_share, aggregate, amounts, consumer, provider
from tests.contracts.store_client import StoreClient, used
from tests.properties.bounds import BOUNDED
from tests.properties.worlds import mostly
from tests.simulation.loop import simulated
from tests.stores_in_memory import MemoryPlacementStore

A, B, C, D = PROVIDERS = tuple(provider(name) for name in "abcd")
NAMES = ("north", "east", "south", "west")
NOTHING: tuple[int, frozenset[object]] = (0, frozenset())
RACK = aggregate("rack")

some_inventories = mostly(
    [
        None,
        {},
        {"VCPU": ReportedInventory(total=4)},
        {"VCPU": ReportedInventory(total=1), "MEMORY_MB": ReportedInventory(total=8, reserved=1)},
    ],
    [{"VCPU": ReportedInventory(total=1, reserved=2)}],
)
some_traits = mostly([None, (), ("CUSTOM_A",), ("CUSTOM_A", "HW_CPU_X86_VMX")], [("UNHEARD_OF",)])
some_aggregates: st.SearchStrategy[tuple[AggregateId, ...] | None] = st.sampled_from([None, (), (RACK,)])
reported = st.builds(
    ReportedProvider,
    id=st.sampled_from(PROVIDERS),
    name=st.sampled_from(NAMES),
    parent=st.sampled_from([None, *PROVIDERS]),
    inventories=some_inventories,
    traits=some_traits,
    aggregates=some_aggregates,
)
wild_reports = st.builds(
    ReportInventory,
    cell=st.sampled_from(["c1", "c1", "c1", "c2"]),
    root=st.sampled_from([A, A, B]),
    providers=st.lists(reported, max_size=3).map(tuple),
    removed=st.lists(st.sampled_from(PROVIDERS), max_size=2).map(tuple),
    epoch=st.integers(0, 1),
    sequence=st.integers(0, 3),
)


@st.composite
def sound_reports(draw: st.DrawFn) -> ReportInventory:
    """A report that is valid by itself, and often with the stored trees."""
    root = draw(st.sampled_from([A, A, B]))
    below = [C, D] if draw(st.booleans()) else [D, C]
    told = draw(st.integers(0, 3))
    lineage: list[ProviderId | None] = [None, root, draw(st.sampled_from([root, below[0]]))]
    providers = [
        structs.replace(
            draw(reported), id=one, parent=parent, name=draw(mostly([NAMES[PROVIDERS.index(one)]], NAMES))
        )
        for one, parent in zip([root, *below], lineage, strict=True)
    ]
    gone = [one for one in below if one not in [each.id for each in providers[:told]]]
    removed = gone if draw(st.booleans()) else []
    if told == 0 and removed and draw(st.booleans()):
        removed = [*removed, root]
    return ReportInventory(cell="c1", root=root, providers=tuple(providers[:told]), removed=tuple(removed))


batches_of_reports = st.lists(
    st.lists(
        st.one_of(sound_reports(), sound_reports(), sound_reports(), wild_reports), min_size=1, max_size=4
    ),
    min_size=4,
    max_size=8,
)
Batches = list[list[ReportInventory]]


@BOUNDED
@given(batches_of_reports)
@simulated
async def test_reports_end_alike_in_whatever_batches_they_come(batches: Batches) -> None:
    together, apart = StoreClient(MemoryPlacementStore()), StoreClient(MemoryPlacementStore())
    for batch in batches:
        assert await together.report(*batch) == tuple([await apart.report_one(one) for one in batch])
        assert known(await together.providers()) == known(await apart.providers())
        assert await together.store.audit() == ()


@BOUNDED
@given(batches_of_reports)
@simulated
async def test_the_shape_tells_of_every_change_that_claims_may_rely_on(batches: Batches) -> None:
    client = StoreClient(MemoryPlacementStore())
    shapes: dict[ProviderId, int] = {}
    for report in [report for batch in batches for report in batch]:
        before = trees(await client.providers())
        verdict = await client.report_one(report)
        after = trees(await client.providers())
        for root in {**before, **after}:
            # Deleted or not, a tree never gets the same shape twice.
            moved = after.get(root, NOTHING)[1] != before.get(root, NOTHING)[1]
            shapes[root] = shapes.get(root, 0) + moved
            assert after.get(root, NOTHING)[0] in (0, shapes[root])
        moved = after.get(report.root) != before.get(report.root)
        assert moved == (isinstance(verdict, ReportAccepted) and verdict.shape_moved)


@BOUNDED
@given(batches_of_reports)
@simulated
async def test_what_is_held_is_never_taken_away_by_a_report(batches: Batches) -> None:
    client = StoreClient(MemoryPlacementStore())
    for batch in batches:
        await client.report(*batch)
        for which in PROVIDERS:
            # As a worker: what its store remembers of a provider may be out of date once.
            await Retrying(4)(
                client.ask,
                a_claim(
                    a_share(A, (*amounts(A, VCPU=1), *amounts(which, VCPU=1)), shapes={}),
                    consumer(f"on {which}"),
                ),
            )
        holding = await client.providers()
        await client.report(*batches[0], *batch)
        after = await client.providers()
        for which, state in holding.items():
            for resource, amount in used(state).items():
                assert amount == 0 or used(after[which])[resource] == amount
        assert await client.store.audit() == ()


def known(states: dict[ProviderId, ProviderState]) -> dict[ProviderId, ProviderState]:
    """The states without the fields that only count writes."""
    return {which: structs.replace(state, revision=0, internal=0) for which, state in states.items()}


def trees(states: dict[ProviderId, ProviderState]) -> dict[ProviderId, tuple[int, frozenset[object]]]:
    """For each root: its shape, and everything that the shape covers."""
    return {
        root: (
            found.shape,
            frozenset(
                (
                    state.id,
                    state.parent,
                    frozenset(state.inventories.items()),
                    state.traits,
                    state.aggregates,
                )
                for state in states.values()
                if state.root == root
            ),
        )
        for root, found in states.items()
        if found.parent is None
    }
