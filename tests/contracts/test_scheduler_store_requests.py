"""Contract of the scheduler's stores: each request is written once, and each instance decided once."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bus.topology import CELL0
from engine.flavors import InstanceId
from kit.errors import Transient
from scheduler_worker.core.instances.lifecycle import deleted, deleted_unseen
from scheduler_worker.core.instances.rows import ACCEPTED, DELETED, failed
from scheduler_worker.store import (
    InstanceQuery,
    InstancesTaken,
    Known,
    OtherContent,
    SchedulerStore,
)
from tests.contracts.scheduler_rows import (
    LATER,
    NOON,
    a_placed,
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


async def test_a_new_request_is_written_with_its_instances(store: SchedulerStore) -> None:
    new = a_request(1, 11, 12)

    assert await accept(store, new) == [Known(new.rows)]

    assert await rows_of(store, 11, 12) == list(new.rows)
    assert [row.told.name for row in new.rows] == ["web-1", "web-2"]


async def test_the_same_request_finds_its_instances_as_they_are_by_now(store: SchedulerStore) -> None:
    first = a_request(1, 11, 12)
    await accept(store, first)
    ended = failed(first.rows[0], LATER, reason="no valid host")
    assert ended is not None
    await save(store, ended)

    (again,) = await accept(store, a_request(1, 11, 12))

    assert again == Known((ended, first.rows[1]))


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


async def test_what_two_decide_at_once_is_decided_by_the_first(store: SchedulerStore) -> None:
    await accept(store, a_request(1))
    decided = []

    async def decide(reason: str) -> None:
        async with store.transaction() as transaction:
            row = (await transaction.lock([instance(1)]))[instance(1)]
            await asyncio.sleep(0)
            ended = failed(row, LATER, reason=reason)
            if ended is not None:
                decided.append(ended)
                await transaction.save([ended])

    await asyncio.gather(decide("this"), decide("that"))

    assert await rows_of(store, 1) == decided


async def test_a_decision_stands_unless_another_came_first(store: SchedulerStore) -> None:
    await accept(store, a_request(1), a_request(2))
    first, second = await rows_of(store, 1, 2)
    deleted_meanwhile = deleted(second, NOON)
    await save(store, deleted_meanwhile)

    ended = [failed(row, LATER, reason="no valid host") for row in (second, first)]
    async with store.transaction() as transaction:
        others = await transaction.decide([row for row in ended if row is not None])

    assert others == {second.id: deleted_meanwhile}
    assert await rows_of(store, 1, 2) == [ended[1], deleted_meanwhile]


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


async def test_a_request_may_be_written_as_it_was_decided(store: SchedulerStore) -> None:
    new = a_placed(a_request(1))

    assert await accept(store, new) == [Known(new.rows)]

    assert await accept(store, new) == [Known(new.rows)]
    assert await store.overdue(LATER, 10) == []


async def test_what_was_decided_of_a_request_gives_way_to_who_was_there_before(store: SchedulerStore) -> None:
    await accept(store, a_request(1), a_request(2, digest=b"other"), a_request(3, 4))
    await save(store, deleted_unseen(instance(5), NOON))

    known, other, taken, unseen = await accept(
        store, *(a_placed(a_request(number)) for number in (1, 2, 4, 5))
    )

    assert (known, other, taken) == (Known(a_request(1).rows), OtherContent(), InstancesTaken((instance(4),)))
    assert isinstance(unseen, Known)
    (row,) = unseen.rows
    assert (row.told.state, row.told.cell, row.told.host, row.order) == (DELETED, CELL0, "", None)
    assert await rows_of(store, 1, 5) == [*a_request(1).rows, row]


@pytest.mark.postgresql
async def test_a_delete_that_found_no_row_does_not_overwrite_the_request_that_came_meanwhile() -> None:
    """Only where transactions run concurrently: it happened when two workers had deletes and their requests at once."""
    async with open_scheduler_store("postgresql") as store:
        with pytest.raises(Transient):
            await delete_while_it_is_accepted(store)

        (row,) = await store.instances(InstanceQuery(instances=(instance(1),)))
        assert (row.told.request_id, row.told.state) == (request_id(1), ACCEPTED)
