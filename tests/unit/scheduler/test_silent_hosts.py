"""A scheduler writes which hosts fell silent, and one that starts later knows it."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID

from engine.hosts import HostState
from engine.inventories import ProviderId
from engine.picture.picture import Picture
from scheduler_worker.hosts import HostRegistry, HostWatch
from scheduler_worker.store import HostQuery
from tests.simulation.loop import run_simulated, until_s
from tests.stores_in_memory import MemorySchedulerStore

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DOWN_S, LOOK_S = 60.0, 5.0
HOST, OTHER = (ProviderId(UUID(int=n)) for n in (7, 8))
T = TypeVar("T")


class World:
    def __init__(self) -> None:
        self.store = MemorySchedulerStore()
        self.beating = {HOST, OTHER}
        # The hosts that a scheduler cannot hear.
        self.deaf: dict[str, set[ProviderId]] = {}
        self.registries: dict[str, HostRegistry] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def now(self) -> datetime:
        return NOON + timedelta(seconds=asyncio.get_running_loop().time())

    async def begin(self, *schedulers: str) -> None:
        async with self.store.transaction() as transaction:
            hosts = [HostState(id=each, name=f"h{each.int}", cell="c1", up=True) for each in (HOST, OTHER)]
            await transaction.save_hosts(hosts, NOON)
        self._run(self._beat())
        for scheduler in schedulers:
            self.begin_scheduler(scheduler)

    def begin_scheduler(self, name: str) -> None:
        registry = HostRegistry(Picture(), timedelta(seconds=DOWN_S), self.now)
        self.registries[name] = registry
        self._run(HostWatch(self.store, registry, LOOK_S, self.now).run())

    def is_up(self, scheduler: str, host: ProviderId = HOST) -> bool:
        known = self.registries[scheduler].get(host)
        return known is not None and known.up

    async def silent_since(self, host: ProviderId = HOST) -> datetime | None:
        (row,) = await self.store.hosts(HostQuery(ids=(host,)))
        return row.silent_since

    async def _beat(self) -> None:
        while True:
            for name, registry in self.registries.items():
                if heard := self.beating - self.deaf.get(name, set()):
                    registry.hear_beats("c1", sorted(heard))
            await asyncio.sleep(LOOK_S)

    def _run(self, work: Awaitable[None]) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()


def simulated(story: Callable[[World], Awaitable[T]]) -> T:
    async def scenario() -> T:
        world = World()
        try:
            return await story(world)
        finally:
            world.close()

    return run_simulated(scenario())


def test_a_scheduler_that_starts_chooses_no_host_that_another_one_found_silent() -> None:
    async def story(world: World) -> tuple[bool, bool, datetime | None]:
        await world.begin("old")
        await until_s(31)
        world.beating.discard(HOST)
        await until_s(200)
        world.begin_scheduler("new")
        await until_s(202)
        return world.is_up("new"), world.is_up("new", OTHER), await world.silent_since()

    assert simulated(story) == (False, True, NOON + timedelta(seconds=30))


def test_a_silent_host_that_is_heard_is_up_at_once_and_its_row_says_so() -> None:
    async def story(world: World) -> tuple[bool, datetime | None, bool]:
        await world.begin("old")
        await until_s(31)
        world.beating.discard(HOST)
        await until_s(200)
        world.begin_scheduler("new")
        await until_s(211)
        world.beating.add(HOST)
        await until_s(216)
        was_up = world.is_up("new")
        await until_s(230)
        world.begin_scheduler("newest")
        await until_s(231)
        return was_up, await world.silent_since(), world.is_up("newest")

    assert simulated(story) == (True, None, True)


def test_the_silence_of_a_whole_cell_is_not_written_since_this_process_may_be_deaf() -> None:
    async def story(world: World) -> tuple[bool, datetime | None, datetime | None]:
        await world.begin("old")
        await until_s(31)
        world.beating.clear()
        await until_s(200)
        was_up = world.is_up("old")
        # One host of the cell is heard first when the connection is back.
        world.beating.add(OTHER)
        await until_s(220)
        return was_up, await world.silent_since(), await world.silent_since(OTHER)

    assert simulated(story) == (False, None, None)


def test_what_is_silent_is_written_once_by_many_schedulers() -> None:
    async def story(world: World) -> int:
        await world.begin("a", "b", "c")
        await until_s(31)
        world.beating.discard(HOST)
        await until_s(1_000)
        (row,) = await world.store.hosts(HostQuery(ids=(HOST,)))
        return row.sequence

    assert simulated(story) == 1


def test_schedulers_that_hear_differently_do_not_contradict_each_other_at_every_look() -> None:
    async def story(world: World) -> int:
        await world.begin("good", "deaf")
        world.deaf["deaf"] = {HOST}
        await until_s(1_000)
        (row,) = await world.store.hosts(HostQuery(ids=(HOST,)))
        return row.sequence

    assert simulated(story) <= 2 * 1_000 / DOWN_S
