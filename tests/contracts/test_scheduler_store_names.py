"""Contract of the scheduler's stores: hosts, cells, applications, aggregates and server groups."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from uuid import UUID

import pytest
import pytest_asyncio

from bus.messages.stored_names import KnownApplication
from engine.hosts import NODE, HostState
from engine.inventories import AggregateId, GroupId, GroupPolicy, ProviderId, ServerGroup
from kit.errors import Transient
from scheduler_worker.core.aggregates import KeptAggregate
from scheduler_worker.store_sql import GroupQuery, HostQuery, KnownCell, KnownGroup, SchedulerStore
from tests.contracts.scheduler_rows import LATER, NOON
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


async def test_of_each_cell_the_latest_time_is_kept(store: SchedulerStore) -> None:
    async with store.transaction() as transaction:
        await transaction.save_cells([KnownCell("c2", NOON), KnownCell("c1", LATER)])
    async with store.transaction() as transaction:
        await transaction.save_cells([KnownCell("c1", NOON), KnownCell("c2", LATER)])

    assert await store.cells() == [KnownCell("c1", LATER), KnownCell("c2", LATER)]


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


def an_aggregate(number: int, name: str, **metadata: str) -> KeptAggregate:
    return KeptAggregate(id=AggregateId(UUID(int=number)), name=name, metadata=metadata, sequence=number)


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
