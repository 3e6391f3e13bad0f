"""The compute or placement is killed at each step of a reshape: afterwards the host has one of both shapes, whole, and every claim is there.

On the simulated clock. A process that is killed does nothing any more from that step on; another one comes after it.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from bus.broker import Broker
from bus.message import Message
from bus.messages.hosts import AskHostShape, ReshapeHost
from bus.messages.placement import ClaimAnswered, ClaimResources, ReportInventory
from bus.workers.station import Station
from compute_sim.core.trees import ProviderTree
from compute_sim.settings import ComputeSettings
from engine.inventories import ConsumerId, ResourceAmount, Share
from engine.refusals import AlreadyClaimed, Claimed
from kit.process import run_until
from kit.times import now
from laboratory.computes.driver import SimulatedDriver, root_of, simulated_parts
from laboratory.computes.hosts import HostSize, SimulatedHost
from placement_worker.settings import FeedPace, PlacementSettings
from placement_worker.wiring import placement_parts
from tests.contracts.memory_under_test import MemoryUnderTest
from tests.contracts.stage import SETTINGS as BUS
from tests.contracts.stage import declared
from tests.simulation.loop import run_simulated
from tests.stores_in_memory import MemoryPlacementStore

HOST = "c1-host-00001"
FLAT = HostSize(vcpus=8, vcpu_ratio=1.0, ram_mb=8_000, ram_mb_reserved=0)
SIZES = {"flat": FLAT, "nested": structs.replace(FLAT, numa_nodes=2)}
PACE = FeedPace(poll_s=10.0)
SETTINGS = ComputeSettings(cell="c1", beat_s=10, facts_every_s=5)
AMOUNTS = {"VCPU": 3, "MEMORY_MB": 2_000}
INSTANCES = [ConsumerId(UUID(int=number)) for number in (1, 2)]
# Long enough that everything is asked again.
REST_S = 120.0


class Deaths:
    """Where the process dies, by the name of the step; and whether it has."""

    def __init__(self, step: str) -> None:
        self._step = step
        self.has_come = asyncio.Event()

    async def at(self, step: str) -> None:
        if step == self._step:
            self.has_come.set()
            await asyncio.Event().wait()


class DyingStation(Station):
    deaths: Deaths

    async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
        names = [type(each).__name__ for each in questions]
        for name in names:
            await self.deaths.at(f"before {name}")
        answers = await super().ask_all(questions)
        for name in names:
            await self.deaths.at(f"after {name}")
        return answers


class DyingStore:
    """A placement store. Its transactions of a reshape are those that write a tree and claims."""

    def __init__(self, store: MemoryPlacementStore, deaths: Deaths) -> None:
        self._store, self._deaths = store, deaths

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self._store.transaction() as tx:
            dying = _DyingTransaction(tx, self._deaths)
            yield dying
            if dying.is_reshape:
                await self._deaths.at("before the commit")
        if dying.is_reshape:
            await self._deaths.at("after the commit")


class _DyingTransaction:
    def __init__(self, tx: Any, deaths: Deaths) -> None:
        self._tx, self._deaths = tx, deaths
        self._calls: Counter[str] = Counter()

    @property
    def is_reshape(self) -> bool:
        return self._calls["lock_claims"] > 0 and self._calls["lock_trees"] > 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._tx, name)
        if name not in ("lock_claims", "lock_trees", "write_trees", "write_claims"):
            return real

        async def call(*arguments: Any) -> Any:
            self._calls[name] += 1
            if self.is_reshape or name == "lock_claims":
                await self._deaths.at(f"before {name} {self._calls[name]}")
            return await real(*arguments)

        return call


COMPUTE_DIES = [
    f"{when} {kind.__name__}"
    for kind in (ReportInventory, AskHostShape, ReshapeHost)
    for when in ("before", "after")
]
PLACEMENT_DIES = [
    *(
        "before lock_claims 1",
        "before lock_trees 1",
        "before write_trees 1",
        "before lock_claims 2",
    ),
    *(
        "before write_claims 1",
        "before lock_trees 2",
        "before write_trees 2",
        "before the commit",
        "after the commit",
    ),
]


class Cloud:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.store = MemoryPlacementStore()

    @asynccontextmanager
    async def _process(self, station: Station, parts: Sequence[Any]) -> AsyncIterator[None]:
        """Runs until the context is left: then it is killed."""
        running = asyncio.create_task(run_until(asyncio.Event(), parts, drain_s_max=1))
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await station.close()

    def placement(self, dies_at: str = "") -> Any:
        self.of_placement = Deaths(dies_at)
        station = Station(self.broker, "placement", settings=BUS)
        store = DyingStore(self.store, self.of_placement)
        return self._process(station, placement_parts((station,), store, PlacementSettings(), pace=PACE))

    def compute(self, shape: str, dies_at: str = "") -> Any:
        station = DyingStation(self.broker, "compute", settings=BUS, asks=True)
        station.deaths = self.of_compute = Deaths(dies_at)
        hosts = [SimulatedHost(name=HOST, size=SIZES[shape])]
        return self._process(station, simulated_parts(station, hosts, SETTINGS))

    async def claim(self) -> None:
        station = Station(self.broker, "client", settings=BUS, asks=True)
        async with self._process(station, (station,)):
            for instance in INSTANCES:
                answer = await station.ask(a_claim(instance))
                assert isinstance(answer, ClaimAnswered)
                assert isinstance(answer.verdict, Claimed | AlreadyClaimed), answer

    async def is_whole(self, shape: str) -> None:
        """The host has this shape, and nothing of the other one; each instance holds all that it did, of one provider each."""
        states = (await self.store.snapshot_page(0, 100)).providers
        driver = SimulatedDriver(SimulatedHost(name=HOST, size=SIZES[shape]))
        tree = driver.update_provider_tree(ProviderTree(driver.root), 0.0)
        assert {each.name: {*each.inventories} for each in states} == {
            each.name: {*each.inventories} for each in tree.providers.values()
        }
        found = {each.id: each for each in await self.store.books_page(None, 100)}
        assert {*found} == {*INSTANCES}
        for each in found.values():
            assert {amount.resource: amount.amount for amount in each.held} == AMOUNTS
            assert len({amount.provider for amount in each.held}) == 1
        used = Counter[str]()
        for state in states:
            used += Counter({resource: stock.used for resource, stock in state.inventories.items()})
        assert used == Counter({resource: 2 * amount for resource, amount in AMOUNTS.items()})
        assert await self.store.audit() == ()


def a_claim(instance: ConsumerId) -> ClaimResources:
    root = root_of(HOST)
    amounts = [
        ResourceAmount(provider=root, resource=name, amount=amount) for name, amount in AMOUNTS.items()
    ]
    share = Share(host=root, amounts=tuple(amounts))
    return ClaimResources(cell="c1", consumer=instance, attempt=1, issued_at=now(), share=share)


@asynccontextmanager
async def a_flat_host() -> AsyncIterator[Cloud]:
    """With two instances, and no process."""
    under_test = MemoryUnderTest()
    cloud = Cloud(await declared(under_test))
    async with cloud.placement():
        async with cloud.compute("flat"):
            await asyncio.sleep(REST_S)
            await cloud.claim()
        await cloud.is_whole("flat")
        yield cloud
    await under_test.close()


@pytest.mark.parametrize("after", ["nested", "flat"])
@pytest.mark.parametrize("step", COMPUTE_DIES)
def test_a_compute_is_killed_and_comes_back_with_the_one_shape_or_the_other(step: str, after: str) -> None:
    async def scenario() -> None:
        async with a_flat_host() as cloud:
            async with cloud.compute("nested", step):
                await asyncio.wait_for(cloud.of_compute.has_come.wait(), REST_S)
                await asyncio.sleep(REST_S)
            await cloud.is_whole("nested" if step == "after ReshapeHost" else "flat")
            async with cloud.compute(after):
                await asyncio.sleep(REST_S)
                await cloud.is_whole(after)

    run_simulated(scenario())


@pytest.mark.parametrize("step", PLACEMENT_DIES)
def test_placement_is_killed_in_the_middle_and_its_successor_ends_the_reshape(step: str) -> None:
    async def scenario() -> None:
        under_test = MemoryUnderTest()
        cloud = Cloud(await declared(under_test))
        async with cloud.placement(), cloud.compute("flat"):
            await asyncio.sleep(REST_S)
            await cloud.claim()
        async with cloud.compute("nested"):
            async with cloud.placement(step):
                await asyncio.wait_for(cloud.of_placement.has_come.wait(), REST_S)
            await cloud.is_whole("nested" if step == "after the commit" else "flat")
            async with cloud.placement():
                await asyncio.sleep(REST_S)
                await cloud.is_whole("nested")
        await under_test.close()

    run_simulated(scenario())
