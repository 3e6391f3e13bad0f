"""Contract of the scheduler's stores: instances that wait, the order of their turns, and the lease of the worker that tries them."""

from datetime import datetime, timedelta
from random import Random
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.build import BuildInstance
from bus.messages.moves import MoveInstance
from engine.refusals import NoValidHost
from scheduler_worker.core.instances.moves import MoveWaits, move_waits
from scheduler_worker.core.instances.rows import KeptRequest, accepted, waits
from scheduler_worker.store_sql import NewRequest, SchedulerStore
from tests.contracts.scheduler_rows import NOON, accept, delete, instance, request_id, rows_of, save
from tests.contracts.stores import open_scheduler_store
from tests.running import once

S = timedelta(seconds=1)
ENDS = NOON + timedelta(hours=1)
ONE, OTHER = UUID(int=1), UUID(int=2)


async def begin(
    store: SchedulerStore, number: int, *, priority: int = 0, after_s: int = 0, digest: bytes = b"s"
) -> None:
    """A request is accepted, and finds no host."""
    at = NOON + after_s * S
    rows = accepted(BuildInstance(request_id=request_id(number)), [instance(number)], at, ENDS, b"a spec")
    await accept(store, NewRequest(request_id(number), b"same", rows))
    row = waits(rows[0], at, KeptRequest(digest, b"a request"), priority=priority, reason="no valid host")
    assert row is not None
    assert await once(store.transaction, lambda tx: tx.decide([row])) == {}


async def next_of(store: SchedulerStore, *digests: bytes, limit: int = 100) -> list[int]:
    return [each.id.int for each in await once(store.transaction, lambda tx: tx.next_waiting(digests, limit))]


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


async def test_one_worker_at_a_time_has_the_lease(store: SchedulerStore) -> None:
    async def lease(holder: UUID, at: datetime) -> datetime | None:
        return await once(store.transaction, lambda tx: tx.lease_waking(holder, at, at + 10 * S))

    assert await lease(ONE, NOON) is None
    assert await lease(OTHER, NOON + S) == NOON + 10 * S
    assert await lease(ONE, NOON + 2 * S) is None
    # Clocks differ a little.
    assert await lease(OTHER, NOON - S) == NOON + 12 * S
    assert await lease(OTHER, NOON + 12 * S) is None
    assert await lease(ONE, NOON + 13 * S) == NOON + 22 * S
    await once(store.transaction, lambda tx: tx.release_waking(ONE))
    assert await lease(ONE, NOON + 13 * S) == NOON + 22 * S
    await once(store.transaction, lambda tx: tx.release_waking(OTHER))
    assert await lease(ONE, NOON + 13 * S) is None
    # A lease of tomorrow was taken by a clock that was wrong.
    assert await lease(OTHER, NOON - timedelta(days=1)) is None


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
) -> None:
    """An offloaded instance is to be unshelved, and finds no host."""
    at = NOON + after_s * S
    build = BuildInstance(request_id=request_id(number))
    (row,) = accepted(build, [instance(number)], NOON, ENDS, b"a spec")
    told = structs.replace(row.told, state="offloaded", cell="c1", sequence=9)
    offloaded = structs.replace(row, told=told, heard=9)
    await accept(store, NewRequest(request_id(number), b"same", (offloaded,)))
    (known,) = await rows_of(store, number)
    order = MoveInstance(request_id=request_id(1000), instance=instance(number), kind="unshelve")
    row = move_waits(
        known,
        order,
        MoveWaits(for_s=60, priority=priority),
        at,
        kept=KeptRequest(b"s", b"the order"),
        reason="no host among 1",
        no_valid_host=NoValidHost(hosts=1, steps=()),
    )
    await save(store, row)


async def test_moves_and_builds_wait_in_one_order(store: SchedulerStore) -> None:
    await begin(store, 1, priority=5)
    await a_move_that_waits(store, 2, after_s=20)
    await begin(store, 3, after_s=10)
    await a_move_that_waits(store, 4, priority=101, after_s=30)
    assert await next_of(store, b"s") == [4, 1, 3, 2]


async def test_a_delete_takes_a_move_that_waits_from_the_list(store: SchedulerStore) -> None:
    await a_move_that_waits(store, 1)
    await delete(store, NOON, 1)
    assert await next_of(store, b"s") == []
    assert await store.overdue(NOON + 60 * S, 10) == []
