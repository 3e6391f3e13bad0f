"""Who is answered and asks again at once shares a transaction with the others who do; and nobody waits for who does not."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from bus.messages.administration import CreateTrait, Done
from placement_worker.store import PlacementStore, PlacementTransaction
from placement_worker.store_memory import MemoryPlacementStore
from placement_worker.write_batcher import LINGER_SHARE, WriteBatcher
from tests.contracts.placement_orders import NOON, VOCABULARY
from tests.simulation.loop import run_simulated

COMMIT_S = 0.020
CLIENTS = 8
ROUNDS = 5


class SlowToCommit:
    """On a clock that is moved, so that nobody really waits."""

    def __init__(self, store: PlacementStore) -> None:
        self._store = store
        self.committing = asyncio.Event()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PlacementTransaction]:
        async with self._store.transaction() as tx:
            yield tx
            self.committing.set()
            await asyncio.sleep(COMMIT_S)


def a_desk() -> tuple[WriteBatcher, SlowToCommit]:
    way = SlowToCommit(MemoryPlacementStore())
    return WriteBatcher(way, VOCABULARY, lambda: NOON), way


async def asking(desk: WriteBatcher, name: str, times: int) -> None:
    for turn in range(times):
        assert await desk.ask(CreateTrait(name=f"CUSTOM_{name}_{turn}")) == Done()


async def took_s(work: Callable[[], Awaitable[None]]) -> float:
    clock = asyncio.get_running_loop().time
    began_s = clock()
    await work()
    return clock() - began_s


def test_those_who_came_at_different_times_soon_share_every_batch() -> None:
    async def scenario() -> int:
        desk, way = a_desk()
        first = asyncio.create_task(asking(desk, "FIRST", ROUNDS))
        await way.committing.wait()
        await asyncio.gather(first, *[asking(desk, f"N{number}", ROUNDS) for number in range(CLIENTS - 1)])
        return desk.batches

    # The first one's first, and the others' last.
    assert run_simulated(scenario()) == ROUNDS + 1


def test_one_alone_is_never_kept_waiting() -> None:
    async def scenario() -> float:
        desk, _ = a_desk()
        return await took_s(lambda: asking(desk, "ALONE", ROUNDS))

    assert run_simulated(scenario()) == pytest.approx(ROUNDS * COMMIT_S)


def test_who_stays_while_all_others_go_waits_once_and_not_for_long() -> None:
    async def scenario() -> float:
        desk, _ = a_desk()
        together = [asking(desk, f"N{number}", 1) for number in range(CLIENTS - 1)]
        await asyncio.gather(asking(desk, "STAYS", 1), *together)
        return await took_s(lambda: asking(desk, "STILL", ROUNDS))

    assert run_simulated(scenario()) == pytest.approx((ROUNDS + LINGER_SHARE) * COMMIT_S)


def test_a_desk_that_closes_waits_for_nobody() -> None:
    async def scenario() -> float:
        desk, _ = a_desk()
        await asyncio.gather(*[asking(desk, f"N{number}", 1) for number in range(CLIENTS)])
        last = asyncio.create_task(asking(desk, "LAST", 1))
        await asyncio.sleep(0)
        spent_s = await took_s(desk.close)
        await last
        return spent_s

    assert run_simulated(scenario()) == pytest.approx(COMMIT_S)
