"""Contract of the scheduler's stores: each request is written once, and each instance decided once."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from engine.flavors import InstanceId
from kit.errors import Transient
from scheduler_worker.core.instances.lifecycle import deleted_unseen
from scheduler_worker.core.instances.rows import ACCEPTED, DELETED, failed
from scheduler_worker.store_sql import InstanceQuery, InstancesTaken, Known, OtherContent, SchedulerStore
from tests.contracts.scheduler_rows import (
    LATER,
    NOON,
    a_request,
    accept,
    delete_while_it_is_accepted,
    instance,
    request_id,
    rows_of,
    save,
)
from tests.contracts.scheduler_stores import STORES, open_scheduler_store

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture(params=STORES)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[SchedulerStore]:
    async with open_scheduler_store(request.param) as store:
        yield store


async def test_another_request_of_the_same_id_is_told_so_and_changes_nothing(store: SchedulerStore) -> None:
    new = a_request(1)
    await accept(store, new)

    assert await accept(store, a_request(1, digest=b"other"), a_request(2)) == [
        OtherContent(),
        Known(a_request(2).rows),
    ]

    assert await rows_of(store, 1) == list(new.rows)


async def test_a_request_for_anothers_instance_leaves_nothing_behind(store: SchedulerStore) -> None:
    await accept(store, a_request(1, 11, 12))

    assert await accept(store, a_request(2, 12, 13)) == [InstancesTaken((instance(12),))]

    assert await rows_of(store, 13) == []
    new = a_request(2, 14)
    assert await accept(store, new) == [Known(new.rows)]


async def test_a_request_that_was_overtaken_by_a_delete_finds_its_instance_deleted(
    store: SchedulerStore,
) -> None:
    await save(store, deleted_unseen(instance(11), NOON))

    (judged,) = await accept(store, a_request(1, 11, 12))

    assert isinstance(judged, Known)
    assert [row.told.state for row in judged.rows] == [DELETED, ACCEPTED]
    assert judged.rows[0].told.request_id == request_id(1)
    assert await rows_of(store, 11, 12) == list(judged.rows)
    assert [row.told.id for row in await store.instances(InstanceQuery())] == [instance(11), instance(12)]


async def test_of_two_who_accept_the_same_requests_at_once_both_find_the_same(store: SchedulerStore) -> None:
    requests = [a_request(number) for number in range(1, 20)]

    ours, theirs = await asyncio.gather(accept(store, *requests), accept(store, *reversed(requests)))

    assert ours == list(reversed(theirs)) == [Known(each.rows) for each in requests]


async def test_of_two_who_decide_at_once_one_is_told_of_the_other(store: SchedulerStore) -> None:
    requests = [a_request(number) for number in range(1, 20)]
    await accept(store, *requests)

    async def decide(reason: str) -> dict[InstanceId, str]:
        ended = [failed(row, LATER, reason=reason) for each in requests for row in each.rows]
        async with store.transaction() as transaction:
            others = await transaction.decide([row for row in ended if row is not None])
        return {id_: row.told.reason for id_, row in others.items()}

    told = await asyncio.gather(decide("this"), decide("that"))

    rows = await rows_of(store, *range(1, 20))
    assert {row.told.reason for row in rows} < {"this", "that"}
    others = {row.id: row.told.reason for row in rows}
    assert sorted(told, key=len) == [{}, others]


@pytest.mark.postgresql
async def test_a_delete_that_found_no_row_does_not_overwrite_the_request_that_came_meanwhile() -> None:
    """Only where transactions run concurrently: it happened when two workers had deletes and their requests at once."""
    async with open_scheduler_store("postgresql") as store:
        with pytest.raises(Transient):
            await delete_while_it_is_accepted(store)

        (row,) = await store.instances(InstanceQuery(instances=(instance(1),)))
        assert (row.told.request_id, row.told.state) == (request_id(1), ACCEPTED)
