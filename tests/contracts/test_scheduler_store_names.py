"""Contract of the scheduler's stores: hosts, cells, applications, aggregates and server groups."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from uuid import UUID

import pytest
import pytest_asyncio
from msgspec import structs

from bus.messages.cloud import InstanceCount
from bus.messages.stored_names import KnownApplication, NamedImage
from engine.flavors import Flavor
from engine.hosts import NODE, HostState
from engine.inventories import AggregateId, GroupId, GroupPolicy, ProviderId, ServerGroup
from kit.errors import Transient
from scheduler_worker.core.aggregates import KeptAggregate, KnownOrder
from scheduler_worker.core.hosts import HostLoad
from scheduler_worker.core.instances.lifecycle import deleted, heard
from scheduler_worker.core.instances.rows import DELETED
from scheduler_worker.store import (
    GroupQuery,
    HostQuery,
    KnownCell,
    KnownGroup,
    NameQuery,
    SchedulerStore,
)
from tests.contracts.scheduler_rows import LATER, NOON, a_placed, a_request, accept, an_active, rows_of, save
from tests.contracts.scheduler_stores import STORES, open_scheduler_store

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture(params=STORES)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[SchedulerStore]:
    async with open_scheduler_store(request.param) as store:
        yield store


async def test_hosts_are_written_found_by_name_in_pages_and_by_when_they_changed(
    store: SchedulerStore,
) -> None:
    def host(number: int, *, io_ops: int = 0, sequence: int = 0) -> HostState:
        return HostState(
            id=ProviderId(UUID(int=number)),
            name=f"host-{number}",
            cell="c1",
            up=True,
            io_ops=io_ops,
            sequence=sequence,
            kind=NODE,
            projects=("owner", "lessee"),
        )

    async def write(at: datetime, *hosts: HostState) -> None:
        async with store.transaction() as transaction:
            await transaction.save_hosts(hosts, at)

    await write(NOON, host(2), host(1), host(3))
    await write(LATER, host(2, io_ops=5, sequence=2))

    assert await store.hosts(HostQuery(limit=2)) == [host(1), host(2, io_ops=5, sequence=2)]
    assert await store.hosts(HostQuery(after="host-2", limit=2)) == [host(3)]
    assert await store.hosts(HostQuery(name="host-3", limit=2)) == [host(3)]
    assert await store.host_versions(LATER) == [(host(2).id, (LATER, 2))]
    assert len(await store.host_versions(NOON)) == 3
    assert await store.hosts(HostQuery(ids=(host(2).id, host(99).id))) == [host(2, io_ops=5, sequence=2)]
    async with store.transaction() as transaction:
        locked = await transaction.lock_hosts([host(1).id], ["host-3", "nobody"])
    assert sorted(each.name for each in locked) == ["host-1", "host-3"]

    async with store.transaction() as transaction:
        await transaction.lock_hosts([host(2).id], ())
        await transaction.forget_hosts([host(2).id])
    assert await store.hosts(HostQuery(limit=3)) == [host(1), host(3)]
    assert await store.host_versions(LATER) == []


async def test_a_load_is_written_beside_the_row_that_it_names_and_never_over_a_later_one(
    store: SchedulerStore,
) -> None:
    def host(number: int, report: int = 0, io_ops: int = 0) -> HostState:
        return HostState(
            id=ProviderId(UUID(int=number)),
            name=f"host-{number}",
            cell="c1",
            up=True,
            sequence=1,
            report_sequence=report,
            instances=report,
            io_ops=io_ops,
            failed_builds=2 * io_ops,
        )

    def load(number: int, report: int, *, row: int = 1, epoch: int = 0, io_ops: int = 0) -> HostLoad:
        return HostLoad(ProviderId(UUID(int=number)), row, epoch, report, report % 100, io_ops, 2 * io_ops)

    async def write(*loads: HostLoad) -> int:
        async with store.transaction() as transaction:
            return await transaction.save_loads(loads)

    async with store.transaction() as transaction:
        await transaction.save_hosts([host(1, 5), host(2), host(3)], NOON)

    assert await write(load(2, 7), load(1, 6, io_ops=2)) == 2
    assert await write(load(1, 5), load(3, 8, row=2), load(9, 8), load(2, 7)) == 1
    assert await store.hosts(HostQuery()) == [
        host(1, 6, io_ops=2),
        host(2, 7),
        host(3),
    ]
    assert await store.host_versions(LATER) == []
    assert {*await store.host_loads()} == {load(1, 6, io_ops=2), load(2, 7)}
    # A report of a later epoch, and a number of two bytes.
    assert await write(load(2, 300)) == 1
    assert await write(load(2, 1, epoch=1)) == 1
    assert await write(load(2, 301)) == 0

    async with store.transaction() as transaction:
        (locked,) = await transaction.lock_hosts([host(2).id], ())
        assert (locked.instances, locked.report_epoch, locked.report_sequence) == (1, 1, 1)
        await transaction.save_hosts([structs.replace(locked, io_ops=9, sequence=2)], NOON)
    assert {*await store.host_loads()} == {load(1, 6, io_ops=2)}
    assert (await store.hosts(HostQuery(name="host-2")))[0].io_ops == 9
    assert await write(load(2, 400)) == 0, "the row has another sequence now"


async def test_of_each_cell_the_latest_time_is_kept(store: SchedulerStore) -> None:
    async with store.transaction() as transaction:
        await transaction.save_cells([KnownCell("c2", NOON), KnownCell("c1", LATER)])
    async with store.transaction() as transaction:
        await transaction.save_cells([KnownCell("c1", NOON), KnownCell("c2", LATER)])

    assert await store.cells() == [KnownCell("c1", LATER), KnownCell("c2", LATER)]


async def test_the_instances_are_counted_by_state_and_cell_without_deleted_ones(
    store: SchedulerStore,
) -> None:
    assert await store.instance_counts() == []
    placed_ones = [a_placed(a_request(number, 10 + number)) for number in (1, 2, 3)]
    await accept(store, *placed_ones, a_request(4, 21))
    (first, second, third) = await rows_of(store, 11, 12, 13)
    event = an_active(11)
    await save(store, heard(first, event, LATER), deleted(second, LATER))
    gone = structs.replace(third, told=structs.replace(third.told, state=DELETED))
    await save(store, gone)

    assert await store.instance_counts() == [
        InstanceCount(state="accepted", cell="", count=1),
        InstanceCount(state="active", cell="c1", count=1),
        InstanceCount(state="deleting", cell="c1", count=1),
    ]


async def test_orders_about_an_application_count_by_when_they_were_sent(store: SchedulerStore) -> None:
    elsewhere = timezone(timedelta(hours=5))
    shop, other = (KnownApplication(name="shop", projects=(project,)) for project in ("p", "q"))
    earlier, later = NOON - timedelta(microseconds=1), (NOON + timedelta(seconds=1)).astimezone(elsewhere)
    async with store.transaction() as transaction:
        assert await transaction.set_application("shop", NOON, shop) == shop
    async with store.transaction() as transaction:
        assert await transaction.set_application("shop", earlier, other) == shop
        assert await transaction.set_application("shop", NOON, shop) == shop, "the same order comes again"
        assert await transaction.set_application("another", earlier, None) is None
        assert await transaction.set_application("shop", later, other) == other

    async def fail() -> None:
        async with store.transaction() as transaction:
            assert await transaction.set_application("shop", NOON + timedelta(days=1), shop) == shop
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with store.transaction() as transaction:
        assert await transaction.set_application("shop", later, None) is None
        assert await transaction.set_application("shop", NOON, shop) is None, "removed is not forgotten"
        assert await transaction.set_application("shop", NOON + timedelta(seconds=1), shop) == shop


async def test_applications_are_written_over_found_in_order_and_forgotten(store: SchedulerStore) -> None:
    shop, admin = KnownApplication(name="shop", projects=("p", "q")), KnownApplication(name="a-1", admin=True)
    fewer = structs.replace(shop, projects=("q",))
    async with store.transaction() as transaction:
        await transaction.set_application("shop", NOON, shop)
        await transaction.set_application("a-1", NOON, admin)
    async with store.transaction() as transaction:
        await transaction.set_application("shop", LATER, fewer)
        await transaction.set_application("nobody", NOON, None)

    assert await store.applications() == [admin, fewer]

    async with store.transaction() as transaction:
        await transaction.set_application("a-1", LATER, None)

    async def fail() -> None:
        async with store.transaction() as transaction:
            await transaction.set_application("shop", LATER, None)
            await transaction.set_application("a-1", LATER, admin)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await store.applications() == [fewer]


def an_aggregate(number: int, name: str, **metadata: str) -> KeptAggregate:
    return KeptAggregate(id=AggregateId(UUID(int=number)), name=name, metadata=metadata, sequence=number)


async def test_aggregates_are_written_over_found_in_order_and_deleted(store: SchedulerStore) -> None:
    north, south = an_aggregate(2, "north", availability_zone="n"), an_aggregate(1, "south")
    async with store.transaction() as transaction:
        assert await transaction.lock_aggregates() == []
        await transaction.save_aggregate(south)
        await transaction.save_aggregate(north)
    orders = (KnownOrder("a", is_done=True), KnownOrder("b", is_done=False))
    other = structs.replace(south, metadata={"rack": "r1"}, sequence=9, orders=orders)
    async with store.transaction() as transaction:
        assert await transaction.lock_aggregates() == [north, south]
        await transaction.save_aggregate(other)
    assert await store.aggregates() == [north.told, other.told]

    async def fail() -> None:
        async with store.transaction() as transaction:
            await transaction.forget_aggregate(other.id)
            await transaction.save_aggregate(structs.replace(north, metadata={}))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with store.transaction() as transaction:
        await transaction.forget_aggregate(north.id)
        await transaction.forget_aggregate(north.id)
        assert await transaction.lock_aggregates() == [other]
    assert await store.aggregates() == [other.told]


async def test_a_deleted_aggregate_is_kept_without_its_name(store: SchedulerStore) -> None:
    gone = structs.replace(an_aggregate(1, "rack"), deleted_us=5)
    async with store.transaction() as transaction:
        await transaction.save_aggregate(an_aggregate(1, "rack"))
        await transaction.save_aggregate(gone)
    assert await store.aggregates() == []

    async with store.transaction() as transaction:
        await transaction.save_aggregate(an_aggregate(2, "rack"))
        await transaction.save_aggregate(structs.replace(an_aggregate(2, "rack"), deleted_us=6))
        await transaction.save_aggregate(an_aggregate(3, "rack"))
        kept = await transaction.lock_aggregates()

    assert [
        (each.id.int, each.name, each.deleted_us) for each in sorted(kept, key=lambda each: each.id.int)
    ] == [
        (1, "rack", 5),
        (2, "rack", 6),
        (3, "rack", 0),
    ]
    assert await store.aggregates() == [an_aggregate(3, "rack").told]


async def test_one_worker_at_a_time_orders_aggregates_and_may_write_meanwhile(store: SchedulerStore) -> None:
    inside: list[int] = []
    most = 0

    async def order(number: int) -> None:
        nonlocal most
        async with store.ordering_aggregates():
            inside.append(number)
            most = max(most, len(inside))
            async with store.transaction() as transaction:
                await transaction.save_aggregate(an_aggregate(number, f"rack {number}"))
            inside.remove(number)

    await asyncio.gather(*map(order, range(1, 5)))

    assert most == 1
    assert len(await store.aggregates()) == 4


async def test_a_name_of_another_aggregate_is_tried_again(store: SchedulerStore) -> None:
    async with store.transaction() as transaction:
        await transaction.save_aggregate(an_aggregate(1, "rack"))

    async def take_the_name() -> None:
        async with store.transaction() as transaction:
            await transaction.save_aggregate(an_aggregate(2, "rack"))

    with pytest.raises(Transient, match="another worker has just created an aggregate 'rack'"):
        await take_the_name()
    assert await store.aggregates() == [an_aggregate(1, "rack").told]


def a_group(
    number: int, project: str = "shop", *, policy: GroupPolicy = "affinity", max_per_host: int = 1
) -> KnownGroup:
    group = ServerGroup(id=GroupId(UUID(int=number)), policy=policy, max_per_host=max_per_host)
    return KnownGroup(definition=group, name=f"group-{number}", project=project)


async def test_a_group_is_created_once_and_other_content_does_not_change_it(store: SchedulerStore) -> None:
    first, other = a_group(1), a_group(1, policy="anti-affinity", max_per_host=3)
    async with store.transaction() as transaction:
        assert await transaction.create_group(first) == first
        assert await transaction.create_group(other) == first
    async with store.transaction() as transaction:
        assert await transaction.create_group(first) == first

    assert list(await store.groups(GroupQuery())) == [first]


async def test_groups_are_found_by_id_by_project_and_in_pages(store: SchedulerStore) -> None:
    groups = [a_group(number, "shop" if number % 2 else "bank") for number in range(1, 6)]
    async with store.transaction() as transaction:
        for group in reversed(groups):
            await transaction.create_group(group)

    ids = [group.definition.id for group in groups]
    assert list(await store.groups(GroupQuery())) == groups
    assert list(await store.groups(GroupQuery(ids=(ids[3], ids[1], GroupId(UUID(int=77)))))) == [
        groups[1],
        groups[3],
    ]
    assert list(await store.groups(GroupQuery(after=ids[0], project="shop", limit=1))) == [groups[2]]
    assert list(await store.groups(GroupQuery(name=groups[1].name, id_prefix=ids[1].hex[:31]))) == [groups[1]]
    assert list(await store.groups(GroupQuery(name="nobody"))) == []
    assert list(await store.groups(GroupQuery(id_prefix="ffff"))) == []


async def test_a_deleted_group_is_found_no_more_and_its_id_stays_taken_until_it_is_pruned(
    store: SchedulerStore,
) -> None:
    group, id_ = a_group(1), GroupId(UUID(int=1))
    async with store.transaction() as transaction:
        await transaction.create_group(group)
        assert await transaction.delete_group(id_, "bank", NOON) is None
        assert await transaction.delete_group(id_, "shop", NOON) == group
        assert await transaction.delete_group(id_, "", NOON) is None, "it was deleted already"
    assert list(await store.groups(GroupQuery(ids=(id_,)))) == []

    await store.prune(NOON, 10)
    async with store.transaction() as transaction:
        assert await transaction.create_group(group) is None
    await store.prune(NOON + timedelta(seconds=1), 10)
    async with store.transaction() as transaction:
        assert await transaction.create_group(group) == group


async def test_a_flavor_is_created_once_found_by_name_and_in_pages_and_deleted(store: SchedulerStore) -> None:
    flavors = [Flavor(name=name, vcpus=1, extra_specs={"a": "b"}) for name in ("B", "a", "a-b", "ab", "ä")]
    async with store.transaction() as transaction:
        for flavor in reversed(flavors):
            assert await transaction.create_named(flavor) == flavor
    async with store.transaction() as transaction:
        assert await transaction.create_named(structs.replace(flavors[0], vcpus=2)) == flavors[0]

    assert list(await store.named(Flavor, NameQuery())) == flavors
    assert list(await store.named(Flavor, NameQuery(after="a", limit=2))) == flavors[2:4]
    assert list(await store.named(Flavor, NameQuery(names=("ab", "none", "B")))) == [flavors[0], flavors[3]]

    async with store.transaction() as transaction:
        assert await transaction.delete_named(Flavor, "a") == flavors[1]
        assert await transaction.delete_named(Flavor, "a") is None
    assert list(await store.named(Flavor, NameQuery(names=("a",)))) == []


async def test_an_image_is_created_changed_and_deleted_beside_a_flavor_of_its_name(
    store: SchedulerStore,
) -> None:
    flavor, image = Flavor(name="a", vcpus=1), NamedImage(name="a", source="s", properties={"os_type": "x"})
    async with store.transaction() as transaction:
        await transaction.create_named(flavor)
        assert await transaction.create_named(image) == image
        assert await transaction.lock_named(NamedImage, "b") is None

    changed = structs.replace(image, source="t", properties={})
    async with store.transaction() as transaction:
        assert await transaction.lock_named(NamedImage, "a") == image
        await transaction.save_named(changed)
    assert list(await store.named(NamedImage, NameQuery())) == [changed]

    async with store.transaction() as transaction:
        assert await transaction.delete_named(NamedImage, "a") == changed
    assert list(await store.named(NamedImage, NameQuery(names=("a",)))) == []
    assert list(await store.named(Flavor, NameQuery())) == [flavor]
