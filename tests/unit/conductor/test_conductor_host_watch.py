"""A conductor hears its hosts itself: with no scheduler, in simulated time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

import pytest
from msgspec import structs

from bus.memory import MemoryBroker
from bus.message import Message
from bus.messages.cell import DestroyInstance, SpawnInstance
from bus.messages.hosts import (
    CheckHost,
    HeldAttempt,
    HostCleaned,
    HostHolds,
    HostsAlive,
    HostsNotHere,
    SetHostInCell,
)
from bus.messages.placement import ClaimAnswered, SwapClaim
from bus.settings import BusSettings
from bus.topology import EVENTS, Grant, objects_of
from bus.workers.handling import Received, Said
from bus.workers.station import Station, listen
from cell_conductor.core.rows import CellHost, HeardHost, Instance
from cell_conductor.hosts import HOSTS_KEPT_MAX, HeardHosts
from cell_conductor.settings import ConductorSettings
from cell_conductor.store_sql import SqlConductorStore
from cell_conductor.wiring import conductor_parts
from engine.flavors import InstanceId
from engine.hosts import HostMode, HostSetting
from engine.inventories import ConsumerId, ProviderId
from engine.refusals import Claimed
from kit.process import run_until
from tests.simulation.loop import run_simulated, until_s
from tests.stores_in_memory import MemoryConductorStore
from tests.unit.conductor.cell import NOON, ONE, destroy, host, place, spawned
from tests.unit.conductor.test_conductor_moves import move

BUS = BusSettings(host_down_s=60.0)
# Attempts last for a day: only what the conductor hears of its hosts ends them sooner.
CONDUCTING = ConductorSettings(attempt_timeout_s=86_400, destroy_timeout_s=86_400)
BEAT_S = 5.0
DAY_S = 86_400.0
T = TypeVar("T")


class CountingStore(MemoryConductorStore):
    """Counts how often all hosts that are set were read, and keeps what was saved of hosts that were heard."""

    readings = 0

    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(clock)
        self.saved: list[tuple[str, bool]] = []

    async def save_heard_hosts(self, hosts: Sequence[HeardHost]) -> None:
        names = {host(name): name for name in ("h1", "h2")}
        self.saved += [(names[each.id], each.silent_since is not None) for each in hosts]
        await super().save_heard_hosts(hosts)

    async def hosts(self) -> Sequence[CellHost]:
        self.readings += 1
        return await super().hosts()


class World:
    """One cell on a broker: a conductor, and hosts whose messages the test sends."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.store = CountingStore(self.now)
        self.computes = Station(self.broker.as_user(), "computes", settings=BUS)
        self.ordered: list[Message] = []
        self.cleaned: list[Message] = []
        self._beating: dict[str, asyncio.Task[None]] = {}

    def now(self) -> datetime:
        return NOON + timedelta(seconds=asyncio.get_running_loop().time())

    def begin(self, *names: str) -> None:
        """These hosts send heartbeats from now on."""
        for name in names:
            self._beating[name] = asyncio.create_task(self._beat(name))

    def end(self, *names: str) -> None:
        for name in names:
            self._beating.pop(name).cancel()

    async def _beat(self, name: str) -> None:
        while True:
            await self.computes.publisher.send(HostsAlive(cell="c1", hosts=(host(name),)))
            await asyncio.sleep(BEAT_S)

    async def say(self, *messages: Message) -> None:
        """And wait until all of it is handled, and what it leads to."""
        await asyncio.gather(*[self.computes.publisher.send(each) for each in messages])
        await asyncio.sleep(1)

    async def row(self) -> Instance:
        (row,) = await self.store.read([ONE])
        return row

    def orders_of(self, kind: type[Message]) -> list[Message]:
        return [each for each in self.ordered if isinstance(each, kind)]

    async def on_orders(self, orders: Sequence[Received[Message]], _: object) -> list[Said]:
        self.ordered += [each.message for each in orders]
        return []

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield

    async def close(self) -> None:
        for beating in self._beating.values():
            beating.cancel()
        await self.computes.close()


async def grants(swaps: Sequence[Message]) -> Sequence[Message]:
    """Placement grants every swap."""
    return [
        ClaimAnswered(consumer=each.consumer, attempt=each.attempt, verdict=Claimed())
        for each in swaps
        if isinstance(each, SwapClaim)
    ]


def simulated(story: Callable[[World], Awaitable[T]]) -> T:
    """Run this beside a conductor."""

    async def scenario() -> T:
        world = World()
        connection = world.broker.connect("")
        await connection.declare(objects_of(("c1",)))
        await connection.close()
        station = Station(world.broker.as_user(), "conductor", settings=BUS)
        worker = world.computes.worker(
            "compute.c1.work",
            dict.fromkeys((SpawnInstance, DestroyInstance, CheckHost), world.on_orders),
            world,
        )
        parts = conductor_parts(station, world.store, CONDUCTING, "c1", grants, clock=world.now)
        stop = asyncio.Event()
        running = asyncio.create_task(run_until(stop, (*parts, station, worker, world.computes), 1.0))
        hearing = asyncio.create_task(_hear_events(world))
        try:
            return await story(world)
        finally:
            hearing.cancel()
            await world.close()
            stop.set()
            await running
            await station.close()

    return run_simulated(scenario())


async def _hear_events(world: World) -> None:
    feed = listen(
        world.computes.consuming,
        [Grant(EVENTS, ("host.cleaned.*",))],
        process="ears",
        settings=BUS,
        codec=world.computes.codec,
    )
    async for batch in feed:
        world.cleaned += [each.message for each in batch]


async def until(world: World, state: str, *, by_s: float) -> float:
    """When the instance gets there."""
    loop = asyncio.get_running_loop()
    while (await world.row()).state != state:
        assert loop.time() < by_s, f"at {by_s} s it is {await world.row()}"
        await asyncio.sleep(0.5)
    return loop.time()


async def built_on(world: World, by_s: float) -> str:
    """The host of the next attempt."""
    loop = asyncio.get_running_loop()
    while (await world.row()).attempt == 1:
        assert loop.time() < by_s, f"at {by_s} s it is {await world.row()}"
        await asyncio.sleep(0.5)
    found = (await world.row()).host
    assert found is not None
    return found.name


def the_word(name: str, mode: HostMode, number: int, *, must_clean: bool = False) -> SetHostInCell:
    setting = HostSetting(mode=mode, reason="smoke", number=number)
    return SetHostInCell(cell="c1", host=host(name), name=name, setting=setting, must_clean=must_clean)


def other_instance(number: int) -> InstanceId:
    return InstanceId(ConsumerId(UUID(int=number)))


LONG = structs.replace(place("h2"), ends_by=NOON + timedelta(days=1))


def test_a_boot_on_a_host_that_falls_silent_takes_its_alternate_when_the_conductor_misses_the_heartbeats() -> (
    None
):
    async def story(world: World) -> tuple[str, float]:
        world.begin("h1", "h2")
        await world.say(LONG)
        await until_s(100)
        world.end("h1")
        assert (await world.row()).state == "building"
        return await built_on(world, by_s=200), asyncio.get_running_loop().time()

    where, at_s = simulated(story)

    assert where == "h2"
    # The last heartbeat was at 95 s, and hosts are judged every five seconds.
    assert 155 <= at_s <= 162


def test_silence_does_not_count_while_the_conductor_itself_cannot_hear() -> None:
    async def story(world: World) -> str:
        world.begin("h1", "h2")
        await world.say(LONG)
        world.end("h1", "h2")
        await until_s(50)
        world.broker.cut_connections()
        await until_s(100)
        world.begin("h1", "h2")
        await until_s(300)
        return (await world.row()).state

    assert simulated(story) == "building"


def test_a_host_that_was_silent_before_the_conductor_started_is_noticed_after_the_same_time() -> None:
    async def story(world: World) -> tuple[str, float]:
        world.begin("h2")
        await world.say(LONG)
        return await built_on(world, by_s=200), asyncio.get_running_loop().time()

    where, at_s = simulated(story)

    assert where == "h2"
    assert 60 <= at_s <= 67


def test_a_host_that_has_been_silent_for_hours_is_still_lost() -> None:
    async def story(world: World) -> tuple[str, float]:
        world.begin("h1", "h2")
        await until_s(10)
        world.end("h1")
        await until_s(10_000)
        await world.say(LONG)
        return await built_on(world, by_s=10_060), asyncio.get_running_loop().time()

    where, at_s = simulated(story)

    assert where == "h2"
    assert at_s < 10_005


def test_a_host_that_no_heartbeat_of_was_heard_since_the_start_gets_no_attempt_if_an_earlier_conductor_heard_it() -> (
    None
):
    async def story(world: World) -> tuple[str, float]:
        await world.store.save_heard_hosts([HeardHost(host("h1"))])
        world.begin("h2")
        await until_s(100)
        await world.say(LONG)
        return await built_on(world, by_s=120), asyncio.get_running_loop().time()

    where, at_s = simulated(story)

    assert where == "h2"
    assert at_s < 103


def test_a_host_that_an_earlier_conductor_found_silent_is_silent_after_some_heartbeats_that_do_not_come() -> (
    None
):
    async def story(world: World) -> tuple[str, float]:
        await world.store.save_heard_hosts([HeardHost(host("h1"), NOON), HeardHost(host("h2"), NOON)])
        world.begin("h2")
        await world.say(LONG)
        return await built_on(world, by_s=60), asyncio.get_running_loop().time()

    where, at_s = simulated(story)

    assert where == "h2"
    assert 20 <= at_s <= 27


def test_a_silent_host_stays_silent_when_the_conductor_connects_again() -> None:
    async def story(world: World) -> tuple[str, float]:
        world.begin("h1", "h2")
        await until_s(10)
        world.end("h1")
        await until_s(100)
        world.broker.cut_connections()
        await until_s(102)
        await world.say(LONG)
        return await built_on(world, by_s=160), asyncio.get_running_loop().time()

    where, at_s = simulated(story)

    assert where == "h2"
    assert at_s < 130


def test_what_is_heard_of_hosts_is_saved_only_when_it_changes() -> None:
    async def story(world: World) -> list[tuple[str, bool]]:
        world.begin("h1", "h2")
        await until_s(1_000)
        world.end("h1")
        await until_s(2_000)
        world.begin("h1")
        await until_s(3_000)
        return world.store.saved

    saved = simulated(story)

    assert sorted(saved[:2]) == [("h1", False), ("h2", False)]
    assert saved[2:] == [("h1", True), ("h1", False)]


def test_hosts_that_left_the_cell_do_not_fill_the_memory() -> None:
    async def story(world: World) -> tuple[int, bool, bool]:
        at_s = 0.0
        heard = HeardHosts(world.computes, "c1", lambda: at_s)
        heard.status.well()
        heard.hear([host("h1"), host("h2")])
        heard.silent()
        at_s = 25.0
        heard.hear(ProviderId(UUID(int=number)) for number in range(HOSTS_KEPT_MAX - 1))
        heard.silent()
        at_s = 50.0
        heard.silent()
        at_s = 65.0
        silent = heard.silent()
        return len(silent), host("h1") in silent, host("h2") in silent

    assert simulated(story) == (1, False, True)


def test_a_destination_that_fell_silent_before_the_conductor_started_is_noticed_too() -> None:
    async def story(world: World) -> float:
        world.begin("h1")
        await world.say(LONG, spawned(1, "h1"))
        await world.say(structs.replace(move("live-migrate", "h2"), cell="c1"))
        await until_s(10)
        assert (await world.row()).moving is not None
        return await until(world, "active", by_s=200)

    assert 60 <= simulated(story) <= 67


def test_a_host_that_is_heard_again_is_used_again() -> None:
    async def story(world: World) -> list[Message]:
        world.begin("h1", "h2")
        await until_s(10)
        world.end("h1")
        await until_s(100)
        world.begin("h1")
        await until_s(110)
        await world.say(LONG)
        return world.orders_of(SpawnInstance)

    (order,) = simulated(story)

    assert isinstance(order, SpawnInstance)
    assert order.host == host("h1")


def test_a_host_that_is_set_down_is_lost_although_it_is_heard_and_is_not_when_it_is_set_up() -> None:
    async def story(world: World) -> tuple[str, list[Message]]:
        world.begin("h1", "h2")
        await world.say(LONG)
        await world.say(the_word("h1", "down", 1))
        where = await built_on(world, by_s=20)
        await world.say(spawned(2, "h2"), the_word("h1", "up", 2))
        await until_s(30)
        other = structs.replace(LONG, instance=other_instance(77))
        await world.say(other)
        return where, world.orders_of(SpawnInstance)[2:]

    where, (last,) = simulated(story)

    assert where == "h2"
    assert isinstance(last, SpawnInstance)
    assert last.host == host("h1")


def test_a_word_that_another_conductor_has_saved_is_found_and_without_one_no_host_is_read() -> None:
    async def story(world: World) -> tuple[str, int, int]:
        world.begin("h1", "h2")
        await world.say(LONG, the_word("h2", "up", 1))
        await until_s(100)
        readings_before = world.store.readings
        other = SqlConductorStore(world.store.database, "c1", clock=world.now)
        async with other.transaction() as tx:
            await tx.save_hosts([CellHost(the_word("h1", "dead", 1))])
        where = await built_on(world, by_s=107)
        await until_s(1000)
        return where, readings_before, world.store.readings

    assert simulated(story) == ("h2", 1, 2)


@pytest.mark.parametrize("listened_s", [1, 100])
def test_what_waits_for_a_host_that_its_compute_does_not_have_goes_on_at_once_until_the_host_is_heard(
    listened_s: int,
) -> None:
    async def story(world: World) -> tuple[str, list[Message]]:
        world.begin("h1", "h2")
        await world.say(LONG)
        await until_s(listened_s)
        world.end("h1")
        await world.say(HostsNotHere(cell="c1", hosts=(host("h1"),)))
        where = await built_on(world, by_s=listened_s + 4)

        world.begin("h1")
        await until_s(listened_s + 10)
        await world.say(structs.replace(place("h1"), instance=other_instance(7), ends_by=LONG.ends_by))
        return where, world.orders_of(SpawnInstance)

    where, (_, _, last) = simulated(story)

    assert where == "h2"
    assert isinstance(last, SpawnInstance)
    assert last.host == host("h1")


def test_a_late_word_does_not_undo_a_later_one() -> None:
    async def story(world: World) -> list[int]:
        await world.say(the_word("h1", "up", 3))
        await world.say(the_word("h1", "dead", 2))
        return [each.word.setting.number for each in await world.store.hosts()]

    assert simulated(story) == [3]


def test_a_dead_host_that_is_heard_destroys_what_is_not_its_own_and_is_clean_only_after_it_was_set_up() -> (
    None
):
    holds = HostHolds(cell="c1", host=host("h1"), number=1)
    kept = HeldAttempt(instance=ONE, attempt=1)
    foreign = HeldAttempt(instance=other_instance(78), attempt=4)

    async def story(world: World) -> None:
        await world.say(LONG, spawned(1, "h1"))
        await world.say(the_word("h1", "dead", 1, must_clean=True))
        await until_s(20)
        assert world.orders_of(CheckHost) == [], "it is not heard"

        world.begin("h1")
        await until_s(30)
        asked = world.orders_of(CheckHost)
        assert asked[0] == CheckHost(cell="c1", host=host("h1"), number=1)
        await world.say(structs.replace(holds, attempts=(kept, foreign)))
        assert world.orders_of(DestroyInstance) == [
            DestroyInstance(cell="c1", instance=foreign.instance, attempt=4, host=host("h1"))
        ]
        await world.say(structs.replace(holds, attempts=(kept,)))
        assert world.cleaned == [], "it is dead"

        await world.say(the_word("h1", "up", 2, must_clean=True))
        await world.say(structs.replace(holds, attempts=(kept,)))
        assert world.cleaned == [], "it was set up since it was asked"
        await world.say(structs.replace(holds, number=2, attempts=(kept, foreign)))
        assert world.cleaned == [], "it still has what is not its own"
        page = structs.replace(holds, number=2, attempts=(kept,))
        await world.say(structs.replace(page, next=ONE))
        assert world.cleaned == [], "there is another page"
        assert CheckHost(cell="c1", host=host("h1"), number=2, after=ONE) in world.orders_of(CheckHost)
        await world.say(page)
        assert world.cleaned == [HostCleaned(cell="c1", host=host("h1"), number=2)]
        asked_before = len(world.orders_of(CheckHost))
        await until_s(90)
        assert len(world.orders_of(CheckHost)) == asked_before, "it is clean"
        # The answer may be delivered again, since its event may have been lost.
        await world.say(page)
        assert len(world.cleaned) == 2

    simulated(story)


def test_a_host_that_lists_what_it_has_without_being_asked_destroys_what_is_not_its_own() -> None:
    kept = HeldAttempt(instance=ONE, attempt=1)
    left = HeldAttempt(instance=ONE, attempt=0)
    listed = HostHolds(cell="c1", host=host("h1"), number=0, attempts=(kept, left))
    order = DestroyInstance(cell="c1", instance=ONE, attempt=0, host=host("h1"))

    async def story(world: World) -> None:
        world.begin("h1")
        await world.say(LONG, spawned(1, "h1"))
        await world.say(listed)
        assert world.orders_of(DestroyInstance) == [order]

        # A host does not know by which setting it was set up, or that it must clean up.
        await world.say(the_word("h1", "up", 2, must_clean=True))
        await world.say(listed)
        assert world.orders_of(DestroyInstance) == [order, order]
        await world.say(structs.replace(listed, attempts=(kept,)))
        assert world.cleaned == [], "it lists again what it has, by the number of that setting"

    simulated(story)


def test_what_the_cell_never_ordered_stays_until_a_person_has_decided() -> None:
    """After a restore of its database, a cell does not know what was built since."""
    newer = HeldAttempt(instance=ONE, attempt=2)
    unknown = HeldAttempt(instance=other_instance(78), attempt=1)
    listed = HostHolds(cell="c1", host=host("h2"), number=0, attempts=(newer, unknown))

    async def story(world: World) -> None:
        await world.say(LONG, spawned(1, "h1"))
        await world.say(listed)
        assert world.orders_of(DestroyInstance) == []

        # Of a host that was dead everything is elsewhere by now.
        await world.say(the_word("h2", "up", 2, must_clean=True))
        await world.say(structs.replace(listed, number=2))
        assert world.orders_of(DestroyInstance) == [
            DestroyInstance(cell="c1", instance=each.instance, attempt=each.attempt, host=host("h2"))
            for each in (newer, unknown)
        ]

    simulated(story)


def test_all_pages_of_what_a_host_has_are_asked_for_although_the_first_has_something_that_is_not_its_own() -> (
    None
):
    left = HeldAttempt(instance=ONE, attempt=0)
    page = HostHolds(cell="c1", host=host("h1"), number=0, attempts=(left,), next=ONE)

    async def story(world: World) -> None:
        await world.say(LONG, spawned(1, "h1"))
        await world.say(page)
        assert len(world.orders_of(DestroyInstance)) == 1
        assert world.orders_of(CheckHost) == [CheckHost(cell="c1", host=host("h1"), number=0, after=ONE)]

    simulated(story)


def test_a_host_that_was_only_silent_is_not_asked() -> None:
    async def story(world: World) -> None:
        world.begin("h1")
        await until_s(20)
        world.end("h1")
        await until_s(120)
        world.begin("h1")
        await until_s(300)
        assert world.orders_of(CheckHost) == [], "it lists what it has by itself"

    simulated(story)


def test_an_instance_that_left_a_dead_host_is_destroyed_there_when_the_host_returns() -> None:
    async def story(world: World) -> None:
        world.begin("h1", "h2")
        await world.say(LONG)
        await world.say(the_word("h1", "dead", 1, must_clean=True))
        assert await built_on(world, by_s=20) == "h2"
        assert (await world.row()).cleanups == ()
        await world.say(
            HostHolds(cell="c1", host=host("h1"), number=1, attempts=(HeldAttempt(instance=ONE, attempt=1),))
        )
        assert world.orders_of(DestroyInstance) == [destroy(1, "h1")]

    simulated(story)
