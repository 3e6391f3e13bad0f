"""Contract of all stores: what instance and migration hold through a move, and the way back.

Both hosts take disk and addresses from one pool. At every moment, what two shares both need of it is held once.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from msgspec.structs import replace

from bus.messages.administration import ConsumerAllocations, SetAllocations
from bus.messages.placement import ReportInventory
from engine.inventories import ConsumerId, ProviderId, ReportedInventory, Share
from engine.picture.members import GroupMembers
from engine.refusals import (
    AlreadyClaimed,
    Claimed,
    DoesNotFit,
    GroupRefused,
    HostFull,
    Released,
    ShapeMoved,
    Shortfall,
    Superseded,
)
from placement_worker.admin_writes import write_allocations
from tests.contracts.placement_orders import (
    CELL,
    CLEANUP,
    DB,
    GROUP,
    HOST,
    MIGRATION,
    NOON,
    OTHER_HOST,
    VOCABULARY,
    WEB,
    a_claim,
    a_host,
    a_provider,
    a_release,
    a_report,
    a_share,
    a_swap,
    amounts,
    consumer,
    inventories,
    provider,
)
from tests.contracts.store_client import StoreClient
from tests.contracts.stores import STORES, open_store

pytestmark = pytest.mark.asyncio

POOL = provider("pool")
TOGETHER = replace(GROUP, policy="affinity")


@pytest_asyncio.fixture(params=STORES)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[StoreClient]:
    """Two hosts with four VCPU each, and a pool of 10 GB and 2 addresses. The audit must find nothing at the end."""
    async with open_store(request.param) as store:
        client = StoreClient(store)
        await client.report(a_host("host-1"), a_host("host-2"), pool())
        yield client
        assert await store.audit() == ()


def pool() -> ReportInventory:
    return a_report(a_provider("pool", holds=inventories(DISK_GB=10, CUSTOM_ADDRESS=2)), root=POOL)


def on(host: ProviderId, vcpu: int, disk: int = 0) -> Share:
    """So many VCPU of the host; with a disk also that much of the pool, and an address."""
    of_pool = amounts(POOL, DISK_GB=disk, CUSTOM_ADDRESS=1) if disk else ()
    return a_share(host, (*amounts(host, VCPU=vcpu), *of_pool), {host: 1, POOL: 1} if disk else {host: 1})


async def in_use(client: StoreClient) -> dict[str, int]:
    """VCPU of both hosts, disk and addresses of the pool, and how many consumers live on each host."""
    states = await client.providers()
    here, there, shared = (states[which] for which in (HOST, OTHER_HOST, POOL))
    return {
        "here": here.inventories["VCPU"].used,
        "there": there.inventories["VCPU"].used,
        "disk": shared.inventories["DISK_GB"].used,
        "addresses": shared.inventories["CUSTOM_ADDRESS"].used,
        "live here": here.consumers,
        "live there": there.consumers,
    }


async def members(client: StoreClient) -> set[tuple[ConsumerId, ProviderId]]:
    page = await client.store.members_page(0, 100)
    return {(member.consumer, member.host) for member in page.members}


def limited(share: Share, instances_max: int = 1) -> Share:
    return replace(share, instances_max=instances_max)


async def test_a_migration_holds_what_the_destination_does_not_need(client: StoreClient) -> None:
    await client.ask(a_claim(on(HOST, 3, disk=6)))

    assert await client.ask_one(a_swap(on(OTHER_HOST, 2, disk=6), migration=MIGRATION)) == Claimed()

    assert await client.held(WEB) == {*on(OTHER_HOST, 2, disk=6).amounts}
    assert await client.held(MIGRATION) == {*amounts(HOST, VCPU=3)}
    migration = await client.row(MIGRATION)
    assert (migration.type, migration.project, migration.user) == ("MIGRATION", "shop", "ann")
    assert (migration.cell, migration.attempt, migration.host) == (CELL, 1, HOST)
    assert await in_use(client) == {
        "here": 3,
        "there": 2,
        "disk": 6,
        "addresses": 1,
        "live here": 1,
        "live there": 1,
    }


async def test_a_repeated_swap_to_the_destination_is_told_what_is_held(client: StoreClient) -> None:
    await client.ask(a_claim(on(HOST, 3)))
    forth = a_swap(on(OTHER_HOST, 2), migration=MIGRATION)
    await client.ask(forth)
    before = await in_use(client)

    assert await client.ask_one(forth) == AlreadyClaimed(
        attempt=2, share=replace(on(OTHER_HOST, 2), shapes=())
    )
    assert await in_use(client) == before


async def test_a_confirmed_move_leaves_one_share(client: StoreClient) -> None:
    await client.ask(a_claim(on(HOST, 3, disk=6)), a_swap(on(OTHER_HOST, 2, disk=8), migration=MIGRATION))

    assert await client.ask_one(a_release(MIGRATION)) == Released(freed=True)
    after = await in_use(client)
    assert await client.ask_one(a_release(MIGRATION)) == Released(freed=False)

    assert await client.held(WEB) == {*on(OTHER_HOST, 2, disk=8).amounts}
    assert after == await in_use(client)
    assert (after["here"], after["there"], after["disk"], after["addresses"]) == (0, 2, 8, 1)
    assert (after["live here"], after["live there"]) == (0, 1)


async def test_a_reverted_move_leaves_the_share_of_before(client: StoreClient) -> None:
    await client.ask(a_claim(on(HOST, 3, disk=6)), a_swap(on(OTHER_HOST, 2, disk=8), migration=MIGRATION))
    back = a_swap(on(HOST, 3, disk=6), held=2, attempt=3, returns=MIGRATION)

    assert await client.ask_one(back) == Claimed()
    after = await in_use(client)
    assert await client.ask_one(back) == AlreadyClaimed(
        attempt=3, share=replace(on(HOST, 3, disk=6), shapes=())
    )

    assert await client.held(WEB) == {*on(HOST, 3, disk=6).amounts}
    assert await client.held(MIGRATION) == frozenset()
    assert (await client.row(MIGRATION)).ended_at is not None
    assert after == await in_use(client)
    assert (after["here"], after["there"], after["disk"], after["addresses"]) == (3, 0, 6, 1)
    assert (after["live here"], after["live there"]) == (1, 0)
    # A late confirm changes nothing.
    assert await client.ask_one(a_release(MIGRATION)) == Released(freed=False)
    assert await in_use(client) == after


async def test_a_revert_from_a_silent_destination_leaves_a_cleanup_there(client: StoreClient) -> None:
    await client.ask(a_claim(on(HOST, 3, disk=6)), a_swap(on(OTHER_HOST, 2, disk=8), migration=MIGRATION))

    back = a_swap(on(HOST, 3, disk=6), held=2, attempt=3, returns=MIGRATION, cleanup=CLEANUP)
    assert await client.ask_one(back) == Claimed()

    assert await client.held(CLEANUP) == {*amounts(OTHER_HOST, VCPU=2), *amounts(POOL, DISK_GB=2)}
    cleanup = await client.row(CLEANUP)
    assert (cleanup.type, cleanup.attempt, cleanup.host) == ("CLEANUP", 2, OTHER_HOST)
    after = await in_use(client)
    assert (after["here"], after["there"], after["disk"], after["addresses"]) == (3, 2, 8, 1)
    assert await client.ask_one(a_release(CLEANUP, 2)) == Released(freed=True)
    assert (await in_use(client))["disk"] == 6


async def test_a_resize_on_the_same_host_counts_nothing_twice(client: StoreClient) -> None:
    await client.ask(a_claim(limited(on(HOST, 3, disk=6))))

    assert await client.ask_one(a_swap(limited(on(HOST, 4, disk=3)), migration=MIGRATION)) == Claimed()

    assert await client.held(MIGRATION) == {*amounts(POOL, DISK_GB=3)}
    assert (await client.row(MIGRATION)).host is None
    during = await in_use(client)
    assert (during["here"], during["disk"], during["addresses"], during["live here"]) == (4, 6, 1, 1)
    assert await client.ask_one(
        a_swap(limited(on(HOST, 3, disk=6)), held=2, attempt=3, returns=MIGRATION)
    ) == (Claimed())
    after = await in_use(client)
    assert (after["here"], after["disk"], after["live here"]) == (3, 6, 1)


async def test_a_resize_to_more_of_everything_has_no_migration(client: StoreClient) -> None:
    await client.ask(a_claim(on(HOST, 1, disk=4)))

    assert await client.ask_one(a_swap(on(HOST, 2, disk=5), migration=MIGRATION)) == Claimed()

    assert (await client.row(MIGRATION)).attempt == 0
    back = a_swap(on(HOST, 1, disk=4), held=2, attempt=3, returns=MIGRATION)
    assert await client.ask_one(back) == Claimed()
    assert await client.held(WEB) == {*on(HOST, 1, disk=4).amounts}
    assert (await client.row(MIGRATION)).attempt == 0


async def test_a_destination_is_judged_by_what_it_takes_beyond_the_source(client: StoreClient) -> None:
    await client.ask(a_claim(on(HOST, 1, disk=6)), a_claim(on(OTHER_HOST, 3, disk=2), DB))

    verdict = await client.ask_one(a_swap(on(OTHER_HOST, 2, disk=9), migration=MIGRATION))

    assert verdict == DoesNotFit(
        shortfalls=(
            Shortfall(provider=OTHER_HOST, resource="VCPU", asked=2, free=1),
            Shortfall(provider=POOL, resource="DISK_GB", asked=9, free=8),
        )
    )
    assert (await client.row(MIGRATION)).attempt == 0
    assert await client.ask_one(a_swap(on(OTHER_HOST, 1, disk=8), migration=MIGRATION)) == Claimed()


async def test_the_way_back_asks_for_no_bound_no_shape_and_no_limit(client: StoreClient) -> None:
    await client.ask(
        a_claim(on(HOST, 3, disk=6)),
        a_swap(on(OTHER_HOST, 2, disk=8), migration=MIGRATION),
        a_claim(on(HOST, 1), DB),
    )
    strict = ReportedInventory(total=4, min_unit=4, max_unit=4, step_size=4)
    await client.report(a_report(a_provider("host-1", holds={"VCPU": strict}), root=HOST))
    await client.report(
        a_report(a_provider("pool", holds={"DISK_GB": strict, "CUSTOM_ADDRESS": strict}), root=POOL)
    )

    back = a_swap(limited(on(HOST, 3, disk=6)), held=2, attempt=3, returns=MIGRATION)
    assert await client.ask_one(back) == Claimed()

    assert await client.held(WEB) == {*on(HOST, 3, disk=6).amounts}


async def test_a_way_back_without_a_move_takes_the_attempt_whatever_its_host_has_become(
    client: StoreClient,
) -> None:
    """A late copy of a question that was refused is granted nothing then, though there is room by now."""
    await client.ask(a_claim(on(HOST, 3, disk=6)), a_claim(on(OTHER_HOST, 4), DB))
    there = a_swap(on(OTHER_HOST, 1, disk=8), migration=MIGRATION)
    assert isinstance(await client.ask_one(there), DoesNotFit)
    shrunk = inventories(VCPU=1)
    await client.report(a_report(a_provider("host-1", holds=shrunk), root=HOST))

    back = a_swap(limited(on(HOST, 3, disk=6)), returns=MIGRATION)
    assert await client.ask_one(back) == Claimed()
    await client.ask(a_release(DB))

    assert isinstance(await client.ask_one(there), AlreadyClaimed)
    assert await client.held(WEB) == {*on(HOST, 3, disk=6).amounts}
    assert await client.held(MIGRATION) == set()


async def test_what_a_migration_keeps_need_not_fit_the_bounds(client: StoreClient) -> None:
    await client.ask(a_claim(on(HOST, 3, disk=6)))
    even = ReportedInventory(total=10, min_unit=4, step_size=2)
    await client.report(
        a_report(
            a_provider("pool", holds={"DISK_GB": even, "CUSTOM_ADDRESS": ReportedInventory(total=2)}),
            root=POOL,
        )
    )

    there = replace(on(OTHER_HOST, 3, disk=4), shapes=())
    assert await client.ask_one(a_swap(there, migration=MIGRATION)) == Claimed()

    assert await client.held(MIGRATION) == {*amounts(HOST, VCPU=3), *amounts(POOL, DISK_GB=2)}


SHRUNK = {
    "the total shrinks": ReportedInventory(total=3, max_unit=3),
    "the reserve grows": ReportedInventory(total=10, reserved=7),
    "the ratio falls": ReportedInventory(total=10, allocation_ratio=0.3),
}


@pytest.mark.parametrize("shrunk", SHRUNK.values(), ids=SHRUNK)
async def test_where_an_inventory_has_shrunk_instances_leave_and_come_back_and_none_is_added(
    client: StoreClient, shrunk: ReportedInventory
) -> None:
    await client.report(
        a_report(a_provider("host-1", holds={"VCPU": ReportedInventory(total=10)}), root=HOST)
    )
    here = replace(on(HOST, 4, disk=6), shapes=())
    await client.ask(a_claim(here), a_claim(replace(on(HOST, 4), shapes=()), DB))
    address = ReportedInventory(total=2)
    await client.report(
        a_report(a_provider("host-1", holds={"VCPU": shrunk}), root=HOST),
        a_report(a_provider("pool", holds={"DISK_GB": shrunk, "CUSTOM_ADDRESS": address}), root=POOL),
    )
    assert isinstance(await client.ask_one(a_claim(a_share(HOST, shapes={}), consumer("new"))), DoesNotFit)

    # Away, with the disk, and back.
    away = a_swap(replace(on(OTHER_HOST, 4, disk=6), shapes=()), migration=MIGRATION)
    assert await client.ask_one(away) == Claimed()
    assert isinstance(await client.ask_one(a_claim(a_share(HOST, shapes={}), consumer("new"))), DoesNotFit)
    assert await client.ask_one(a_swap(here, held=2, attempt=3, returns=MIGRATION)) == Claimed()
    assert (await in_use(client))["here"] == 8

    # Away for good; then a release.
    again = a_swap(replace(on(OTHER_HOST, 4, disk=6), shapes=()), held=3, attempt=4, migration=MIGRATION)
    assert await client.ask(again, a_release(MIGRATION, 3)) == (Claimed(), Released(freed=True))
    assert await client.ask_one(a_release(DB)) == Released(freed=True)
    after = await in_use(client)
    assert (after["here"], after["disk"]) == (0, 6)


async def test_a_destination_that_has_shrunk_takes_no_move(client: StoreClient) -> None:
    await client.ask(a_claim(on(HOST, 1)), a_claim(on(OTHER_HOST, 3), DB))
    await client.report(a_host("host-2", VCPU=2))

    verdict = await client.ask_one(a_swap(a_share(OTHER_HOST, shapes={}), migration=MIGRATION))

    assert verdict == DoesNotFit(
        shortfalls=(Shortfall(provider=OTHER_HOST, resource="VCPU", asked=1, free=-1),)
    )


async def test_a_way_back_after_the_move_is_confirmed_is_judged_like_a_move(client: StoreClient) -> None:
    await client.ask(
        a_claim(on(HOST, 3)), a_swap(on(OTHER_HOST, 2), migration=MIGRATION), a_release(MIGRATION)
    )
    await client.ask(a_claim(on(HOST, 2), DB))
    back = a_swap(on(HOST, 3), held=2, attempt=3, returns=MIGRATION)

    assert await client.ask_one(back) == DoesNotFit(
        shortfalls=(Shortfall(provider=HOST, resource="VCPU", asked=3, free=2),)
    )
    seen_before = replace(back, share=a_share(HOST, amounts(HOST, VCPU=3), {HOST: 7}))
    assert await client.ask_one(seen_before) == ShapeMoved(roots=(HOST,))
    await client.ask(a_release(DB))
    assert await client.ask_one(back) == Claimed()
    assert await client.held(MIGRATION) == frozenset()


async def test_after_a_confirmed_resize_the_former_size_is_no_longer_kept(client: StoreClient) -> None:
    await client.ask(a_claim(on(HOST, 3)), a_swap(on(HOST, 1), migration=MIGRATION), a_release(MIGRATION))
    await client.ask(a_claim(on(HOST, 2), DB))

    verdict = await client.ask_one(a_swap(on(HOST, 3), held=2, attempt=3, returns=MIGRATION))

    assert verdict == DoesNotFit(shortfalls=(Shortfall(provider=HOST, resource="VCPU", asked=3, free=2),))


async def test_a_migration_keeps_the_place_on_its_host(client: StoreClient) -> None:
    await client.ask(a_claim(limited(on(HOST, 1))), a_swap(on(OTHER_HOST, 1), migration=MIGRATION))

    full = DoesNotFit(shortfalls=(), full=HostFull(host=HOST, instances=1, instances_max=1))
    assert await client.ask_one(a_claim(limited(on(HOST, 1)), DB)) == full
    assert (
        await client.ask_one(a_swap(limited(on(HOST, 1)), held=2, attempt=3, returns=MIGRATION)) == Claimed()
    )
    there = await client.ask_one(a_claim(limited(on(OTHER_HOST, 1)), DB))
    assert there == Claimed()


async def test_a_migration_is_a_member_on_the_source_until_it_ends(client: StoreClient) -> None:
    await client.ask(a_claim(on(HOST, 1), group=GROUP))

    assert await client.ask_one(a_swap(on(OTHER_HOST, 1), migration=MIGRATION, group=GROUP)) == Claimed()

    assert await members(client) == {(WEB, OTHER_HOST), (MIGRATION, HOST)}
    for host, member in ((HOST, MIGRATION), (OTHER_HOST, WEB)):
        refused = await client.ask_one(a_claim(on(host, 1), DB, group=GROUP))
        assert isinstance(refused, GroupRefused)
        assert refused.members == (member,)
    back = a_swap(on(HOST, 1), held=2, attempt=3, returns=MIGRATION, group=GROUP)
    assert await client.ask_one(back) == Claimed()
    assert await members(client) == {(WEB, HOST)}
    assert await client.ask_one(a_claim(on(OTHER_HOST, 1), DB, group=GROUP)) == Claimed()


async def test_a_cleanup_after_the_way_back_is_a_member_on_the_silent_host(client: StoreClient) -> None:
    await client.ask(
        a_claim(on(HOST, 1), group=GROUP), a_swap(on(OTHER_HOST, 1), migration=MIGRATION, group=GROUP)
    )

    back = a_swap(on(HOST, 1), held=2, attempt=3, returns=MIGRATION, cleanup=CLEANUP, group=GROUP)
    assert await client.ask_one(back) == Claimed()

    assert await members(client) == {(WEB, HOST), (CLEANUP, OTHER_HOST)}
    assert isinstance(await client.ask_one(a_claim(on(OTHER_HOST, 1), DB, group=GROUP)), GroupRefused)


async def test_on_one_host_instance_and_migration_are_one_member(client: StoreClient) -> None:
    pairs = replace(GROUP, max_per_host=2)
    await client.ask(a_claim(on(HOST, 2), group=pairs), a_swap(on(HOST, 1), migration=MIGRATION, group=pairs))

    assert await members(client) == {(WEB, HOST)}
    assert await client.ask_one(a_claim(on(HOST, 1), DB, group=pairs)) == Claimed()
    # The second one came meanwhile; a third would be one too many.
    assert isinstance(
        await client.ask_one(a_claim(on(HOST, 1), consumer("third"), group=pairs)), GroupRefused
    )
    assert (
        await client.ask_one(a_swap(on(HOST, 2), held=2, attempt=3, returns=MIGRATION, group=pairs))
        == Claimed()
    )


async def test_the_only_member_of_an_affinity_group_moves_and_comes_back_and_none_joins_meanwhile(
    client: StoreClient,
) -> None:
    await client.ask(a_claim(on(HOST, 1), group=TOGETHER))

    assert await client.ask_one(a_swap(on(OTHER_HOST, 1), migration=MIGRATION, group=TOGETHER)) == Claimed()

    for host in (HOST, OTHER_HOST):
        verdict = await client.ask_one(a_claim(on(host, 1), DB, group=TOGETHER))
        assert isinstance(verdict, GroupRefused), "it may end on either host"
    back = a_swap(on(HOST, 1), held=2, attempt=3, returns=MIGRATION, group=TOGETHER)
    assert await client.ask_one(back) == Claimed()
    assert await client.ask_one(a_claim(on(HOST, 1), DB, group=TOGETHER)) == Claimed()
    away = a_swap(on(OTHER_HOST, 1), held=3, attempt=4, migration=MIGRATION, group=TOGETHER)
    assert isinstance(await client.ask_one(away), GroupRefused), "the other member stays"


async def test_the_feed_tells_the_members_of_a_move_in_an_order_that_readers_can_merge(
    client: StoreClient,
) -> None:
    async with client.store.lead_feed() as feed:
        assert feed is not None
        await feed.mark(1, (await feed.read()).cursor)
        back = a_swap(on(HOST, 1), held=2, attempt=3, returns=MIGRATION, group=GROUP)
        await client.ask(
            a_claim(on(HOST, 1), group=GROUP),
            a_swap(on(OTHER_HOST, 1), migration=MIGRATION, group=GROUP),
            back,
            # The next destination is tried with the same migration.
            a_swap(on(OTHER_HOST, 1), held=3, attempt=4, migration=MIGRATION, group=GROUP),
        )
        changes = await feed.read()

    reader = GroupMembers()
    reader.join(changes.joined)
    reader.leave(changes.left)
    assert {(each.consumer, each.attempt, each.host) for each in reader.of_group(GROUP.id)} == {
        (WEB, 4, OTHER_HOST),
        (MIGRATION, 3, HOST),
    }
    assert {(each.consumer, each.attempt) for each in changes.ended} == {
        (WEB, 1),
        (WEB, 2),
        (MIGRATION, 1),
        (WEB, 3),
    }


async def test_an_instance_is_deleted_in_the_middle_of_a_move(client: StoreClient) -> None:
    forth = a_swap(on(OTHER_HOST, 2), migration=MIGRATION)
    await client.ask(a_claim(on(HOST, 3)), forth)

    assert await client.ask(a_release(WEB, 2), a_release(MIGRATION)) == (
        Released(freed=True),
        Released(freed=True),
    )
    late = (forth, a_swap(on(HOST, 3), held=2, attempt=3, returns=MIGRATION))
    assert await client.ask(*late) == (Superseded(attempt=2, ended=True), Superseded(attempt=2, ended=True))
    after = await in_use(client)
    assert (after["here"], after["there"], after["live here"], after["live there"]) == (0, 0, 0, 0)


async def test_a_migration_that_was_released_before_its_swap_holds_nothing(client: StoreClient) -> None:
    await client.ask(a_claim(on(HOST, 3)), a_release(MIGRATION))

    assert await client.ask_one(a_swap(on(OTHER_HOST, 2), migration=MIGRATION)) == Claimed()

    assert await client.held(MIGRATION) == frozenset()
    assert (await in_use(client))["here"] == 0


async def test_a_migration_that_is_rewritten_by_name_keeps_its_place(client: StoreClient) -> None:
    await client.ask(a_claim(on(HOST, 3)), a_swap(on(HOST, 1), migration=MIGRATION))
    healed = ConsumerAllocations(
        consumer=MIGRATION, amounts=amounts(HOST, VCPU=1), project="shop", user="ann", generation=1
    )

    async with client.store.transaction() as tx:
        await write_allocations(tx, [SetAllocations(consumers=(healed,))], VOCABULARY, NOON)

    row = await client.row(MIGRATION)
    assert (row.type, row.host, row.attempt) == ("MIGRATION", None, 1)
    assert (await in_use(client))["live here"] == 1
    assert await client.ask_one(a_release(MIGRATION)) == Released(freed=True)
