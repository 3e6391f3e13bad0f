"""Pretended hosts as others meet them: placement beside them, a conductor that orders, and ears on the events."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import UUID

import pytest
from msgspec import structs

from bus.broker import Broker
from bus.codec import CODEC
from bus.handling import Received, Said
from bus.link import Link
from bus.listening import listen
from bus.message import ConsumerId, Message, ProviderId
from bus.messages.build import Flavor
from bus.messages.cell import (
    DestroyInstance,
    InstanceDestroyed,
    InstanceSpawned,
    SpawnFailed,
    SpawnInstance,
)
from bus.messages.hosts import HostFacts, HostsAlive, HostsReported
from bus.messages.placement import (
    ProvidersChanged,
    ProviderState,
    ReportAccepted,
    ReportAnswered,
    ReportedInventory,
    ReportedProvider,
    ReportInventory,
    ResourceAmount,
    Share,
)
from bus.process import run_until
from bus.station import Station
from bus.topology import EVENTS, Grant
from compute_sim.core.faults import (
    BuildsSlowly,
    Changes,
    ComesBackLate,
    Dies,
    FailsToBuild,
    FallsSilent,
    FaultScript,
)
from compute_sim.core.hosts import Host, HostSize, Load
from compute_sim.drivers import alike, root_of
from compute_sim.fleet import Elapsed
from compute_sim.settings import ComputeSettings
from compute_sim.store import ComputeStore
from compute_sim.wiring import compute_parts
from placement_worker.settings import PlacementSettings
from placement_worker.store_memory import MemoryPlacementStore
from placement_worker.wiring import placement_parts
from tests.contracts.broker_under_test import BrokerUnderTest
from tests.contracts.compute_stores import open_again
from tests.contracts.stage import PATIENCE_S, SETTINGS, dead_letters, declared, until
from tests.stories.test_placement_over_the_bus import under_test_of

pytestmark = pytest.mark.asyncio

BUSES = pytest.mark.parametrize("bus", ["memory", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
QUICK = ComputeSettings(cell="c1", beat_s=0.1, facts_every_s=0.05, again_s=0.05, drain_s=0.1)


class Scene:
    """Who stands around the compute: placement, a conductor's queue, a feed of events."""

    def __init__(
        self, under_test: BrokerUnderTest, broker: Broker, client: Station, store: MemoryPlacementStore
    ) -> None:
        self.under_test = under_test
        self.broker = broker
        self.client = client
        self.store = store
        self.answers: list[Message] = []
        self.heard: list[Message] = []
        self.listening = asyncio.Event()

    async def order(self, *orders: Message) -> None:
        await asyncio.gather(*(self.client.publisher.send(each) for each in orders))

    async def on_answers(self, answers: Sequence[Received[Message]], _: None) -> list[Said]:
        self.answers += [each.message for each in answers]
        return []

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield

    async def listen(self) -> None:
        link = Link(self.broker, SETTINGS)
        grants = [Grant(EVENTS, ("host.#", "providers.changed", "inventory.refused.*"))]
        try:
            async for batch in listen(link, grants, process="ears", settings=SETTINGS, codec=CODEC):
                self.listening.set()
                self.heard += [each.message for each in batch]
        finally:
            await link.close()

    async def providers(self) -> dict[str, ProviderState]:
        page = await self.store.snapshot_page(0, 10_000)
        return {each.name: each for each in page.providers}

    async def until_providers(self, holds: Callable[[dict[str, ProviderState]], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds(await self.providers()):
                await asyncio.sleep(0.005)

    def facts(self) -> dict[str, HostFacts]:
        """The last word on each host."""
        reported = [each for each in self.heard if isinstance(each, HostsReported)]
        return {facts.name: facts for each in reported for facts in each.hosts}

    def beats(self) -> list[frozenset[ProviderId]]:
        return [frozenset(each.hosts) for each in self.heard if isinstance(each, HostsAlive)]

    @asynccontextmanager
    async def computing(
        self,
        hosts: Sequence[Host],
        faults: FaultScript | None = None,
        settings: ComputeSettings = QUICK,
        store: ComputeStore | None = None,
    ) -> AsyncIterator[Station]:
        station = Station(self.broker, "compute", settings=SETTINGS, asks=True)
        told = asyncio.Event()
        parts = compute_parts(station, hosts, settings, faults or FaultScript(spawn_ms=5), store=store)
        running = asyncio.create_task(run_until(told, parts, drain_s_max=10))
        try:
            yield station
        finally:
            told.set()
            await running
            await station.close()


BOOKS = PlacementSettings(feed_lead_again_ms=20)


@asynccontextmanager
async def scene(bus: str, settings: PlacementSettings = BOOKS) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        under_test = await under_test_of(bus)
        stack.push_async_callback(under_test.close)
        broker = await declared(under_test)
        store = MemoryPlacementStore()
        placement = Station(broker, "placement", settings=SETTINGS)
        client = Station(broker, "client", settings=SETTINGS, asks=True)
        here = Scene(under_test, broker, client, store)
        kinds = (InstanceSpawned, SpawnFailed, InstanceDestroyed)
        conductor = client.worker("conductor.c1.work", dict.fromkeys(kinds, here.on_answers), here)
        told = asyncio.Event()
        books = placement_parts((placement,), store, settings)
        running = asyncio.create_task(run_until(told, (client, conductor, *books), drain_s_max=10))
        listening = asyncio.create_task(here.listen())
        await here.listening.wait()
        try:
            yield here
            assert await store.audit() == ()
        finally:
            listening.cancel()
            told.set()
            await running
            await client.close()
            await placement.close()


def spawn(number: int, host: str, attempt: int = 1) -> SpawnInstance:
    amount = ResourceAmount(provider=root_of(host), resource="VCPU", amount=1)
    return SpawnInstance(
        cell="c1",
        instance=ConsumerId(UUID(int=number)),
        attempt=attempt,
        host=root_of(host),
        flavor=Flavor(name="small", vcpus=1),
        share=Share(host=root_of(host), amounts=(amount,)),
    )


def destroy(number: int, host: str, attempt: int = 1) -> DestroyInstance:
    return DestroyInstance(
        cell="c1", instance=ConsumerId(UUID(int=number)), attempt=attempt, host=root_of(host)
    )


def spawned(number: int, host: str, attempt: int = 1) -> InstanceSpawned:
    return InstanceSpawned(
        cell="c1", instance=ConsumerId(UUID(int=number)), attempt=attempt, host=root_of(host)
    )


def gone(number: int, host: str, attempt: int = 1) -> InstanceDestroyed:
    return InstanceDestroyed(
        cell="c1", instance=ConsumerId(UUID(int=number)), attempt=attempt, host=root_of(host)
    )


@BUSES
async def test_hosts_appear_in_placement_and_to_whoever_listens_and_their_hearts_beat(bus: str) -> None:
    async with scene(bus) as here, here.computing(alike("c1", 3, HostSize(numa_nodes=2))):
        await here.until_providers(lambda found: len(found) == 9)
        everybody = frozenset(root_of(f"c1-host-0000{n}") for n in (1, 2, 3))
        await until(lambda: len(here.facts()) == 3 and everybody in here.beats())

        providers = await here.providers()
        root, numa = providers["c1-host-00001"], providers["c1-host-00001_NUMA1"]
        assert (root.cell, set(root.inventories)) == ("c1", {"DISK_GB"})
        assert (numa.parent, numa.inventories["VCPU"].total) == (root.id, 16)
        facts = here.facts()["c1-host-00002"]
        assert (facts.availability_zone, facts.hypervisor_type) == ("az3", "QEMU")


@BUSES
async def test_a_spawn_is_answered_again_alike_and_a_destroyed_attempt_is_never_built(bus: str) -> None:
    async with scene(bus) as here, here.computing(alike("c1", 1)):
        host = "c1-host-00001"
        await here.order(spawn(1, host))
        await until(lambda: here.answers == [spawned(1, host)])
        await here.order(spawn(1, host))
        await until(lambda: here.answers == [spawned(1, host)] * 2)
        await until(lambda: here.facts().get(host, HostFacts(id=root_of(host), name="")).instances == 1)

        here.answers.clear()
        await here.order(destroy(1, host))
        await until(lambda: here.answers == [gone(1, host)])
        await here.order(destroy(1, host))
        await until(lambda: here.answers == [gone(1, host)] * 2)
        await here.order(spawn(1, host))
        await until(lambda: here.answers == [gone(1, host)] * 3)
        # Another attempt of the same instance is another thing.
        await here.order(spawn(1, host, attempt=2))
        await until(lambda: here.answers[3:] == [spawned(1, host, attempt=2)])
        await until(lambda: here.facts()[host].instances == 1)


@BUSES
async def test_a_destroy_that_overtakes_its_spawn_and_one_of_nothing_are_confirmed(bus: str) -> None:
    async with scene(bus) as here, here.computing(alike("c1", 1), FaultScript(spawn_ms=300_000)):
        host = "c1-host-00001"
        await here.order(destroy(1, host))
        await until(lambda: here.answers == [gone(1, host)])
        await here.order(spawn(2, host))
        await until(lambda: bool(here.facts()) and here.facts()[host].io_ops == 1)
        await here.order(destroy(2, host))
        await until(lambda: here.answers == [gone(1, host), gone(2, host)])
        await until(lambda: (here.facts()[host].io_ops, here.facts()[host].instances) == (0, 0))


@BUSES
async def test_a_host_that_restarted_builds_what_it_does_not_know_and_confirms_what_it_has_not(
    bus: str,
) -> None:
    async with scene(bus) as here:
        host = "c1-host-00001"
        async with here.computing(alike("c1", 1)):
            await here.order(spawn(1, host), spawn(2, host))
            await until(lambda: len(here.answers) == 2)
        here.answers.clear()
        async with here.computing(alike("c1", 1)):
            await here.order(destroy(1, host), spawn(2, host))
            await until(lambda: len(here.answers) == 2)

        assert set(here.answers) == {gone(1, host), spawned(2, host)}


@BUSES
async def test_some_builds_fail_with_their_reason_and_the_same_ones_fail_again(bus: str) -> None:
    script = FaultScript(spawn_ms=1, faults=(FailsToBuild(probability=0.3, reason="no image"),))
    async with scene(bus) as here:
        outcomes = []
        for _ in range(2):
            async with here.computing(alike("c1", 5), script):
                orders = [spawn(n, f"c1-host-0000{n % 5 + 1}") for n in range(200)]
                await here.order(*orders)
                await until(lambda: len(here.answers) == 200)
                failed = [each for each in here.answers if isinstance(each, SpawnFailed)]
                assert {each.reason for each in failed} == {"no image"}
                outcomes.append({each.instance for each in failed})
                here.answers.clear()

        assert outcomes[0] == outcomes[1]
        assert 30 < len(outcomes[0]) < 90


@BUSES
async def test_a_silent_host_is_heard_again_and_a_late_one_says_what_it_has_kept(bus: str) -> None:
    script = FaultScript(
        spawn_ms=5,
        faults=(
            FallsSilent(hosts=("*-00001",), for_s=2.0),
            ComesBackLate(hosts=("*-00002",), for_s=2.0),
            Dies(hosts=("*-00003",)),
        ),
    )
    silent, late, dead, well = (f"c1-host-0000{n}" for n in (1, 2, 3, 4))
    async with scene(bus) as here, here.computing(alike("c1", 4), script):
        await here.order(spawn(1, silent), spawn(2, late), spawn(3, dead), spawn(4, well))
        await until(lambda: spawned(4, well) in here.answers and bool(here.beats()))
        assert here.answers == [spawned(4, well)]
        assert here.beats()[0] == {root_of(well)}
        assert set(here.facts()) == {well}

        await until(lambda: spawned(2, late) in here.answers and {silent, late} <= set(here.facts()))
        assert spawned(1, silent) not in here.answers
        await here.order(spawn(1, silent), spawn(3, dead), destroy(3, dead))
        await until(lambda: spawned(1, silent) in here.answers)
        await until(lambda: here.beats()[-1] == {root_of(silent), root_of(late), root_of(well)})
        await here.until_providers(lambda found: set(found) == {silent, late, well})
        assert set(here.answers) == {spawned(1, silent), spawned(2, late), spawned(4, well)}


@BUSES
async def test_a_slow_build_does_not_hold_up_the_others(bus: str) -> None:
    script = FaultScript(spawn_ms=2, faults=(BuildsSlowly(hosts=("*-00001",), spawn_ms=200),))
    async with scene(bus) as here, here.computing(alike("c1", 2), script):
        slow, quick = "c1-host-00001", "c1-host-00002"
        await here.order(spawn(1, slow))
        await here.order(spawn(2, quick))
        await until(lambda: len(here.answers) == 2)

        assert here.answers == [spawned(2, quick), spawned(1, slow)]


@BUSES
async def test_only_what_changed_is_reported_and_what_an_operator_set_survives(bus: str) -> None:
    change = Changes(hosts=("*-00001",), after_s=0.4, vcpus=-8, traits_gained=("CUSTOM_WARM",))
    hosts = alike("c1", 3, HostSize(vcpus=16))
    async with scene(bus) as here:
        async with here.computing(hosts, FaultScript(faults=(change,))):
            await here.until_providers(lambda found: len(found) == 3)
            shapes = {name: each.shape for name, each in (await here.providers()).items()}
            # Another reporter hangs a device under a host, which is none of the host's business.
            device = ReportedProvider(
                id=ProviderId(UUID(int=77)),
                name="an-accelerator",
                parent=root_of("c1-host-00001"),
                inventories={"FPGA": ReportedInventory(total=1)},
                traits=("CUSTOM_BY_HAND",),
            )
            answer = await here.client.ask(
                ReportInventory(cell="c1", root=root_of("c1-host-00001"), providers=(device,))
            )
            assert isinstance(answer, ReportAnswered)
            assert isinstance(answer.verdict, ReportAccepted)
            await here.until_providers(lambda found: "CUSTOM_WARM" in found["c1-host-00001"].traits)

        after = await here.providers()
        assert after["c1-host-00001"].inventories["VCPU"].total == 8
        assert after["an-accelerator"].traits == ("CUSTOM_BY_HAND",)
        assert after["an-accelerator"].generation == 1
        assert {name for name, shape in shapes.items() if after[name].shape == shape} == {
            "c1-host-00002",
            "c1-host-00003",
        }
        # Started anew it tells everything; nothing of it is news, so nothing moves.
        async with here.computing(hosts, FaultScript(faults=(Changes(hosts=("*-00001",), vcpus=-8),))):
            await here.until_providers(lambda found: "CUSTOM_WARM" not in found["c1-host-00001"].traits)
        again = await here.providers()
        assert again["c1-host-00002"].shape == after["c1-host-00002"].shape


@BUSES
async def test_an_answer_that_no_queue_takes_is_said_again_until_one_does(bus: str) -> None:
    async with scene(bus) as here:
        host = "c1-host-00001"
        async with here.computing(alike("c1", 1)):
            await here.under_test.delete_queue("conductor.c1.work")
            await here.order(spawn(1, host))
            # Built, so that its answer was said to nobody.
            await until(
                lambda: (
                    bool(here.facts()) and (here.facts()[host].instances, here.facts()[host].io_ops) == (1, 0)
                )
            )
            assert here.answers == []
            await declared(here.under_test)
            await until(lambda: spawned(1, host) in here.answers)


async def test_an_answer_that_was_not_confirmed_is_said_by_the_process_after_a_kill() -> None:
    host = "c1-host-00001"
    async with scene("memory") as here, open_again("sqlite", Elapsed()) as again:
        killed = await again("c1")
        async with here.computing(alike("c1", 1), FaultScript(spawn_ms=200), store=killed):
            await here.order(spawn(1, host))
            await _until_it_has(killed, host, Load(instances=1, io_ops=1))
            await here.under_test.set_alarm(on=True)
            await _until_it_has(killed, host, Load(instances=1, io_ops=0))
            # What stands in the table while nothing is confirmed is all that a killed process leaves behind.
            left = await again("c1")
            # Closed in peace, since a test has no process to kill.
            await here.under_test.set_alarm(on=False)
            await until(lambda: here.answers == [spawned(1, host)])
        here.answers.clear()

        async with here.computing(alike("c1", 1), store=left):
            await until(lambda: here.answers == [spawned(1, host)])


async def _until_it_has(store: ComputeStore, host: str, load: Load) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await store.loads([root_of(host)]))[root_of(host)] != load:
            await asyncio.sleep(0.005)


@BUSES
async def test_a_compute_that_is_stopped_tells_of_the_builds_that_end_soon(bus: str) -> None:
    async with scene(bus) as here:
        patient = structs.replace(QUICK, drain_s=5)
        host = "c1-host-00001"
        async with here.computing(alike("c1", 1), FaultScript(spawn_ms=300), patient):
            await here.order(spawn(1, host))
            await until(lambda: bool(here.facts()) and here.facts()[host].io_ops == 1)
        await until(lambda: here.answers == [spawned(1, host)])


@BUSES
async def test_a_report_is_repeated_until_placement_is_there_to_answer(bus: str) -> None:
    under_test = await under_test_of(bus)
    try:
        broker = await declared(under_test)
        store = MemoryPlacementStore()
        compute = Station(broker, "compute", settings=SETTINGS, asks=True)
        told = asyncio.Event()
        parts = compute_parts(compute, alike("c1", 2), QUICK)
        running = asyncio.create_task(run_until(told, parts, drain_s_max=10))
        await until(lambda: compute.asked_again >= 2, "it asks again")
        placement = Station(broker, "placement", settings=SETTINGS)
        books = placement_parts((placement,), store, BOOKS)
        beside = asyncio.create_task(run_until(told, books, drain_s_max=10))
        async with asyncio.timeout(PATIENCE_S):
            while len((await store.snapshot_page(0, 10)).providers) < 2:
                await asyncio.sleep(0.005)
        told.set()
        await asyncio.gather(running, beside)
        await compute.close()
        await placement.close()
    finally:
        await under_test.close()


@BUSES
async def test_an_order_for_a_host_that_is_not_here_is_buried_with_its_reason(bus: str) -> None:
    async with scene(bus) as here, here.computing(alike("c1", 1)):
        await here.order(spawn(1, "nowhere"), spawn(2, "c1-host-00001"))
        await until(lambda: here.answers == [spawned(2, "c1-host-00001")])
        (letter,) = await dead_letters(here.broker, 1)

        assert letter.reason == f"host is {root_of('nowhere')}, which cell 'c1' does not have here"


@BUSES
async def test_two_thousand_hosts_start_with_few_messages(bus: str) -> None:
    async with scene(bus) as here, here.computing(alike("c1", 2000)) as station:
        await here.until_providers(lambda found: len(found) == 2000)
        await until(lambda: len(here.facts()) == 2000)
        counted = Counter(type(each) for each in here.heard if not isinstance(each, ProvidersChanged))

        assert counted[HostsReported] == 2
        # Reports, facts and a few heartbeats; a parcel holds at most 200 messages.
        assert station.publisher.parcels_sent <= 60
