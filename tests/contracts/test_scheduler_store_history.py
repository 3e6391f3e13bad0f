"""The history of instances, on every store: changes are added, renewed, asked about by instance and by host, and forgotten."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio
from msgspec import structs

from bus.messages.moves import Change, MovePlace
from scheduler_worker.store_sql import ChangeQuery, SchedulerStore
from scheduler_worker.store_sql.waiting import NUMBERS_KEPT
from tests.contracts.scheduler_rows import LATER, NOON, a_request, accept, instance, request_id, rows_of
from tests.contracts.scheduler_stores import STORES, open_scheduler_store

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture(params=STORES)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[SchedulerStore]:
    async with open_scheduler_store(request.param) as store:
        await accept(store, a_request(1), a_request(2))
        yield store


def a_move(number: int, of: int = 1, **fields: object) -> Change:
    change = Change(
        instance=instance(of),
        number=number,
        what="migrate",
        cell="c1",
        asked_at=NOON + timedelta(seconds=number),
        by="moor-operator",
        request_id=request_id(number),
        source="h1",
    )
    return structs.replace(change, **fields)


async def write(store: SchedulerStore, *changes: Change) -> None:
    for change in changes:
        (row,) = await rows_of(store, change.instance.int)
        async with store.transaction() as transaction:
            await transaction.lock([row.id])
            await transaction.save([structs.replace(row, history=(change,))])


async def test_moves_of_all_instances_come_newest_first_by_host_and_if_they_go_on(
    store: SchedulerStore,
) -> None:
    await write(
        store,
        a_move(5),
        a_move(6, of=2, source="h3", destination="h1", outcome="confirmed", ended_at=LATER),
        a_move(7, source="h9"),
        a_move(8, what="delete"),
    )

    async def numbers(query: ChangeQuery) -> list[int]:
        return [each.number for each in await store.changes(query)]

    assert await numbers(ChangeQuery(ended=True)) == [7, 6, 5]
    assert await numbers(ChangeQuery()) == [7, 5]
    assert await numbers(ChangeQuery(ended=True, host="h1")) == [6, 5]
    assert await numbers(
        ChangeQuery(ended=True, behind=MovePlace(NOON + timedelta(seconds=6), instance(2)))
    ) == [5]
    assert await numbers(ChangeQuery(ended=True, limit=1)) == [7]
    async with store.transaction() as transaction:
        assert sorted(each.number for each in await transaction.lock_moves()) == [5, 7]


async def test_who_counts_the_moves_waits_for_another_who_adds_one(store: SchedulerStore) -> None:
    counted = asyncio.Event()

    async def add(number: int, of: int) -> int:
        async with store.transaction() as transaction:
            going = await transaction.lock_moves()
            counted.set()
            # Long enough for the other one to count, if nothing stops it.
            await asyncio.sleep(0.1)
            (row,) = (await transaction.lock([instance(of)])).values()
            await transaction.save([structs.replace(row, history=(a_move(number, of),))])
        return len(going)

    first = asyncio.create_task(add(5, 1))
    await counted.wait()
    assert (await add(6, 2), await first) == (1, 0)


async def test_moves_of_one_moment_are_all_on_some_page(store: SchedulerStore) -> None:
    await write(store, a_move(5, asked_at=NOON), a_move(6, of=2, asked_at=NOON))

    (first,) = await store.changes(ChangeQuery(limit=1))
    (second,) = await store.changes(ChangeQuery(limit=1, behind=MovePlace(NOON, first.instance)))

    assert (first.number, second.number) == (5, 6)
    assert await store.changes(ChangeQuery(behind=MovePlace(NOON, second.instance))) == []


async def test_of_an_instance_that_is_given_orders_for_ever_the_oldest_ones_are_forgotten(
    store: SchedulerStore,
) -> None:
    await write(store, a_move(5), a_move(6), a_move(7, of=2), a_move(NUMBERS_KEPT + 5))

    async def numbers(of: int) -> list[int]:
        return [each.number for each in await store.changes(ChangeQuery(instance=instance(of), ended=True))]

    assert await numbers(1) == [6, NUMBERS_KEPT + 5]
    assert await numbers(2) == [7]
