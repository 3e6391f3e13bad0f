"""The whole cloud is counted by one scheduler at a time, and by none if nobody reads the metrics."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import UUID

from msgspec import structs

from bus.memory import MemoryBroker
from bus.messages.cloud import InstanceCount
from bus.topology import objects_of
from bus.workers.handling import TOOK
from bus.workers.health_server import Metrics
from bus.workers.station import Station
from engine.hosts import HostSetting, HostState
from engine.inventories import ProviderId
from engine.picture.picture import CellCapacity, Picture
from engine.refusals import FunnelStep, NoValidHost
from kit.errors import ConnectionLost
from kit.health import About, Health
from kit.metrics import OTHERS, VALUES_MAX, Histogram
from scheduler_worker.hosts import HostRegistry, state_of
from scheduler_worker.overview import CloudCounter, with_rare_classes_as_one
from scheduler_worker.registry import CellRegistry
from scheduler_worker.requests.reading import last_filter
from tests.simulation.loop import run_simulated, until_s
from tests.stores_in_memory import MemorySchedulerStore

EVERY_S = 10.0
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
UP = HostState(id=ProviderId(UUID(int=7)), name="rack-1", cell="c1", up=True)


class CountedReads(MemorySchedulerStore):
    """Knows how often instances were counted, and may be away."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.is_away = False

    async def instance_counts(self) -> list[InstanceCount]:
        if self.is_away:
            raise ConnectionLost("the database is away")
        self.reads += 1
        return [InstanceCount(state="active", cell="c1", count=5)]


def clock() -> datetime:
    return NOON + timedelta(seconds=asyncio.get_running_loop().time())


async def a_counter(store: MemorySchedulerStore) -> CloudCounter:
    memory = MemoryBroker()
    connection = await memory.as_user().connect()
    await connection.declare(objects_of(("c1",)))
    picture = Picture()
    hosts = HostRegistry(picture, timedelta(hours=1), clock)
    hosts.learn((UP, structs.replace(UP, id=ProviderId(UUID(int=8)), setting=HostSetting(mode="draining"))))
    cells = CellRegistry(picture, timedelta(hours=1), clock)
    stations = {"api": Station(memory.as_user(), "scheduler")}
    return CloudCounter(store, picture, hosts, cells, stations, every_s=EVERY_S, clock=clock)


def page_of(counter: CloudCounter) -> str:
    return Metrics(Health(About("scheduler", "1"), (counter,))).page().decode()


def test_of_two_schedulers_one_counts_and_the_other_takes_over() -> None:
    async def story() -> None:
        store = CountedReads()
        counters = [await a_counter(store), await a_counter(store)]
        running = [asyncio.create_task(each.run()) for each in counters]
        for second in range(1, 101, 5):
            await until_s(second)
            shown = Counter("moor_instances{" in page_of(each) for each in counters)
            assert shown[True] == (1 if second > 1 else 0), second
        assert store.reads == 10, "once a period, however many schedulers there are"

        gone = next(n for n, each in enumerate(counters) if "moor_instances{" in page_of(each))
        await counters[gone].stop()
        await running[gone]
        other = counters[1 - gone]
        for second in (105, 110, 115, 120, 125):
            await until_s(second)
            page_of(other)
        await until_s(130)
        assert 'moor_instances{cell="c1",state="active"} 5.0' in page_of(other)
        assert 'moor_hosts{cell="c1",kind="hypervisor",state="draining"} 1.0' in page_of(other)
        assert 'moor_dead_letters{broker="api"} 0.0' in page_of(other)
        await other.stop()
        await asyncio.gather(*running)

    run_simulated(story())


def test_a_cloud_that_nobody_watches_any_more_is_not_counted() -> None:
    async def story() -> None:
        store = CountedReads()
        counter = await a_counter(store)
        running = asyncio.create_task(counter.run())
        await until_s(100)
        assert store.reads == 0
        page_of(counter)
        await until_s(1000)
        assert store.reads == 5, "five periods"
        page_of(counter)
        await until_s(1001)
        assert "moor_instances{" in page_of(counter)
        await counter.stop()
        await running

    run_simulated(story())


def test_numbers_that_are_old_because_the_database_is_away_are_not_shown() -> None:
    async def story() -> None:
        store = CountedReads()
        counter = await a_counter(store)
        running = asyncio.create_task(counter.run())
        page_of(counter)
        await until_s(5)
        store.is_away = True
        assert "moor_instances{" in page_of(counter)
        await until_s(15)
        assert "moor_instances{" in page_of(counter)
        await until_s(45)
        assert "moor_instances{" not in page_of(counter)
        store.is_away = False
        await until_s(60)
        assert "moor_instances{" in page_of(counter)
        await counter.stop()
        await running

    run_simulated(story())


def test_a_host_is_silent_if_it_should_be_up_and_is_not_heard() -> None:
    silent = structs.replace(UP, up=False)
    dead = structs.replace(silent, setting=HostSetting(mode="dead"))
    assert [state_of(each) for each in (UP, silent, dead)] == ["up", "silent", "dead"]


def test_the_filter_that_removed_the_last_host_is_told() -> None:
    steps = (FunnelStep("traits", 3), FunnelStep("capacity", 2), FunnelStep("limit", 0))
    assert last_filter(NoValidHost(hosts=5, steps=steps)) == "capacity"
    assert last_filter(NoValidHost(hosts=0, steps=())) == "(none)"


def test_the_classes_of_which_there_is_least_are_counted_together() -> None:
    classes = {("c1", f"CUSTOM_{n}"): CellCapacity(n + 1, 1, n) for n in range(VALUES_MAX + 2)}
    summed = with_rare_classes_as_one(classes)
    assert len(summed) == VALUES_MAX + 1
    assert summed["c1", OTHERS] == CellCapacity(3, 2, 1)
    assert summed["c1", "CUSTOM_50"] == CellCapacity(51, 1, 50)


def test_durations_of_several_parts_add_up_and_a_negative_one_counts_as_none() -> None:

    class Measured:
        def __init__(self, *seconds: float) -> None:
            histogram = Histogram(TOOK)
            for each in seconds:
                histogram.observe(each, 2, ("a queue",))
            self.readings = (histogram,)

    parts = (Measured(0.005, 0.3), Measured(7200.0, -1.0))

    async def read() -> str:
        return Metrics(Health(About("scheduler", "1"), parts)).page().decode()

    page = asyncio.run(read())
    name = "moor_message_handling_seconds"
    assert f'{name}_bucket{{le="0.005",queue="a queue"}} 4.0' in page
    assert f'{name}_bucket{{le="0.5",queue="a queue"}} 6.0' in page
    assert f'{name}_bucket{{le="+Inf",queue="a queue"}} 8.0' in page
    assert f'{name}_count{{queue="a queue"}} 8.0' in page
    assert f'{name}_sum{{queue="a queue"}} 14400.61' in page
