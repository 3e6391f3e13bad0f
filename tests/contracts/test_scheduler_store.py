"""Contract of the scheduler's stores: how instances are kept, found and forgotten."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio
from msgspec import structs

from bus.messages.build import BuildInstance
from scheduler_worker.core.instances.lifecycle import SEQUENCE_AHEAD_MAX, deleted, deleted_unseen
from scheduler_worker.core.instances.rows import (
    accepted,
    failed,
)
from scheduler_worker.store_sql import InstanceQuery, Known, NewRequest, SchedulerStore
from tests.contracts.scheduler_rows import (
    LATER,
    NOON,
    _accept,
    _delete,
    a_placed,
    a_request,
    accept,
    an_active,
    confirm,
    instance,
    note,
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


async def test_a_transaction_that_fails_leaves_nothing_behind(store: SchedulerStore) -> None:
    await accept(store, a_request(1))
    (row,) = await rows_of(store, 1)

    async def fail_half_way() -> None:
        async with store.transaction() as transaction:
            await transaction.accept([a_request(2)])
            ended = [one for one in [failed(row, LATER, reason="no")] if one]
            await transaction.decide(ended)
            await transaction.note([ended])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_half_way()

    assert await rows_of(store, 1, 2) == [row]
    assert await store.unconfirmed(LATER + timedelta(1), None, 10) == []
    (kept,) = await note(store, [row])

    async def confirm_half_way() -> None:
        async with store.transaction() as transaction:
            await transaction.confirm([kept])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await confirm_half_way()

    assert [each.kept for each in await store.unconfirmed(LATER, None, 10)] == [kept]
    assert await store.overdue(LATER, 10) == [instance(1)]


async def test_only_what_is_accepted_and_late_is_overdue(store: SchedulerStore) -> None:
    earlier = a_request(3)
    ends_by = LATER - timedelta(minutes=1)
    earlier = structs.replace(earlier, rows=(structs.replace(earlier.rows[0], ends_by=ends_by),))
    await accept(store, a_request(1), a_request(2), earlier)
    await save(store, deleted((await rows_of(store, 2))[0], NOON))

    assert await store.overdue(ends_by - timedelta(seconds=1), 10) == []
    assert await store.overdue(LATER - timedelta(seconds=1), 10) == [instance(3)]
    assert await store.overdue(LATER, 10) == [instance(3), instance(1)]
    assert await store.overdue(LATER, 1) == [instance(3)]


async def test_a_name_may_be_as_long_as_a_request_and_a_number_make_it(store: SchedulerStore) -> None:
    build = BuildInstance(request_id=request_id(1), name="w" * 255, count=2)
    rows = accepted(build, [instance(1), instance(2)], NOON, LATER)
    await accept(store, NewRequest(request_id(1), b"", rows))

    assert [row.id for row in await store.instances(InstanceQuery(name="w" * 255 + "-2"))] == [instance(2)]


async def test_a_request_is_forgotten_when_all_of_it_was_deleted_long_ago_and_has_said_so(
    store: SchedulerStore,
) -> None:
    async with store.transaction() as transaction:
        await transaction.accept([a_request(number, 10 * number, 10 * number + 1) for number in range(1, 6)])
    await _delete(store, NOON, 10, 11, 20, 30, 31, 41, 50, 51)
    await _delete(store, LATER, 40)
    await confirm(store, *await note(store, await rows_of(store, 10, 11, 20, 31, 40, 41, 50, 51)))

    # 20 has a sibling that is alive, 30 has an unconfirmed message, 40 is too recent.
    assert await store.prune(LATER, 1) == 1
    assert await store.prune(LATER, 10) == 1
    assert await store.prune(LATER, 10) == 0

    left = await store.instances(InstanceQuery())
    assert [row.id.int for row in left] == [20, 21, 30, 31, 40, 41]
    assert [type(each) for each in await _accept(store, a_request(1, 10, 11), a_request(2, 20, 21))] == [
        Known,
        Known,
    ]


@pytest.mark.parametrize("ahead", [1, 2**31, 2**61 - 2 - SEQUENCE_AHEAD_MAX])
async def test_an_event_with_an_absurd_sequence_is_not_taken_in_passing(
    store: SchedulerStore, ahead: int
) -> None:
    await accept(store, a_placed(a_request(1)))
    before = await rows_of(store, 1)
    absurd = an_active(1, sequence=2 + SEQUENCE_AHEAD_MAX + ahead)

    async with store.transaction() as transaction:
        assert await transaction.apply_events([absurd]) == 0
    assert await rows_of(store, 1) == before

    async with store.transaction() as transaction:
        assert await transaction.apply_events([an_active(1, sequence=2 + SEQUENCE_AHEAD_MAX)]) == 1


async def test_what_a_project_has_without_a_host_is_counted_until_it_is_deleted(
    store: SchedulerStore,
) -> None:
    """Not what has a host, nor what is of another project."""

    def of_shop(request: NewRequest, **fields: object) -> NewRequest:
        rows = [
            structs.replace(row, told=structs.replace(row.told, project="shop", **fields))
            for row in request.rows
        ]
        return structs.replace(request, rows=tuple(rows))

    await accept(
        store,
        of_shop(a_request(1)),
        of_shop(a_request(2), state="waiting"),
        of_shop(a_request(3), state="error", cell="cell0"),
        of_shop(a_request(4), state="error", cell="c1"),
        of_shop(a_request(5), state="placed", cell="c1", host="h1"),
        of_shop(a_request(6), state="offloaded", cell="c1"),
        a_request(7),
    )
    unseen = [deleted_unseen(instance(number), NOON, "shop") for number in (8, 9, 10)]
    async with store.transaction() as transaction:
        await transaction.lock([each.id for each in unseen])
        await transaction.save(unseen)

    assert await store.unplaced("shop", 10) == (4, 3)
    assert await store.unplaced("shop", 2) == (2, 2)
    assert await store.unplaced("bank", 10) == (0, 0)
