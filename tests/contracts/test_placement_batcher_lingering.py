"""The batcher lingers for callers that write again at once, so that they share transactions; it never waits for long."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from bus.messages.administration import CreateTrait, Done
from placement_worker.admin_writes import LINGER_SHARE, WriteBatcher
from placement_worker.store import PlacementStore, PlacementTransaction
from tests.contracts.placement_orders import NOON, VOCABULARY
from tests.simulation.loop import run_simulated
from tests.stores_in_memory import MemoryPlacementStore

COMMIT_S = 0.020
CLIENTS = 8
ROUNDS = 5


class SlowToCommit:
    """Runs on a simulated clock, so that no test really waits."""

    def __init__(self, store: PlacementStore) -> None:
        self._store = store
        self.committing = asyncio.Event()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PlacementTransaction]:
        async with self._store.transaction() as tx:
            yield tx
            self.committing.set()
            await asyncio.sleep(COMMIT_S)


def a_batcher() -> tuple[WriteBatcher, SlowToCommit]:
    way = SlowToCommit(MemoryPlacementStore())
    return WriteBatcher(way, VOCABULARY, lambda: NOON), way


async def asking(batcher: WriteBatcher, name: str, times: int) -> None:
    for turn in range(times):
        assert await batcher.ask(CreateTrait(name=f"CUSTOM_{name}_{turn}")) == Done()


async def took_s(work: Callable[[], Awaitable[None]]) -> float:
    clock = asyncio.get_running_loop().time
    began_s = clock()
    await work()
    return clock() - began_s


def test_callers_that_began_at_different_times_soon_share_every_batch() -> None:
    async def scenario() -> int:
        batcher, way = a_batcher()
        first = asyncio.create_task(asking(batcher, "FIRST", ROUNDS))
        await way.committing.wait()
        await asyncio.gather(first, *[asking(batcher, f"N{number}", ROUNDS) for number in range(CLIENTS - 1)])
        return batcher.batches

    # One more, since the first caller's first write and the others' last one are alone.
    assert run_simulated(scenario()) == ROUNDS + 1


def test_a_single_caller_never_waits() -> None:
    async def scenario() -> float:
        batcher, _ = a_batcher()
        return await took_s(lambda: asking(batcher, "ALONE", ROUNDS))

    assert run_simulated(scenario()) == pytest.approx(ROUNDS * COMMIT_S)


def test_a_caller_that_stays_while_the_others_go_waits_once_and_not_for_long() -> None:
    async def scenario() -> float:
        batcher, _ = a_batcher()
        together = [asking(batcher, f"N{number}", 1) for number in range(CLIENTS - 1)]
        await asyncio.gather(asking(batcher, "STAYS", 1), *together)
        return await took_s(lambda: asking(batcher, "STILL", ROUNDS))

    assert run_simulated(scenario()) == pytest.approx((ROUNDS + LINGER_SHARE) * COMMIT_S)


def test_a_batcher_that_closes_does_not_linger() -> None:
    async def scenario() -> float:
        batcher, _ = a_batcher()
        await asyncio.gather(*[asking(batcher, f"N{number}", 1) for number in range(CLIENTS)])
        last = asyncio.create_task(asking(batcher, "LAST", 1))
        await asyncio.sleep(0)
        spent_s = await took_s(batcher.close)
        await last
        return spent_s

    assert run_simulated(scenario()) == pytest.approx(COMMIT_S)
