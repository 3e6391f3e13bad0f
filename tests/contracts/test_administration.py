"""Contract of all stores: administrators' writes of providers."""

import asyncio

from msgspec import structs

from bus.messages.books import (
    AlreadyThere,
    ConsumerState,
    CreateClass,
    CreateProvider,
    CreateTrait,
    DeleteAllocations,
    DeleteClass,
    DeleteProvider,
    DeleteTrait,
    Done,
    IdTaken,
    NameTaken,
    ProviderPlace,
    SetInventories,
    SetPlaces,
    SetTraits,
    UnknownClass,
    UnknownProvider,
    UnknownTrait,
    UpdateProvider,
)
from bus.messages.placement import InventoryInUse, ReportInventory
from engine.inventories import PlaceRule, ProviderId
from engine.refusals import Claimed, GroupRefused, ShapeMoved
from tests.contracts.admin_client import AdminClient, allocations, holding
from tests.contracts.placement_orders import (
    DB,
    GROUP,
    HOST,
    OTHER_HOST,
    WEB,
    a_claim,
    a_provider,
    a_report,
    a_share,
    amounts,
    consumer,
    inventories,
    provider,
)

NUMA = provider("numa-1")
SSD = ("STORAGE_DISK_SSD",)


# Providers


async def test_an_id_and_a_name_belong_to_one_provider(admin: AdminClient) -> None:
    await admin.add_provider("host-1")
    await admin.add_provider("host-2")

    assert await admin.write(CreateProvider(id=HOST, name="another")) == IdTaken(provider=HOST)
    taken = NameTaken(name="host-1", provider=HOST)
    assert await admin.write(CreateProvider(id=NUMA, name="host-1")) == taken
    assert await admin.write(UpdateProvider(id=OTHER_HOST, name="host-1")) == taken


async def test_of_many_who_create_the_same_at_once_one_does(admin: AdminClient) -> None:
    others = AdminClient(admin.store)
    by_id = [one.write(CreateProvider(id=HOST, name=f"h{n}")) for n in range(8) for one in (admin, others)]
    by_name = [
        one.write(CreateProvider(id=provider(f"p{n}-{one is admin}"), name="numa-1"))
        for n in range(8)
        for one in (admin, others)
    ]

    first, second = await asyncio.gather(asyncio.gather(*by_id), asyncio.gather(*by_name))

    assert sorted(type(verdict).__name__ for verdict in first) == ["IdTaken"] * 15 + ["ProviderWritten"]
    assert sorted(type(verdict).__name__ for verdict in second) == ["NameTaken"] * 15 + ["ProviderWritten"]
    assert len(await admin.providers()) == 2


async def test_of_two_who_would_stand_below_each_other_one_does(admin: AdminClient) -> None:
    other = AdminClient(admin.store)
    for number in range(6):
        one, two = await admin.add_provider(f"a{number}"), await admin.add_provider(f"b{number}")
        parts = [await admin.add_provider(f"part of {each}", each) for each in (one, two)]

        verdicts = await asyncio.gather(
            admin.write(UpdateProvider(id=one, name=f"a{number}", parent=two)),
            other.write(UpdateProvider(id=two, name=f"b{number}", parent=one)),
        )

        assert sorted(type(verdict).__name__ for verdict in verdicts) == ["NotAllowed", "ProviderWritten"]
        states = await admin.providers()
        assert len({states[each].root for each in (one, two, *parts)}) == 1


async def test_nobody_comes_to_stand_below_who_is_deleted(admin: AdminClient) -> None:
    """One of these comes first: a new child, a child that moves there, or the delete of the parent."""
    other, third = AdminClient(admin.store), AdminClient(admin.store)
    for number in range(6):
        parent, moved = await admin.add_provider(f"a{number}"), await admin.add_provider(f"b{number}")
        child = provider(f"c{number}")

        writes = (
            (admin, DeleteProvider(id=parent)),
            (other, CreateProvider(id=child, name=f"c{number}", parent=parent)),
            (third, UpdateProvider(id=moved, name=f"b{number}", parent=parent)),
        )
        # The delete and the move come first in turn.
        await asyncio.gather(*[one.write(what) for one, what in writes[:: -1 if number % 2 else 1]])

        states = await admin.providers()
        below = [one for one in (child, moved) if one in states and states[one].parent is not None]
        assert (parent in states) == bool(below)


# Traits and aggregates


async def test_traits_that_were_set_by_name_outlive_reports_and_others_stay_the_reporters(
    admin: AdminClient,
) -> None:
    await admin.write(CreateTrait(name="CUSTOM_GOLD"))
    await admin.report_one(a_report(a_provider("host-1", traits=SSD)))

    await admin.write(SetTraits(provider=HOST, generation=None, traits=(*SSD, "CUSTOM_GOLD")))
    await admin.report_one(a_report(a_provider("host-1", traits=("HW_CPU_X86_VMX",))))
    assert (await admin.provider(HOST)).traits == ("CUSTOM_GOLD", "HW_CPU_X86_VMX")
    await admin.write(SetTraits(provider=HOST, generation=None, traits=()))
    assert (await admin.provider(HOST)).traits == ()


async def test_places_are_set_all_or_none_outlive_reports_and_are_judged_with_rules(
    admin: AdminClient,
) -> None:
    def at(place: str | None) -> ReportInventory:
        return a_report(structs.replace(a_provider("host-1", holds=inventories(VCPU=4)), place=place))

    def placed(*places: tuple[ProviderId, str]) -> SetPlaces:
        return SetPlaces(places=tuple([ProviderPlace(provider=one, place=place) for one, place in places]))

    await admin.report(
        at("dc1/rack1"), a_report(a_provider("host-2", holds=inventories(VCPU=4)), root=OTHER_HOST)
    )
    rule = PlaceRule(level=2, policy="anti-affinity")
    group = structs.replace(GROUP, policy="soft-affinity", rules=(rule,))
    before = await admin.store.snapshot_page(0, 10)
    strange = placed((OTHER_HOST, "dc9"), (NUMA, "dc9"))
    assert await admin.write(strange) == UnknownProvider(provider=NUMA, field="places[1].provider")
    assert (await admin.provider(OTHER_HOST)).place == ""

    await admin.write(placed((HOST, "dc1/rack2"), (OTHER_HOST, "dc1/rack2")))
    await admin.report(at("dc1/rack3"))

    page = await admin.changes(before.cursor)
    assert [(state.place, state.shape) for state in page.providers] == [("dc1/rack2", 2)] * 2
    assert isinstance(await admin.ask_one(a_claim(group=group)), ShapeMoved)
    now = {host: a_share(host, shapes={host: 2}) for host in (HOST, OTHER_HOST)}
    assert await admin.ask_one(a_claim(now[HOST], group=group)) == Claimed()
    refused = await admin.ask_one(a_claim(now[OTHER_HOST], DB, group=group))
    assert isinstance(refused, GroupRefused)
    assert (refused.rule, refused.domain, refused.members) == (rule, "dc1/rack2", (WEB,))
    await admin.write(placed((HOST, "")))
    assert (await admin.provider(HOST)).place == "dc1/rack3"
    assert (
        await admin.ask_one(a_claim(now[OTHER_HOST], DB, group=structs.replace(group, rules=()))) == Claimed()
    )
    await admin.report(at(""))
    assert (await admin.provider(HOST)).place == ""


# Together with orders from the bus


async def test_the_log_tells_whole_providers_that_were_written_and_those_that_are_gone(
    admin: AdminClient,
) -> None:
    await admin.add_provider("host-1")
    await admin.add_provider("numa-1", HOST)
    before = await admin.store.snapshot_page(0, 10)
    await admin.write(DeleteProvider(id=NUMA))
    await admin.write(UpdateProvider(id=HOST, name="renamed"))

    page = await admin.changes(before.cursor)

    assert [state.name for state in page.providers] == ["renamed"]
    assert [gone.id for gone in page.gone] == [NUMA]


GOLD = "CUSTOM_GOLD"


async def test_a_name_that_went_is_unknown_until_somebody_brings_it_along_again(admin: AdminClient) -> None:
    """Reports create the names they use; administrators' writes need existing ones."""
    await admin.report_one(a_report(a_provider("host-1", holds=inventories(CUSTOM_GOLD=1), traits=(GOLD,))))
    await admin.report_one(a_report(a_provider("host-1", holds={}, traits=())))
    await admin.write(DeleteClass(name=GOLD))
    await admin.write(DeleteTrait(name=GOLD))

    assert await admin.write(
        SetInventories(provider=HOST, generation=None, inventories=inventories(CUSTOM_GOLD=1))
    ) == UnknownClass(names=(GOLD,))
    assert await admin.write(SetTraits(provider=HOST, generation=None, traits=(GOLD,))) == UnknownTrait(
        names=(GOLD,)
    )
    await admin.report_one(a_report(a_provider("host-1", holds=inventories(CUSTOM_GOLD=2), traits=(GOLD,))))
    state = await admin.provider(HOST)
    assert (state.inventories[GOLD].total, state.traits) == (2, (GOLD,))
    assert await admin.store.custom_names("classes", "", 100) == (GOLD,)
    assert await admin.store.custom_names("traits", "", 100) == (GOLD,)


async def test_names_are_paged_in_the_order_of_the_alphabet(admin: AdminClient) -> None:
    for name in ("CUSTOM_B", "CUSTOM_A_", "CUSTOM_A", "CUSTOM_A1"):
        await admin.write(CreateTrait(name=name))

    first = await admin.store.custom_names("traits", "", 3)

    assert first == ("CUSTOM_A", "CUSTOM_A1", "CUSTOM_A_")
    assert await admin.store.custom_names("traits", first[-1], 3) == ("CUSTOM_B",)


async def test_of_many_who_make_a_name_at_once_one_does(admin: AdminClient) -> None:
    others = AdminClient(admin.store)

    verdicts = await asyncio.gather(
        *[one.write(CreateTrait(name=GOLD)) for _ in range(5) for one in (admin, others)]
    )

    assert verdicts.count(Done()) == 1
    assert verdicts.count(AlreadyThere(name=GOLD)) == 9


async def test_a_name_is_either_deleted_or_used(admin: AdminClient) -> None:
    """Either the delete or the use comes first."""
    other = AdminClient(admin.store)
    for number in range(8):
        host = await admin.add_provider(f"h{number}")
        name = f"CUSTOM_{number}"
        await admin.write(CreateTrait(name=name))
        await admin.write(CreateClass(name=name))
        no_trait, has_trait, no_class, has_class = await asyncio.gather(
            admin.write(DeleteTrait(name=name)),
            other.write(SetTraits(provider=host, generation=None, traits=(name,))),
            admin.write(DeleteClass(name=name)),
            other.write(SetInventories(provider=host, generation=None, inventories=inventories(**{name: 1}))),
        )
        state = await admin.provider(host)
        assert (no_trait == Done()) == (state.traits == ()), (no_trait, has_trait)
        assert (no_class == Done()) == (state.inventories == {}), (no_class, has_class)


# Questions


async def test_holders_of_a_provider_are_paged_each_with_all_that_it_holds(admin: AdminClient) -> None:
    await admin.add_provider("host-1", VCPU=40)
    await admin.add_provider("host-2", VCPU=40)
    who = sorted(consumer(f"c{n}") for n in range(5))
    await admin.write(
        allocations(*[holding(one, *amounts(HOST, VCPU=1), *amounts(OTHER_HOST, VCPU=2)) for one in who])
    )
    await admin.write(allocations(holding(WEB, *amounts(OTHER_HOST, VCPU=1))))
    await admin.write(DeleteAllocations(consumer=who.pop()))

    found: list[ConsumerState] = []
    after = None
    while page := await admin.store.holders_of(HOST, after, 3):
        found += page
        after = page[-1].id

    assert [state.id for state in found] == who
    assert {frozenset(state.held) for state in found} == {
        frozenset((*amounts(HOST, VCPU=1), *amounts(OTHER_HOST, VCPU=2)))
    }
    assert await admin.store.holders_of(NUMA, None, 3) == ()


# Together with orders from the bus


async def test_a_provider_is_either_deleted_or_held(admin: AdminClient) -> None:
    """Either the delete or the claim comes first."""
    other = AdminClient(admin.store)
    await admin.add_provider("host-1", VCPU=1)
    assert await other.write(allocations(holding(WEB, *amounts(HOST, VCPU=1)))) == Done()
    in_use = InventoryInUse(provider=HOST, resource="VCPU", used=1)
    assert await admin.write(DeleteProvider(id=HOST)) == in_use
    for number in range(12):
        host = await admin.add_provider(f"h{number}", VCPU=1)
        who = consumer(f"c{number}")
        deleted, held = await asyncio.gather(
            admin.write(DeleteProvider(id=host)),
            other.write(allocations(holding(who, *amounts(host, VCPU=1)))),
        )
        assert (deleted == Done()) != (held == Done()), (deleted, held)
