"""Contract of the scheduler's stores: instances that wait, the order of their turns, and the lease of the worker that tries them."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from random import Random
from uuid import UUID

import pytest
import pytest_asyncio
from msgspec import structs

from bus.messages.build import BuildInstance, Waiting
from bus.messages.moves import MoveInstance
from engine.flavors import InstanceId, RequestId
from engine.refusals import NoValidHost
from scheduler_worker.core.instances.lifecycle import deleted, overdue
from scheduler_worker.core.instances.moves import MoveWaits, move_waits
from scheduler_worker.core.instances.rows import ERROR, WAITING, InstanceRow, KeptRequest, accepted, waits
from scheduler_worker.store import InstanceQuery, NewRequest, SchedulerStore, WaitingInstance, WorkCounts
from tests.contracts.scheduler_stores import STORES, open_scheduler_store

pytestmark = pytest.mark.asyncio

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
S = timedelta(seconds=1)
ENDS = NOON + timedelta(hours=1)
ONE, OTHER = UUID(int=1), UUID(int=2)
BUILD = b"a request"


@pytest_asyncio.fixture(params=STORES)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[SchedulerStore]:
    async with open_scheduler_store(request.param) as store:
        yield store


def instance(number: int) -> InstanceId:
    return InstanceId(UUID(int=number))


async def begin(
    store: SchedulerStore,
    number: int,
    *,
    priority: int = 0,
    after_s: int = 0,
    digest: bytes = b"s",
    spec: bytes = b"a spec",
    kept: bytes = BUILD,
) -> InstanceRow:
    """A request is accepted, and finds no host."""
    at = NOON + after_s * S
    build = BuildInstance(request_id=RequestId(UUID(int=1000 + number)))
    rows = accepted(build, [instance(number)], at, ENDS, spec)
    assert build.request_id is not None
    async with store.transaction() as transaction:
        await transaction.accept([NewRequest(build.request_id, b"same", rows)])
    row = waits(rows[0], at, KeptRequest(digest, kept), priority=priority, reason="no valid host")
    assert row is not None
    async with store.transaction() as transaction:
        assert await transaction.decide([row]) == {}
    return row


async def next_of(store: SchedulerStore, *digests: bytes, limit: int = 100) -> list[int]:
    async with store.transaction() as transaction:
        return [each.id.int for each in await transaction.next_waiting(digests, limit)]


async def test_what_waits_is_told_so_and_listed_until_it_ends(store: SchedulerStore) -> None:
    row = await begin(store, 1, priority=7)

    (read,) = await store.instances(InstanceQuery(state=WAITING))
    assert read.told == row.told
    assert read.told.waiting == Waiting(until=ENDS, priority=7)
    assert (read.unsaid, read.kept, read.has_waited) == (True, None, False)
    assert set(await store.waiting_digests(None)) == {b"s"}
    assert list(await store.one_waiting_of_each([b"t", b"s"])) == [WaitingInstance(instance(1), b"s", BUILD)]
    assert list(await store.overdue(ENDS - S, 10)) == []
    assert list(await store.overdue(ENDS, 10)) == [instance(1)]
    assert await store.work_counts() == WorkCounts(1, row.issued_at)

    ended = overdue(read, ENDS)
    assert ended is not None
    async with store.transaction() as transaction:
        await transaction.save([ended])
    (read,) = await store.instances(InstanceQuery(state=ERROR))
    assert read.told.waiting is None
    assert set(await store.waiting_digests(None)) == set()
    assert list(await store.one_waiting_of_each([b"s"])) == []
    assert await store.work_counts() == WorkCounts()
    assert list(await store.overdue(ENDS, 10)) == []


async def test_a_copy_of_the_request_does_not_decide_over_what_waits(store: SchedulerStore) -> None:
    row = await begin(store, 1)
    again = structs.replace(row, told=structs.replace(row.told, reason="another search"))

    async with store.transaction() as transaction:
        others = await transaction.decide([again])

    assert others[instance(1)].told == row.told
    assert await next_of(store, b"s") == [1]


async def test_the_digests_of_some_instances_are_told(store: SchedulerStore) -> None:
    for number, digest in ((1, b"s"), (2, b"s"), (3, b"t")):
        await begin(store, number, digest=digest)

    assert set(await store.waiting_digests({instance(1), instance(2)})) == {b"s"}
    assert set(await store.waiting_digests({instance(3), instance(9)})) == {b"t"}
    assert set(await store.waiting_digests(None)) == {b"s", b"t"}
    # More than one statement looks up.
    looked_up = await store.one_waiting_of_each([*(b"%d" % each for each in range(250)), b"t", b"s"])
    assert [each.digest for each in looked_up] == [b"t", b"s"]


async def test_priority_goes_first_then_age_then_the_id(store: SchedulerStore) -> None:
    chance = Random(13)
    drawn = [
        (number, chance.randint(0, 2), chance.randint(0, 2), chance.choice((b"s", b"t", b"u")))
        for number in range(1, 31)
    ]
    for number, priority, after_s, digest in chance.sample(drawn, len(drawn)):
        await begin(store, number, priority=priority, after_s=after_s, digest=digest)

    turns = sorted(drawn, key=lambda each: (-each[1], each[2], each[0]))
    wanted = [number for number, _, _, digest in turns if digest in (b"s", b"t")]
    assert await next_of(store, b"s", b"t") == wanted
    assert await next_of(store, b"s", b"t", limit=4) == wanted[:4]


async def test_what_is_tried_is_marked_until_it_waits_again_or_ends(store: SchedulerStore) -> None:
    rows = [await begin(store, number) for number in (1, 2, 3)]
    assert not await store.some_are_woken()

    async with store.transaction() as transaction:
        await transaction.wake([instance(2), instance(3)])
    assert await store.some_are_woken()
    async with store.transaction() as transaction:
        assert [each.id.int for each in await transaction.woken(10)] == [2, 3]
        await transaction.let_wait([instance(3)])
    async with store.transaction() as transaction:
        assert [each.id.int for each in await transaction.woken(10)] == [2]
        gone = deleted(rows[1], NOON)
        assert gone is not None
        await transaction.save([gone])
    assert not await store.some_are_woken()
    assert await next_of(store, b"s") == [1, 3]

    async with store.transaction() as transaction:
        await transaction.unlist([instance(1)])
    assert await next_of(store, b"s") == [3]


async def test_one_worker_at_a_time_has_the_lease(store: SchedulerStore) -> None:
    async def lease(holder: UUID, at: datetime) -> datetime | None:
        async with store.transaction() as transaction:
            return await transaction.lease_waking(holder, at, at + 10 * S)

    assert await lease(ONE, NOON) is None
    assert await lease(OTHER, NOON + S) == NOON + 10 * S
    assert await lease(ONE, NOON + 2 * S) is None
    # Clocks differ a little.
    assert await lease(OTHER, NOON - S) == NOON + 12 * S
    assert await lease(OTHER, NOON + 12 * S) is None
    assert await lease(ONE, NOON + 13 * S) == NOON + 22 * S
    async with store.transaction() as transaction:
        await transaction.release_waking(ONE)
    assert await lease(ONE, NOON + 13 * S) == NOON + 22 * S
    async with store.transaction() as transaction:
        await transaction.release_waking(OTHER)
    assert await lease(ONE, NOON + 13 * S) is None
    # A lease of tomorrow was taken by a clock that was wrong.
    assert await lease(OTHER, NOON - timedelta(days=1)) is None


async def test_the_lease_to_count_is_another_one(store: SchedulerStore) -> None:
    async with store.transaction() as transaction:
        assert await transaction.lease_waking(ONE, NOON, NOON + 10 * S) is None
        assert await transaction.lease_counting(OTHER, NOON, NOON + 20 * S) is None
        assert await transaction.lease_counting(ONE, NOON + S, NOON + 21 * S) == NOON + 20 * S
        assert await transaction.lease_waking(OTHER, NOON + S, NOON + 11 * S) == NOON + 10 * S
        await transaction.release_waking(ONE)
        assert await transaction.lease_waking(OTHER, NOON + S, NOON + 11 * S) is None
        assert await transaction.lease_counting(ONE, NOON + 2 * S, NOON + 22 * S) == NOON + 20 * S


@pytest.mark.postgresql
async def test_what_another_worker_has_locked_is_passed_over() -> None:
    async with open_scheduler_store("postgresql") as store:
        for number in (1, 2):
            await begin(store, number)
        async with store.transaction() as ending:
            await ending.unlist([instance(1)])
            # Not waited for.
            assert await next_of(store, b"s") == [2]
            # It may be there still, if that worker fails.
            assert len(await store.one_waiting_of_each([b"s"])) == 1


async def a_move_that_waits(
    store: SchedulerStore, number: int, *, after_s: int = 0, priority: int = 0
) -> InstanceRow:
    """An offloaded instance is to be unshelved, and finds no host."""
    at = NOON + after_s * S
    build = BuildInstance(request_id=RequestId(UUID(int=1000 + number)))
    (row,) = accepted(build, [instance(number)], NOON, ENDS, b"a spec")
    told = structs.replace(row.told, state="offloaded", cell="c1", sequence=9)
    assert build.request_id is not None
    async with store.transaction() as transaction:
        await transaction.accept(
            [NewRequest(build.request_id, b"same", (structs.replace(row, told=told, heard=9),))]
        )
        (known,) = (await transaction.lock([instance(number)])).values()
        order = MoveInstance(request_id=RequestId(UUID(int=2000)), instance=instance(number), kind="unshelve")
        row = move_waits(
            known,
            order,
            MoveWaits(for_s=60, priority=priority),
            at,
            kept=KeptRequest(b"s", b"the order"),
            reason="no host among 1",
            no_valid_host=NoValidHost(hosts=1, steps=()),
        )
        await transaction.save([row])
    return row


async def test_moves_and_builds_wait_in_one_order(store: SchedulerStore) -> None:
    await begin(store, 1, priority=5)
    await a_move_that_waits(store, 2, after_s=20)
    await begin(store, 3, after_s=10)
    await a_move_that_waits(store, 4, priority=101, after_s=30)
    assert await next_of(store, b"s") == [4, 1, 3, 2]


async def test_a_move_that_waits_is_read_as_it_was_written_and_is_due_when_its_time_is_up(
    store: SchedulerStore,
) -> None:
    row = await a_move_that_waits(store, 1)
    (read,) = await store.instances(InstanceQuery(instances=(row.id,)))
    assert (read.told, read.kept_move, read.move_waits) == (row.told, row.kept_move, True)
    assert read.kept_move is not None
    assert read.kept_move.order == b"the order"
    assert await store.overdue(NOON + 59 * S, 10) == []
    assert await store.overdue(NOON + 60 * S, 10) == [row.id]

    async with store.transaction() as transaction:
        (locked,) = (await transaction.lock([row.id])).values()
        ended = overdue(locked, NOON + 60 * S)
        assert ended is not None
        await transaction.save([ended])

    assert await next_of(store, b"s") == []
    assert await store.overdue(NOON + 60 * S, 10) == []
    (over,) = await store.instances(InstanceQuery(instances=(row.id,)))
    assert (over.told.state, over.told.waiting, over.told.no_valid_host) == ("offloaded", None, None)
    assert over.told.move is not None
    assert (over.told.move.outcome, over.told.move.failure.partition(", until")[0]) == (
        "failed",
        "no valid host: it waited 60 s for room",
    )


async def test_a_delete_takes_a_move_that_waits_from_the_list(store: SchedulerStore) -> None:
    row = await a_move_that_waits(store, 1)
    async with store.transaction() as transaction:
        (locked,) = (await transaction.lock([row.id])).values()
        gone = deleted(locked, NOON)
        assert gone is not None
        await transaction.save([gone])
    assert await next_of(store, b"s") == []
    assert await store.overdue(NOON + 60 * S, 10) == []
