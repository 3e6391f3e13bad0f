"""Reshapes by first fit: nothing is lost, capacities are obeyed, what has an inventory stays, and a refusal has a reason."""

from collections import Counter
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from compute_sim.core.trees import (
    Allocations,
    CannotReshape,
    ProviderTree,
    TreeProvider,
    first_fit,
    flaw_of_answer,
)
from engine.inventories import ConsumerId, ProviderId, ReportedInventory, ResourceAmount
from tests.properties.bounds import THOROUGH

ROOT, *BELOW = (ProviderId(UUID(int=0xC000 + number)) for number in range(5))
CLASSES = ("CUSTOM_NIC", "MEMORY_MB", "VCPU")
CONSUMERS = tuple(ConsumerId(UUID(int=0xD000 + number)) for number in range(6))

inventory = st.builds(
    ReportedInventory,
    total=st.integers(1, 12),
    min_unit=st.sampled_from([1, 1, 1, 2]),
    max_unit=st.sampled_from([1000, 1000, 3]),
    step_size=st.sampled_from([1, 1, 1, 2]),
)
shelf = st.dictionaries(st.sampled_from(CLASSES), inventory, max_size=3)


@st.composite
def trees(draw: st.DrawFn) -> ProviderTree:
    ids = (ROOT, *BELOW[: draw(st.integers(0, 4))])
    return ProviderTree(
        ROOT,
        {
            one: TreeProvider(
                id=one,
                name=f"p{number}",
                parent=None if one == ROOT else ROOT,
                inventories=draw(shelf),
            )
            for number, one in enumerate(ids)
        },
    )


@st.composite
def held(draw: st.DrawFn, tree: ProviderTree) -> Allocations:
    places = [(one.id, name) for one in tree.providers.values() for name in one.inventories]
    if not places:
        return {}
    found: dict[ConsumerId, tuple[ResourceAmount, ...]] = {}
    for consumer in CONSUMERS[: draw(st.integers(0, 6))]:
        chosen = draw(st.lists(st.sampled_from(places), min_size=1, max_size=3, unique=True))
        found[consumer] = tuple(
            ResourceAmount(provider=provider, resource=name, amount=draw(st.integers(1, 4)))
            for provider, name in chosen
        )
    return found


def by_class(amounts: tuple[ResourceAmount, ...]) -> Counter[str]:
    sums = Counter[str]()
    for each in amounts:
        sums[each.resource] += each.amount
    return sums


def used(allocations: Allocations) -> Counter[tuple[ProviderId, str]]:
    sums = Counter[tuple[ProviderId, str]]()
    for amounts in allocations.values():
        for each in amounts:
            sums[each.provider, each.resource] += each.amount
    return sums


@THOROUGH
@given(trees(), trees(), st.data())
def test_nothing_is_lost_and_nothing_gets_more_than_it_has(
    known: ProviderTree, new: ProviderTree, data: st.DataObject
) -> None:
    before = data.draw(held(known))

    after = first_fit(known, new, before)

    if isinstance(after, CannotReshape):
        assert any(str(consumer) in after.reason for consumer in before)
        return
    assert flaw_of_answer(new, before, after) is None
    assert {consumer: by_class(some) for consumer, some in after.items()} == {
        consumer: by_class(some) for consumer, some in before.items()
    }
    stays = used(
        {
            consumer: tuple(
                each
                for each in some
                if each.provider in new.providers
                and each.resource in new.providers[each.provider].inventories
            )
            for consumer, some in before.items()
        }
    )
    for (provider, resource), amount in used(after).items():
        stock = new.providers[provider].inventories[resource]
        # What stays is not judged; whatever comes must fit.
        assert amount == stays[provider, resource] or amount <= int(stock.total * stock.allocation_ratio)
        assert amount >= stays[provider, resource]


def stock(total: int) -> dict[str, ReportedInventory]:
    return {"VCPU": ReportedInventory(total=total), "MEMORY_MB": ReportedInventory(total=total)}


def guest(consumer: ConsumerId, **amounts: int) -> Allocations:
    return {
        consumer: tuple(
            ResourceAmount(provider=ROOT, resource=name, amount=amount) for name, amount in amounts.items()
        )
    }


def devices(count: int) -> dict[ProviderId, TreeProvider]:
    nic = {"CUSTOM_NIC": ReportedInventory(total=1)}
    return {
        one: TreeProvider(id=one, name=f"nic{number}", parent=ROOT, inventories=nic)
        for number, one in enumerate(BELOW[:count])
    }


FLAT = ProviderTree(
    ROOT,
    {
        ROOT: TreeProvider(
            id=ROOT, name="h", inventories={**stock(9), "CUSTOM_NIC": ReportedInventory(total=4)}
        )
    },
)


def test_a_refusal_names_the_consumer_what_it_holds_and_what_there_is() -> None:
    bare = {ROOT: TreeProvider(id=ROOT, name="h", inventories=stock(9))}
    held_by_one = guest(CONSUMERS[0], VCPU=2, CUSTOM_NIC=3)

    assert first_fit(FLAT, ProviderTree(ROOT, {**bare, **devices(2)}), held_by_one) == CannotReshape(
        f"consumer {CONSUMERS[0]} holds CUSTOM_NIC 3 of h: of 3 CUSTOM_NIC the new shape has room for 2"
    )
    assert first_fit(FLAT, ProviderTree(ROOT, bare), held_by_one) == CannotReshape(
        f"consumer {CONSUMERS[0]} holds CUSTOM_NIC 3 of h: no provider of the new shape has CUSTOM_NIC"
    )
