"""A broker's memory alarm of ten minutes under 200 boots a second: queues in processes are bounded, no question is
repeated, and every request ends.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import datetime, timedelta
from uuid import UUID

from msgspec import Struct, field

from bus.broker import Broker
from bus.codec import CODEC, known_messages
from bus.memory import MemoryBroker
from bus.message import Parcel
from bus.messages.build import BuildInstance, InstanceActive, InstanceFailed
from bus.messages.hosts import AskHosts, HostsAlive, HostsFound
from bus.messages.placement import ClaimResources
from bus.settings import BusSettings
from bus.topology import EVENTS, Grant, objects_of
from bus.workers.publisher import Overfull
from bus.workers.sending import Link
from bus.workers.station import Station, listen
from cell_conductor.settings import ConductorSettings
from cell_conductor.wiring import conductor_parts
from compute_sim.settings import ComputeSettings
from engine.flavors import Flavor, RequestId
from kit.process import Part, run_until
from laboratory.computes.driver import simulated_parts
from laboratory.computes.faults import FaultScript
from laboratory.computes.hosts import equal_hosts
from placement_worker.settings import PlacementSettings
from placement_worker.wiring import placement_parts
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.wiring import scheduler_parts
from tests.simulation.loop import run_simulated
from tests.simulation.process import EPOCH
from tests.stores_in_memory import MemoryConductorStore, MemoryPlacementStore, MemorySchedulerStore
from tests.when_stored import when_stored

BOOTS_PER_S = 200
BEFORE_S, ALARM_S, DEADLINE_S = 5.0, 600.0, 200
HOSTS = 100
TICK_S = 0.05
BUS = BusSettings(messages_waiting_max=2_000)
# The batch under way when the publisher reached its limit, and one more; both hold messages of several workers.
WAITING_MAX = BUS.messages_waiting_max + 2 * BUS.BATCH_ITEMS_MAX
SMALL = Flavor(name="small", vcpus=1, ram_mb=512, root_gb=1)


def clock() -> datetime:
    return EPOCH + timedelta(seconds=asyncio.get_running_loop().time())


class Asked(Struct):
    """The client's requests, and their ends."""

    numbers: random.Random = field(default_factory=lambda: random.Random(1))
    accepted: set[RequestId] = field(default_factory=set)
    refused: int = 0
    ended: Counter[RequestId] = field(default_factory=Counter)


class Stored:
    """The parcels that the broker has stored since the alarm ended, or before it began."""

    def __init__(self, memory: MemoryBroker) -> None:
        self.questions: Counter[str] = Counter()
        self.claims: Counter[tuple[int, int]] = Counter()
        self.beats = 0
        when_stored(memory, self._stored)

    def forget(self) -> None:
        self.questions.clear()
        self.claims.clear()
        self.beats = 0

    def _stored(self, parcel: Parcel) -> None:
        for envelope in known_messages(parcel, CODEC):
            message = envelope.message
            self.beats += isinstance(message, HostsAlive)
            if parcel.reply_to:
                self.questions[envelope.id] += 1
            if isinstance(message, ClaimResources):
                self.claims[message.consumer.int, message.attempt] += 1


class Cloud:
    """All workers on one broker, and a client."""

    def __init__(
        self, stack: AsyncExitStack, broker: Broker, bus: BusSettings, clock: Callable[[], datetime]
    ) -> None:
        self.stations: dict[str, Station] = {}
        self._broker = broker
        self._bus = bus
        self._clock = clock
        self._stack = stack

    async def open(self) -> None:
        clock = self._clock
        connection = await self._broker.connect()
        await connection.declare(objects_of(("c1",)))
        await connection.close()
        books = MemoryPlacementStore()
        rows = MemorySchedulerStore()
        self._start(placement_parts((self.station("placement"),), books, PlacementSettings(), clock))
        scheduler = self.station("scheduler")
        self._start(scheduler_parts(scheduler, rows, SchedulerSettings(), clock, random.Random(3)))
        conductor = self.station("conductor")
        own = conductor_parts(
            conductor, MemoryConductorStore(clock), ConductorSettings(), "c1", conductor.ask_all, clock=clock
        )
        self._start((*own, conductor))
        self._start(
            simulated_parts(
                self.station("compute"),
                equal_hosts("c1", HOSTS),
                ComputeSettings(),
                FaultScript(spawn_ms=500.0),
                clock,
                clock_s=asyncio.get_running_loop().time,
            )
        )

    def station(self, name: str) -> Station:
        station = Station(
            self._broker,
            name,
            settings=self._bus,
            asks=True,
            clock=self._clock,
            chance=random.Random(name),
        )
        self.stations[name] = station
        self._stack.push_async_callback(station.close)
        return station

    def _start(self, parts: tuple[Part, ...]) -> None:
        told = asyncio.Event()
        running = asyncio.create_task(run_until(told, parts, drain_s_max=10))

        async def end() -> None:
            told.set()
            await running

        self._stack.push_async_callback(end)

    def waiting(self) -> Mapping[str, int]:
        return {name: station.publisher.waiting for name, station in self.stations.items()}

    def under_way(self) -> Mapping[str, int]:
        return {name: len(station.publisher.under_way) for name, station in self.stations.items()}


@asynccontextmanager
async def a_cloud(broker: Broker, bus: BusSettings, clock: Callable[[], datetime]) -> AsyncIterator[Cloud]:
    async with AsyncExitStack() as stack:
        cloud = Cloud(stack, broker, bus, clock)
        await cloud.open()
        client = cloud.station("client")
        running = asyncio.create_task(client.run())
        known = 0
        while known < HOSTS:
            await asyncio.sleep(0.2)
            found = await client.ask(AskHosts(limit=500))
            assert isinstance(found, HostsFound)
            known = sum(host.up for host in found.hosts)
        await client.stop()
        await running
        yield cloud


async def boot(client: Station, asked: Asked, seconds: float) -> None:
    """Send 200 requests a second, whether the broker takes them or not; a request that the publisher refuses does not
    count.
    """
    for _ in range(int(seconds / TICK_S)):
        for _ in range(int(BOOTS_PER_S * TICK_S)):
            id_ = RequestId(UUID(int=asked.numbers.getrandbits(128), version=4))
            order = BuildInstance(request_id=id_, flavor=SMALL, deadline_s=DEADLINE_S)
            sent = client.publisher.send(order)
            if sent.done() and isinstance(sent.exception(), Overfull):
                asked.refused += 1
            else:
                asked.accepted.add(id_)
        await asyncio.sleep(TICK_S)


@asynccontextmanager
async def hearing(client: Station) -> AsyncIterator[Asked]:
    """Counts the ends of requests, those of the first request too: the feed exists before the caller asks."""
    asked = Asked()
    link = Link(client.consuming.broker, client.settings)
    keys = ("instance.active.#", "instance.error.#")
    feed = listen(link, [Grant(EVENTS, keys)], process="ears", settings=client.settings, codec=CODEC)

    async def hear() -> None:
        async for batch in feed:
            # A batch without messages says that events may be missing.
            assert batch, "the feed was interrupted"
            for each in batch:
                if isinstance(each.message, InstanceActive | InstanceFailed):
                    asked.ended[each.message.instance.request_id] += 1

    try:
        async with aclosing(feed), asyncio.TaskGroup() as beside:
            await anext(feed)
            task = beside.create_task(hear())
            yield asked
            task.cancel()
    finally:
        await link.close()


async def the_alarm() -> None:
    memory = MemoryBroker()
    stored = Stored(memory)
    async with (
        a_cloud(memory.as_user(), BUS, clock) as cloud,
        hearing(cloud.stations["client"]) as asked,
        asyncio.TaskGroup() as beside,
    ):
        client = cloud.stations["client"]
        await boot(client, asked, BEFORE_S)
        memory.block("low on memory")
        stored.forget()
        booting = beside.create_task(boot(client, asked, ALARM_S))
        while not booting.done():
            await asyncio.sleep(5)
            assert max(cloud.waiting().values()) <= WAITING_MAX, cloud.waiting()
            assert max(cloud.under_way().values()) <= BUS.PARCELS_UNCONFIRMED_MAX, cloud.under_way()
        assert not stored.questions
        assert asked.refused > 0, "the client was never held back"
        asked_again = {name: station.asked_again for name, station in cloud.stations.items()}

        memory.block("")
        await asyncio.sleep(
            1
        )  # of the simulated clock: less than the time in which a question must be answered

        assert stored.beats <= 1, "beats were piled up"
        assert {*stored.questions.values()} == {1}
        assert {*stored.claims.values()} == {1}
        assert asked_again == {name: station.asked_again for name, station in cloud.stations.items()}
        while not asked.ended.keys() >= asked.accepted:
            await asyncio.sleep(5)
            assert asyncio.get_running_loop().time() < 2 * ALARM_S, "some requests do not end"


def test_an_alarm_of_ten_minutes_ends_with_one_copy_of_each_question_and_every_request_ended() -> None:
    run_simulated(the_alarm())
