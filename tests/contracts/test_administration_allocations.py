"""Contract of all stores: administrators' writes of allocations."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bus.messages.administration import (
    ConsumerMoved,
    ConsumerState,
    CreateClass,
    DeleteAllocations,
    DeleteProvider,
    Done,
    SetAllocations,
    SetInventories,
    TypeUsage,
    UnknownClass,
    UnknownConsumer,
    UnknownProvider,
)
from engine.inventories import Holder, ReportedInventory
from engine.refusals import AlreadyClaimed, Claimed, DoesNotFit, NotAllowed, Released, Shortfall, Superseded
from placement_worker.store import Holdings
from tests.contracts.admin_client import AdminClient, allocations, an_admin_client, holding
from tests.contracts.placement_orders import (
    CELL,
    DB,
    HOST,
    NOON,
    OTHER_HOST,
    WEB,
    a_claim,
    a_host,
    a_release,
    a_share,
    a_swap,
    amounts,
    consumer,
    inventories,
    provider,
)
from tests.contracts.stores import STORES

pytestmark = pytest.mark.asyncio

NUMA = provider("numa-1")


@pytest_asyncio.fixture(params=STORES)
async def admin(request: pytest.FixtureRequest) -> AsyncIterator[AdminClient]:
    async with an_admin_client(request.param) as one:
        yield one


async def test_a_new_consumer_holds_what_was_said_and_is_at_its_first_generation(admin: AdminClient) -> None:
    await admin.add_provider("host-1", VCPU=4, MEMORY_MB=8)
    held = amounts(HOST, VCPU=2, MEMORY_MB=8)

    assert await admin.write(allocations(holding(WEB, *held))) == Done()

    assert await admin.used(HOST) == {"VCPU": 2, "MEMORY_MB": 8}
    assert await admin.generation(HOST) == 2
    found = await admin.store.consumer(WEB)
    assert found is not None
    assert (found.project, found.user, found.type) == ("shop", "ann", "INSTANCE")
    assert (found.generation, found.attempt) == (1, 0)
    assert sorted(found.held, key=str) == sorted(held, key=str)
    assert await admin.store.holdings(WEB) == Holdings(found, {HOST: 2})


async def test_a_consumer_is_judged_by_the_generation_that_was_seen(admin: AdminClient) -> None:
    await admin.add_provider("host-1", VCPU=4)
    one, two = amounts(HOST, VCPU=1), amounts(HOST, VCPU=2)

    assert await admin.write(allocations(holding(WEB, *one, generation=0))) == ConsumerMoved(
        consumer=WEB, seen=0, current=None
    )
    assert await admin.write(allocations(holding(WEB, *one))) == Done()
    assert await admin.write(allocations(holding(WEB, *two))) == ConsumerMoved(
        consumer=WEB, seen=None, current=1
    )
    assert await admin.write(allocations(holding(WEB, *two, generation=1))) == Done()
    assert await admin.write(allocations(holding(WEB, *one, judges_generation=False))) == Done()
    found = await admin.store.consumer(WEB)
    assert found is not None
    assert (found.generation, found.held) == (3, one)


async def test_every_write_that_names_a_provider_moves_its_generation_and_a_deletion_does_not(
    admin: AdminClient,
) -> None:
    await admin.add_provider("host-1", VCPU=4)
    await admin.add_provider("host-2", VCPU=4)
    await admin.write(allocations(holding(WEB, *amounts(HOST, VCPU=1))))
    await admin.write(allocations(holding(WEB, *amounts(OTHER_HOST, VCPU=1), generation=1)))
    assert (await admin.generation(HOST), await admin.generation(OTHER_HOST)) == (2, 2)

    await admin.write(allocations(holding(WEB, generation=2)))
    assert (await admin.generation(HOST), await admin.generation(OTHER_HOST)) == (2, 3)

    await admin.write(allocations(holding(WEB, *amounts(HOST, VCPU=1))))
    revision = (await admin.provider(HOST)).revision
    await admin.write(DeleteAllocations(consumer=WEB))
    assert await admin.generation(HOST) == 3
    assert (await admin.provider(HOST)).revision > revision


async def test_a_consumer_that_holds_nothing_is_none(admin: AdminClient) -> None:
    await admin.add_provider("host-1", VCPU=4)
    unknown = UnknownConsumer(consumer=WEB)
    assert await admin.write(DeleteAllocations(consumer=WEB)) == unknown
    assert await admin.write(allocations(holding(WEB))) == Done()
    assert await admin.store.consumer(WEB) is None

    await admin.write(allocations(holding(WEB, *amounts(HOST, VCPU=1))))
    assert await admin.write(DeleteAllocations(consumer=WEB)) == Done()
    assert await admin.write(DeleteAllocations(consumer=WEB)) == unknown
    assert await admin.store.consumer(WEB) is None
    # It begins a new life.
    assert await admin.write(allocations(holding(WEB, *amounts(HOST, VCPU=1)))) == Done()
    found = await admin.store.consumer(WEB)
    assert found is not None
    assert found.generation == 1


async def test_what_does_not_fit_is_refused_with_the_numbers_and_leaves_nothing(admin: AdminClient) -> None:
    await admin.add_provider("host-1", VCPU=4)

    verdict = await admin.write(allocations(holding(WEB, *amounts(HOST, VCPU=5, DISK_GB=1))))

    assert verdict == DoesNotFit(
        shortfalls=(
            Shortfall(provider=HOST, resource="VCPU", asked=5, free=4),
            Shortfall(provider=HOST, resource="DISK_GB", asked=1, free=0, rule="no_inventory"),
        )
    )
    assert (await admin.used(HOST), await admin.store.consumer(WEB)) == ({"VCPU": 0}, None)


async def test_the_bounds_of_an_inventory_hold_for_each_consumer_by_itself(admin: AdminClient) -> None:
    await admin.add_provider("host-1")
    disk = ReportedInventory(total=100, min_unit=4, max_unit=8, step_size=4)
    await admin.write(SetInventories(provider=HOST, generation=0, inventories={"DISK_GB": disk}))

    async def rule(*asked: int) -> str:
        named = [holding(consumer(f"{n}"), *amounts(HOST, DISK_GB=one)) for n, one in enumerate(asked)]
        verdict = await admin.write(allocations(*named))
        return verdict.shortfalls[0].rule if isinstance(verdict, DoesNotFit) else "fits"

    assert [await rule(2), await rule(12), await rule(6)] == ["min_unit", "max_unit", "step_size"]
    assert await rule(8, 6) == "step_size"
    assert await rule(8, 8) == "fits"


async def test_several_consumers_change_together_or_not_at_all(admin: AdminClient) -> None:
    await admin.add_provider("host-1", VCPU=4)
    await admin.add_provider("host-2", VCPU=4)
    await admin.write(allocations(holding(WEB, *amounts(HOST, VCPU=4))))
    both = [holding(WEB, *amounts(OTHER_HOST, VCPU=4), generation=1)]

    too_much = allocations(*both, holding(DB, *amounts(HOST, VCPU=5)))
    assert isinstance(await admin.write(too_much), DoesNotFit)
    stale = allocations(*both, holding(DB, *amounts(HOST, VCPU=4), generation=3))
    assert await admin.write(stale) == ConsumerMoved(consumer=DB, seen=3, current=None)
    assert await admin.used(HOST) == {"VCPU": 4}

    # One takes what another gives back.
    assert await admin.write(allocations(*both, holding(DB, *amounts(HOST, VCPU=4)))) == Done()
    assert (await admin.used(HOST), await admin.used(OTHER_HOST)) == ({"VCPU": 4}, {"VCPU": 4})
    assert await admin.generation(HOST) == 3
    handed = allocations(holding(WEB, generation=2), holding(DB, *amounts(OTHER_HOST, VCPU=4), generation=1))
    assert await admin.write(handed) == Done()
    assert (await admin.used(HOST), await admin.used(OTHER_HOST)) == ({"VCPU": 0}, {"VCPU": 4})
    assert await admin.store.consumer(WEB) is None


async def test_together_they_must_fit_as_well(admin: AdminClient) -> None:
    await admin.add_provider("host-1", VCPU=4)

    verdict = await admin.write(
        allocations(holding(WEB, *amounts(HOST, VCPU=3)), holding(DB, *amounts(HOST, VCPU=2)))
    )

    assert verdict == DoesNotFit(shortfalls=(Shortfall(provider=HOST, resource="VCPU", asked=5, free=4),))


async def test_over_capacity_but_no_worse_than_before_is_accepted(admin: AdminClient) -> None:
    await admin.add_provider("host-1", VCPU=8)
    await admin.write(allocations(holding(WEB, *amounts(HOST, VCPU=6)), holding(DB, *amounts(HOST, VCPU=2))))
    await admin.write(SetInventories(provider=HOST, generation=None, inventories=inventories(VCPU=4)))

    assert await admin.write(allocations(holding(WEB, *amounts(HOST, VCPU=6), generation=1))) == Done()
    assert await admin.write(allocations(holding(WEB, *amounts(HOST, VCPU=5), generation=2))) == Done()
    assert isinstance(
        await admin.write(allocations(holding(WEB, *amounts(HOST, VCPU=6), generation=3))), DoesNotFit
    )
    swapped = allocations(
        holding(WEB, *amounts(HOST, VCPU=2), generation=3), holding(DB, *amounts(HOST, VCPU=5), generation=1)
    )
    assert await admin.write(swapped) == Done()
    assert await admin.used(HOST) == {"VCPU": 7}


async def test_who_names_what_does_not_exist_is_told_which(admin: AdminClient) -> None:
    await admin.add_provider("host-1", VCPU=4)

    nowhere = allocations(holding(WEB, *amounts(HOST, VCPU=1), *amounts(OTHER_HOST, CUSTOM_NO=1)))
    assert await admin.write(nowhere) == UnknownProvider(provider=OTHER_HOST, field="allocations")
    nothing = allocations(holding(WEB, *amounts(HOST, VCPU=1, CUSTOM_NO=1)))
    assert await admin.write(nothing) == UnknownClass(names=("CUSTOM_NO",))
    await admin.write(CreateClass(name="CUSTOM_NO"))
    assert isinstance(await admin.write(nothing), DoesNotFit)
    twice = allocations(holding(WEB), holding(WEB))
    assert await admin.write(twice) == NotAllowed(
        field="consumers[1].consumer", reason=f"consumer {WEB} is named twice"
    )


async def test_the_type_stays_where_nobody_says_another(admin: AdminClient) -> None:
    await admin.add_provider("host-1", VCPU=4)
    one = amounts(HOST, VCPU=1)

    async def type_after(generation: int | None, kind: str | None) -> str:
        await admin.write(allocations(holding(WEB, *one, generation=generation, type=kind)))
        found = await admin.store.consumer(WEB)
        assert found is not None
        return found.type

    assert [await type_after(None, None), await type_after(1, "MIGRATION"), await type_after(2, None)] == [
        "",
        "MIGRATION",
        "MIGRATION",
    ]


# Questions


async def test_usages_are_summed_by_type_with_the_number_of_consumers(admin: AdminClient) -> None:
    await admin.add_provider("host-1", VCPU=40, MEMORY_MB=80)
    await admin.write(
        allocations(
            holding(WEB, *amounts(HOST, VCPU=2, MEMORY_MB=8)),
            holding(DB, *amounts(HOST, VCPU=3), user="bob"),
            holding(consumer("old"), *amounts(HOST, VCPU=5), type=None),
            holding(consumer("other"), *amounts(HOST, VCPU=7), project="bank"),
        )
    )

    assert await admin.store.usages("shop", "") == (
        TypeUsage(type="", consumers=1, used={"VCPU": 5}),
        TypeUsage(type="INSTANCE", consumers=2, used={"VCPU": 5, "MEMORY_MB": 8}),
    )
    assert await admin.store.usages("shop", "bob") == (
        TypeUsage(type="INSTANCE", consumers=1, used={"VCPU": 3}),
    )
    assert await admin.store.usages("nobody", "") == ()


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


async def test_a_consumer_that_was_claimed_for_keeps_its_attempt_when_it_is_rewritten(
    admin: AdminClient,
) -> None:
    await admin.report_one(a_host())
    await admin.report_one(a_host("host-2"))
    await admin.ask_one(a_claim())

    moved = amounts(OTHER_HOST, VCPU=2)
    assert await admin.write(allocations(holding(WEB, *moved, generation=1))) == Done()

    assert await admin.ask_one(a_claim()) == AlreadyClaimed(attempt=1, share=a_share(OTHER_HOST, moved, {}))
    assert await admin.ask_one(a_swap(a_share())) == Claimed()
    assert (await admin.used(HOST))["VCPU"] == 1
    assert (await admin.used(OTHER_HOST))["VCPU"] == 0


async def test_a_consumer_that_was_claimed_for_ends_when_it_is_emptied(admin: AdminClient) -> None:
    await admin.report_one(a_host())
    await admin.ask(a_claim(), a_claim(who=DB))
    before = await admin.store.snapshot_page(0, 1)

    assert await admin.write(DeleteAllocations(consumer=WEB)) == Done()
    assert await admin.write(allocations(holding(DB, generation=1))) == Done()

    for who in (WEB, DB):
        assert await admin.ask_one(a_claim(who=who)) == Superseded(attempt=1, ended=True)
        assert await admin.ask_one(a_release(who)) == Released(freed=False)
        assert (await admin.row(who)).ended_at == NOON
    assert (await admin.used(HOST))["VCPU"] == 0
    async with admin.store.lead_feed() as feed:
        assert feed is not None
        told = await feed.read()
    assert before.cursor != told.cursor
    assert set(told.ended) == {Holder(consumer=WEB, attempt=1), Holder(consumer=DB, attempt=1)}


async def test_what_was_made_anew_after_an_attempt_is_not_freed_by_what_is_late(admin: AdminClient) -> None:
    await admin.report_one(a_host())
    await admin.ask_one(a_claim())
    await admin.ask_one(a_release())

    assert await admin.write(allocations(holding(WEB, *amounts(HOST, VCPU=2)))) == Done()

    found = await admin.store.consumer(WEB)
    assert found is not None
    assert (found.generation, found.attempt) == (1, 2)
    assert await admin.ask_one(a_release()) == Superseded(attempt=2, ended=False)
    assert await admin.ask_one(a_claim()) == Superseded(attempt=2, ended=False)
    assert (await admin.used(HOST))["VCPU"] == 2


async def test_a_consumer_that_came_by_name_is_found_and_freed_over_the_bus(admin: AdminClient) -> None:
    await admin.report_one(a_host())
    held = amounts(HOST, VCPU=2)
    await admin.write(allocations(holding(WEB, *held)))

    assert (await admin.row(WEB)).cell == CELL
    assert await admin.ask_one(a_claim()) == AlreadyClaimed(attempt=0, share=a_share(HOST, held, {}))
    assert await admin.ask_one(a_release()) == Released(freed=True)
    assert (await admin.used(HOST))["VCPU"] == 0
    assert await admin.store.consumer(WEB) is None


async def test_a_batch_is_judged_as_if_it_came_one_by_one(admin: AdminClient) -> None:
    await admin.add_provider("host-1", VCPU=4)
    batches = admin.batcher.batches

    verdicts = await asyncio.gather(
        admin.write(allocations(holding(WEB, *amounts(HOST, VCPU=3)))),
        admin.write(allocations(holding(DB, *amounts(HOST, VCPU=3)))),
        admin.write(DeleteAllocations(consumer=WEB)),
        admin.write(allocations(holding(DB, *amounts(HOST, VCPU=3)))),
        admin.write(allocations(holding(WEB, *amounts(HOST, VCPU=1)))),
        admin.write(DeleteAllocations(consumer=WEB)),
    )

    assert admin.batcher.batches == batches + 1
    assert [type(verdict).__name__ for verdict in verdicts] == [
        "Done",
        "DoesNotFit",
        "Done",
        "Done",
        "Done",
        "Done",
    ]
    assert await admin.used(HOST) == {"VCPU": 3}
    assert await admin.store.consumer(WEB) is None


async def test_many_at_once_never_take_more_than_there_is(admin: AdminClient) -> None:
    """Several clients at a few providers, with claims and releases between them, and inventories that shrink and grow."""
    hosts = [await admin.add_provider(f"h{n}", VCPU=20) for n in range(3)]
    clerks = [admin, *[AdminClient(admin.store) for _ in range(3)]]

    async def life(number: int) -> list[str]:
        one, who = clerks[number % len(clerks)], consumer(f"c{number}")
        here, there = hosts[number % 3], hosts[(number + 1) % 3]
        wishes: list[SetAllocations | DeleteAllocations] = [
            allocations(holding(who, *amounts(here, VCPU=2))),
            allocations(holding(who, *amounts(here, VCPU=1), *amounts(there, VCPU=1), generation=1)),
            allocations(holding(who, *amounts(there, VCPU=2), judges_generation=False)),
        ]
        if number % 2:
            wishes.append(DeleteAllocations(consumer=who))
        return [type(await one.write(wish)).__name__ for wish in wishes]

    async def shrink(one: AdminClient) -> None:
        for total in (18, 10, 20):
            for host in hosts:
                stock = inventories(VCPU=total)
                await one.write(SetInventories(provider=host, generation=None, inventories=stock))

    outcomes = await asyncio.gather(
        *[life(number) for number in range(60)], *[shrink(each) for each in clerks[:2]]
    )

    verdicts = {verdict for life_of_one in outcomes[:60] for verdict in life_of_one or ()}
    assert verdicts >= {"Done", "DoesNotFit"}
    assert verdicts <= {"Done", "DoesNotFit", "ConsumerMoved", "UnknownConsumer"}
    for host in hosts:
        assert (await admin.used(host))["VCPU"] <= 20


async def test_a_provider_is_either_deleted_or_held(admin: AdminClient) -> None:
    """Either the delete or the claim comes first."""
    other = AdminClient(admin.store)
    for number in range(12):
        host = await admin.add_provider(f"h{number}", VCPU=1)
        who = consumer(f"c{number}")
        deleted, held = await asyncio.gather(
            admin.write(DeleteProvider(id=host)),
            other.write(allocations(holding(who, *amounts(host, VCPU=1)))),
        )
        assert (deleted == Done()) != (held == Done()), (deleted, held)
