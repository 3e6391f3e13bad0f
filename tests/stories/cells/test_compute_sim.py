"""The simulated hypervisors as other workers see them: with a real placement worker, a scripted conductor, and a feed
of events.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import UUID

import pytest
from msgspec import structs

from bus.broker import Broker
from bus.codec import CODEC
from bus.message import Message
from bus.messages.cell import (
    DestroyInstance,
    InstanceDestroyed,
    InstanceSpawned,
    InstanceStopped,
    ReceiveInstance,
    SpawnFailed,
    SpawnInstance,
    StartInstance,
    StopInstance,
)
from bus.messages.hosts import (
    CheckHost,
    HostHolds,
    HostMetrics,
    HostsAlive,
    HostsMeasured,
    HostsNotHere,
    HostsReported,
)
from bus.messages.placement import ProvidersChanged, ReportAccepted, ReportAnswered, ReportInventory
from bus.topology import DEAD_QUEUE, EVENTS, Grant
from bus.workers.handling import Handlers, Received, Said
from bus.workers.sending import Link
from bus.workers.station import Station, listen
from compute_sim.core.hosts import Load
from compute_sim.handlers import ComputeStore, Elapsed
from compute_sim.settings import ComputePace, ComputeSettings
from compute_sim.wiring import compute_parts
from engine.flavors import Flavor
from engine.hosts import HostFacts, Supported
from engine.inventories import (
    ConsumerId,
    ProviderId,
    ProviderState,
    ReportedInventory,
    ReportedProvider,
    ResourceAmount,
    Share,
)
from kit.process import run_until
from laboratory.computes.driver import SimulatedDriver, root_of, simulated_parts
from laboratory.computes.faults import (
    BuildsSlowly,
    Changes,
    ComesBackLate,
    Dies,
    FailsToBuild,
    FailsToReceive,
    FallsSilent,
    FaultScript,
)
from laboratory.computes.hosts import HostSize, SimulatedHost, equal_hosts
from placement_worker.settings import FeedPace, PlacementSettings
from placement_worker.wiring import placement_parts
from tests.contracts.broker_under_test import BrokerUnderTest
from tests.contracts.compute_stores import open_again
from tests.contracts.small_world import connected
from tests.contracts.stage import PATIENCE_S, SETTINGS, declared, until
from tests.stores_in_memory import MemoryPlacementStore
from tests.stories.cells.held_driver import HeldClock, HeldDriver
from tests.stories.placement.test_placement_over_the_bus import under_test_of

pytestmark = pytest.mark.asyncio

BUSES = pytest.mark.parametrize("bus", ["memory", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
QUICK = ComputeSettings(cell="c1", beat_s=0.1, facts_every_s=0.05)
QUICK_PACE = ComputePace(again_s=0.05, drain_s=0.1)


class ComputeSetup:
    """A compute with its surroundings: placement, a conductor's queue, a feed of events."""

    def __init__(
        self, under_test: BrokerUnderTest, broker: Broker, client: Station, store: MemoryPlacementStore
    ) -> None:
        self.under_test = under_test
        self.broker = broker
        self.client = client
        self.store = store
        self.answers: list[Message] = []
        self.listed: list[HostHolds] = []
        self.heard: list[Message] = []
        self.listening = asyncio.Event()

    async def order(self, *orders: Message) -> None:
        await asyncio.gather(*(self.client.publisher.send(each) for each in orders))

    async def on_answers(self, answers: Sequence[Received[Message]], _: None) -> list[Said]:
        self.answers += [each.message for each in answers]
        return []

    async def on_lists(self, lists: Sequence[Received[HostHolds]], _: None) -> list[Said]:
        self.listed += [each.message for each in lists]
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
        """The latest facts of each host."""
        reported = [each for each in self.heard if isinstance(each, HostsReported)]
        return {facts.name: facts for each in reported for facts in each.hosts}

    def beats(self) -> list[frozenset[ProviderId]]:
        return [frozenset(each.hosts) for each in self.heard if isinstance(each, HostsAlive)]

    @asynccontextmanager
    async def computing(
        self,
        hosts: Sequence[SimulatedHost],
        faults: FaultScript | None = None,
        settings: ComputeSettings = QUICK,
        store: ComputeStore | None = None,
        *,
        clock: HeldClock | None = None,
        pace: ComputePace = QUICK_PACE,
    ) -> AsyncIterator[Station]:
        """With a `clock`, faults begin and end and builds last by that clock, which only the test moves."""
        station = Station(self.broker, "compute", settings=SETTINGS, asks=True)
        told = asyncio.Event()
        script = faults or FaultScript(spawn_ms=5)
        if clock is None:
            parts = simulated_parts(station, hosts, settings, script, store=store, pace=pace)
        else:
            drivers = [HeldDriver(SimulatedDriver(host, script), clock) for host in hosts]
            parts = compute_parts(station, drivers, settings, store=store, pace=pace)
        running = asyncio.create_task(run_until(told, parts, drain_s_max=PATIENCE_S))
        try:
            yield station
        finally:
            told.set()
            await running
            await station.close()


PACE = FeedPace(lead_again_s=0.02)


@asynccontextmanager
async def compute_setup(bus: str, pace: FeedPace = PACE) -> AsyncIterator[ComputeSetup]:
    async with AsyncExitStack() as stack:
        under_test = await under_test_of(bus)
        stack.push_async_callback(under_test.close)
        broker = await declared(under_test)
        store = MemoryPlacementStore()
        placement = Station(broker, "placement", settings=SETTINGS)
        client = Station(broker, "client", settings=SETTINGS, asks=True)
        setup = ComputeSetup(under_test, broker, client, store)
        kinds = (InstanceSpawned, SpawnFailed, InstanceStopped, InstanceDestroyed, HostsNotHere)
        handlers: Handlers = {**dict.fromkeys(kinds, setup.on_answers), HostHolds: setup.on_lists}
        conductor = client.worker("conductor.c1.work", handlers, setup)
        told = asyncio.Event()
        books = placement_parts((placement,), store, PlacementSettings(), pace=pace)
        running = asyncio.create_task(run_until(told, (client, conductor, *books), drain_s_max=PATIENCE_S))
        listening = asyncio.create_task(setup.listen())
        await setup.listening.wait()
        try:
            yield setup
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


def receive(number: int, host: str, attempt: int, source: str) -> ReceiveInstance:
    """It takes over the attempt before."""
    order = spawn(number, host, attempt)
    return ReceiveInstance(
        cell="c1",
        instance=order.instance,
        attempt=attempt,
        host=order.host,
        flavor=order.flavor,
        share=order.share,
        source=root_of(source),
        source_attempt=attempt - 1,
    )


def stop(number: int, host: str, move: int = 1) -> StopInstance:
    return StopInstance(
        cell="c1", instance=ConsumerId(UUID(int=number)), attempt=1, host=root_of(host), number=move
    )


def start(number: int, host: str, move: int = 1) -> StartInstance:
    return StartInstance(
        cell="c1", instance=ConsumerId(UUID(int=number)), attempt=1, host=root_of(host), number=move
    )


def stopped(number: int, host: str, failure: str = "", move: int = 1) -> InstanceStopped:
    return InstanceStopped(
        cell="c1",
        instance=ConsumerId(UUID(int=number)),
        attempt=1,
        host=root_of(host),
        failure=failure,
        number=move,
    )


def started(number: int, host: str) -> InstanceSpawned:
    """Again, by the first move."""
    return structs.replace(spawned(number, host), number=1)


@BUSES
async def test_hosts_appear_in_placement_and_in_events_and_send_heartbeats(bus: str) -> None:
    async with compute_setup(bus) as setup, setup.computing(equal_hosts("c1", 3, HostSize(numa_nodes=2))):
        await setup.until_providers(lambda found: len(found) == 9)
        everybody = frozenset(root_of(f"c1-host-0000{n}") for n in (1, 2, 3))
        await until(lambda: len(setup.facts()) == 3 and everybody in setup.beats())

        providers = await setup.providers()
        root, numa = providers["c1-host-00001"], providers["c1-host-00001_NUMA1"]
        assert (root.cell, set(root.inventories)) == ("c1", {"DISK_GB"})
        assert (numa.parent, numa.inventories["VCPU"].total) == (root.id, 16)
        facts = setup.facts()["c1-host-00002"]
        assert (facts.availability_zone, facts.hypervisor_type) == ("az3", "QEMU")


@BUSES
async def test_hosts_tell_what_they_are_what_they_measure_and_the_builds_that_failed_in_a_row(
    bus: str,
) -> None:
    host = "c1-host-00001"
    measuring = [structs.replace(each, metrics={"temperature": 41.5}) for each in equal_hosts("c1", 1)]
    failing = FaultScript(spawn_ms=5, faults=(FailsToBuild(),))
    pace = structs.replace(QUICK_PACE, metrics_every_s=0.05)

    async with compute_setup(bus) as setup, setup.computing(measuring, failing, pace=pace):
        await setup.order(spawn(1, host), spawn(2, host))
        await until(lambda: host in setup.facts() and setup.facts()[host].failed_builds == 2)
        await until(lambda: any(isinstance(each, HostsMeasured) for each in setup.heard))

        facts = setup.facts()[host]
        assert facts.supports == (Supported(architecture="x86_64", hypervisor_type="qemu", vm_mode="hvm"),)
        assert facts.capabilities["cpu_info:arch"] == "x86_64"
        measured = next(each for each in setup.heard if isinstance(each, HostsMeasured))
        assert (measured.cell, measured.hosts) == (
            "c1",
            (HostMetrics(id=root_of(host), values={"temperature": 41.5}),),
        )


@BUSES
async def test_a_repeated_spawn_gets_the_same_answer_and_a_destroyed_attempt_is_never_built(bus: str) -> None:
    async with compute_setup(bus) as setup, setup.computing(equal_hosts("c1", 1)):
        host = "c1-host-00001"
        await setup.order(spawn(1, host))
        await until(lambda: setup.answers == [spawned(1, host)])
        await setup.order(spawn(1, host))
        await until(lambda: setup.answers == [spawned(1, host)] * 2)
        await until(lambda: setup.facts().get(host, HostFacts(id=root_of(host), name="")).instances == 1)

        setup.answers.clear()
        await setup.order(destroy(1, host))
        await until(lambda: setup.answers == [gone(1, host)])
        await setup.order(destroy(1, host))
        await until(lambda: setup.answers == [gone(1, host)] * 2)
        await setup.order(spawn(1, host))
        await until(lambda: setup.answers == [gone(1, host)] * 3)
        # Another attempt of the same instance is a separate order.
        await setup.order(spawn(1, host, attempt=2))
        await until(lambda: setup.answers[3:] == [spawned(1, host, attempt=2)])
        await until(lambda: setup.facts()[host].instances == 1)


@BUSES
async def test_a_destroy_before_its_spawn_and_one_of_an_unknown_attempt_are_confirmed(bus: str) -> None:
    async with (
        compute_setup(bus) as setup,
        setup.computing(equal_hosts("c1", 1), FaultScript(spawn_ms=300_000)),
    ):
        host = "c1-host-00001"
        await setup.order(destroy(1, host))
        await until(lambda: setup.answers == [gone(1, host)])
        await setup.order(spawn(2, host))
        await until(lambda: bool(setup.facts()) and setup.facts()[host].io_ops == 1)
        await setup.order(destroy(2, host))
        await until(lambda: setup.answers == [gone(1, host), gone(2, host)])
        await until(lambda: (setup.facts()[host].io_ops, setup.facts()[host].instances) == (0, 0))


@BUSES
async def test_builds_beyond_the_limit_of_a_host_wait_for_their_turn_and_may_be_deleted_meanwhile(
    bus: str,
) -> None:
    host, other, clock = "c1-host-00001", "c1-host-00002", HeldClock()
    limited = structs.replace(QUICK, builds_at_once_max=2)
    async with (
        compute_setup(bus) as setup,
        setup.computing(equal_hosts("c1", 2), FaultScript(spawn_ms=300), limited, clock=clock),
    ):
        await setup.order(*[spawn(number, host) for number in range(1, 6)], spawn(9, other))
        # All are told as in progress, and an order that is repeated changes nothing.
        await setup.order(spawn(3, host))
        await until(lambda: bool(setup.facts()) and setup.facts()[host].io_ops == 5)
        await setup.order(destroy(4, host))
        await until(lambda: setup.answers == [gone(4, host)])
        clock.move(0.3)
        await until(lambda: len(setup.answers) == 4)
        assert set(setup.answers[1:]) == {spawned(1, host), spawned(2, host), spawned(9, other)}
        # One that is deleted while it is built makes room, too.
        await setup.order(spawn(6, host), destroy(3, host))
        await until(lambda: setup.answers[4:] == [gone(3, host)])
        clock.move(0.3)
        await until(lambda: len(setup.answers) == 7)
        assert set(setup.answers[5:]) == {spawned(5, host), spawned(6, host)}


@BUSES
async def test_an_instance_moves_from_host_to_host_and_another_one_comes_back(bus: str) -> None:
    source, other = "c1-host-00001", "c1-host-00002"
    failing = FaultScript(spawn_ms=5, faults=(FailsToReceive(hosts=(source,), reason="no room"),))
    async with compute_setup(bus) as setup, setup.computing(equal_hosts("c1", 2), failing):

        async def expect(order: Message, answer: Message) -> None:
            setup.answers.clear()
            await setup.order(order)
            await until(lambda: setup.answers == [answer], f"the answer to {order!r}")

        for number in (1, 2):
            await expect(spawn(number, source), spawned(number, source))
        await expect(stop(1, source), stopped(1, source))
        await expect(receive(1, other, 2, source), spawned(1, other, attempt=2))
        await expect(destroy(1, source), gone(1, source))

        await expect(stop(2, source), stopped(2, source))
        # A resize in place: both attempts are of one instance.
        in_place = receive(2, source, 2, source)
        refusal = SpawnFailed(
            cell="c1", instance=in_place.instance, attempt=2, host=in_place.host, reason="no room"
        )
        await expect(in_place, refusal)
        await expect(start(2, source), started(2, source))
        await until(
            lambda: {name: facts.instances for name, facts in setup.facts().items()} == {source: 1, other: 1}
        )


async def test_a_late_copy_of_an_order_takes_over_nothing_that_its_source_has_lost_or_runs_again() -> None:
    source, other = "c1-host-00001", "c1-host-00002"
    async with compute_setup("memory") as setup, setup.computing(equal_hosts("c1", 2)):

        async def expect_refusal(order: ReceiveInstance, reason: str) -> None:
            setup.answers.clear()
            await setup.order(order)
            await until(lambda: len(setup.answers) == 1)
            (answer,) = setup.answers
            assert isinstance(answer, SpawnFailed)
            assert (answer.attempt, answer.reason) == (order.attempt, reason)

        await expect_refusal(receive(1, other, 2, source), "the source does not have attempt 1 of it")
        await setup.order(spawn(2, source))
        await until(lambda: setup.answers[1:] == [spawned(2, source)])
        await expect_refusal(receive(2, other, 2, source), "attempt 1 is not stopped on the source")


async def test_a_stopped_instance_stays_stopped_over_a_restart_and_without_a_store_it_is_forgotten() -> None:
    host = "c1-host-00001"
    async with compute_setup("memory") as setup, open_again("sqlite", Elapsed()) as again:
        async with setup.computing(equal_hosts("c1", 1), store=await again("c1")):
            await setup.order(spawn(1, host))
            await until(lambda: setup.answers == [spawned(1, host)])
            await setup.order(stop(1, host))
            await until(lambda: setup.answers[1:] == [stopped(1, host)])
        setup.answers.clear()

        async with setup.computing(equal_hosts("c1", 1), store=await again("c1")):
            # It is stopped, and knows by which move.
            await setup.order(spawn(1, host), start(1, host, move=0))
            await until(lambda: setup.answers == [stopped(1, host)] * 2)
            await setup.order(start(1, host))
            await until(lambda: setup.answers[2:] == [started(1, host)])
        setup.answers.clear()

        async with setup.computing(equal_hosts("c1", 1)):
            unknown = "the host has no attempt 1 of it"
            await setup.order(stop(1, host, move=2))
            await until(lambda: setup.answers == [stopped(1, host, unknown, move=2)])
            await setup.order(start(1, host, move=2))
            await until(lambda: len(setup.answers) == 2)
            assert isinstance(setup.answers[1], SpawnFailed)
            assert setup.answers[1].reason == unknown


@BUSES
async def test_a_restarted_host_builds_unknown_attempts_and_confirms_destroys_of_missing_ones(
    bus: str,
) -> None:
    async with compute_setup(bus) as setup:
        host = "c1-host-00001"
        async with setup.computing(equal_hosts("c1", 1)):
            await setup.order(spawn(1, host), spawn(2, host))
            await until(lambda: len(setup.answers) == 2)
        setup.answers.clear()
        async with setup.computing(equal_hosts("c1", 1)):
            await setup.order(destroy(1, host), spawn(2, host))
            await until(lambda: len(setup.answers) == 2)

        assert set(setup.answers) == {gone(1, host), spawned(2, host)}


@BUSES
async def test_some_builds_fail_with_their_reason_and_the_same_ones_fail_again(bus: str) -> None:
    script = FaultScript(spawn_ms=1, faults=(FailsToBuild(probability=0.3, reason="no image"),))
    async with compute_setup(bus) as setup:
        outcomes = []
        # A build that fails makes room for the next one.
        one_at_once = structs.replace(QUICK, builds_at_once_max=1)
        for _ in range(2):
            async with setup.computing(equal_hosts("c1", 5), script, one_at_once):
                orders = [spawn(n, f"c1-host-0000{n % 5 + 1}") for n in range(200)]
                await setup.order(*orders)
                await until(lambda: len(setup.answers) == 200)
                failed = [each for each in setup.answers if isinstance(each, SpawnFailed)]
                assert {each.reason for each in failed} == {"no image"}
                outcomes.append({each.instance for each in failed})
                setup.answers.clear()

        assert outcomes[0] == outcomes[1]
        assert 30 < len(outcomes[0]) < 90


@BUSES
async def test_a_silent_host_answers_again_and_a_late_one_sends_its_delayed_answers(bus: str) -> None:
    script = FaultScript(
        spawn_ms=0,
        faults=(
            FallsSilent(hosts=("*-00001",), for_s=2.0),
            ComesBackLate(hosts=("*-00002",), for_s=2.0),
            Dies(hosts=("*-00003",)),
        ),
    )
    silent, late, dead, well = (f"c1-host-0000{n}" for n in (1, 2, 3, 4))
    clock = HeldClock()
    async with compute_setup(bus) as setup, setup.computing(equal_hosts("c1", 4), script, clock=clock):
        # An order is handled after those before it.
        await setup.order(spawn(1, silent), spawn(2, late), spawn(3, dead))
        # They refuse these orders, and cannot say so, either.
        await setup.order(*[refused(5, host) for host in (silent, late, dead) for refused in (stop, start)])
        await setup.order(spawn(4, well))
        await until(lambda: spawned(4, well) in setup.answers and bool(setup.beats() and setup.facts()))
        assert setup.answers == [spawned(4, well)]
        assert setup.beats()[0] == {root_of(well)}
        assert set(setup.facts()) == {well}

        clock.move(2.0)
        await until(lambda: spawned(2, late) in setup.answers and {silent, late} <= set(setup.facts()))
        assert spawned(1, silent) not in setup.answers
        await setup.order(spawn(1, silent), spawn(3, dead), destroy(3, dead))
        await until(lambda: spawned(1, silent) in setup.answers)
        await until(lambda: setup.beats()[-1] == {root_of(silent), root_of(late), root_of(well)})
        await setup.until_providers(lambda found: set(found) == {silent, late, well})
        assert set(setup.answers) == {spawned(1, silent), spawned(2, late), spawned(4, well)}


@BUSES
async def test_a_slow_build_does_not_delay_the_others(bus: str) -> None:
    script = FaultScript(spawn_ms=0, faults=(BuildsSlowly(hosts=("*-00001",), spawn_ms=200),))
    clock = HeldClock()
    async with compute_setup(bus) as setup, setup.computing(equal_hosts("c1", 2), script, clock=clock):
        slow, quick = "c1-host-00001", "c1-host-00002"
        await setup.order(spawn(1, slow))
        await setup.order(spawn(2, quick))
        await until(lambda: setup.answers == [spawned(2, quick)])

        clock.move(0.2)
        await until(lambda: setup.answers == [spawned(2, quick), spawned(1, slow)])


@BUSES
async def test_only_changes_are_reported_and_an_operators_settings_survive(bus: str) -> None:
    change = Changes(hosts=("*-00001",), after_s=0.4, vcpus=-8, traits_gained=("CUSTOM_WARM",))
    hosts, clock = equal_hosts("c1", 3, HostSize(vcpus=16)), HeldClock()
    async with compute_setup(bus) as setup:
        async with setup.computing(hosts, FaultScript(faults=(change,)), clock=clock):
            await setup.until_providers(lambda found: len(found) == 3)
            shapes = {name: each.shape for name, each in (await setup.providers()).items()}
            # Another reporter adds a child provider to a host; the compute leaves it alone.
            device = ReportedProvider(
                id=ProviderId(UUID(int=77)),
                name="an-accelerator",
                parent=root_of("c1-host-00001"),
                inventories={"FPGA": ReportedInventory(total=1)},
                traits=("CUSTOM_BY_HAND",),
            )
            answer = await setup.client.ask(
                ReportInventory(cell="c1", root=root_of("c1-host-00001"), providers=(device,))
            )
            assert isinstance(answer, ReportAnswered)
            assert isinstance(answer.verdict, ReportAccepted)
            clock.move(0.4)
            await setup.until_providers(lambda found: "CUSTOM_WARM" in found["c1-host-00001"].traits)

        after = await setup.providers()
        assert after["c1-host-00001"].inventories["VCPU"].total == 8
        assert after["an-accelerator"].traits == ("CUSTOM_BY_HAND",)
        assert after["an-accelerator"].generation == 1
        assert {name for name, shape in shapes.items() if after[name].shape == shape} == {
            "c1-host-00002",
            "c1-host-00003",
        }
        # A restarted compute reports everything. Nothing of it is new, so no shape moves.
        async with setup.computing(hosts, FaultScript(faults=(Changes(hosts=("*-00001",), vcpus=-8),))):
            await setup.until_providers(lambda found: "CUSTOM_WARM" not in found["c1-host-00001"].traits)
        again = await setup.providers()
        assert again["c1-host-00002"].shape == after["c1-host-00002"].shape


@BUSES
async def test_an_unroutable_answer_is_repeated_until_a_queue_takes_it(bus: str) -> None:
    async with compute_setup(bus) as setup:
        host = "c1-host-00001"
        async with setup.computing(equal_hosts("c1", 1)):
            await setup.under_test.delete_queue("conductor.c1.work")
            await setup.order(spawn(1, host))
            # Built, but nobody was listening for the answer.
            await until(
                lambda: (
                    bool(setup.facts())
                    and (setup.facts()[host].instances, setup.facts()[host].io_ops) == (1, 0)
                )
            )
            assert setup.answers == []
            await declared(setup.under_test)
            await until(lambda: spawned(1, host) in setup.answers)


async def test_an_unconfirmed_answer_is_sent_by_the_next_process_after_a_kill() -> None:
    host = "c1-host-00001"
    async with compute_setup("memory") as setup, open_again("sqlite", Elapsed()) as again:
        killed, clock, slow = await again("c1"), HeldClock(), FaultScript(spawn_ms=200)
        async with setup.computing(equal_hosts("c1", 1), slow, store=killed, clock=clock):
            await setup.order(spawn(1, host))
            await _until_it_has(killed, host, Load(instances=1, io_ops=1))
            await setup.under_test.set_alarm(on=True)
            clock.move(0.2)
            await _until_it_has(killed, host, Load(instances=1, io_ops=0))
            # The rows of unconfirmed answers are all that a killed process leaves behind.
            left = await again("c1")
            # Closed properly; a test cannot kill a process inside itself.
            await setup.under_test.set_alarm(on=False)
            await until(lambda: setup.answers == [spawned(1, host)])
        setup.answers.clear()

        async with setup.computing(equal_hosts("c1", 1), store=left):
            await until(lambda: setup.answers == [spawned(1, host)])


async def test_a_build_on_a_host_that_is_not_started_again_waits_for_a_process_that_has_the_host() -> None:
    stays, leaves = "c1-host-00001", "c1-host-00002"
    async with compute_setup("memory") as setup, open_again("sqlite", Elapsed()) as again:
        killed, clock, slow = await again("c1"), HeldClock(), FaultScript(spawn_ms=200)
        async with setup.computing(equal_hosts("c1", 2), slow, store=killed, clock=clock):
            await setup.order(spawn(1, leaves))
            await _until_it_has(killed, leaves, Load(instances=1, io_ops=1))

        async with setup.computing(equal_hosts("c1", 1), store=await again("c1")):
            await setup.order(spawn(2, stays))
            await until(lambda: setup.answers == [spawned(2, stays)])
        async with setup.computing(equal_hosts("c1", 2), store=await again("c1")):
            await until(lambda: setup.answers[1:] == [spawned(1, leaves)])


async def _until_it_has(store: ComputeStore, host: str, load: Load) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await store.loads([root_of(host)]))[root_of(host)] != load:
            await asyncio.sleep(0.005)


@BUSES
async def test_a_stopping_compute_still_reports_builds_that_end_soon(bus: str) -> None:
    async with compute_setup(bus) as setup:
        patient, clock = structs.replace(QUICK_PACE, drain_s=PATIENCE_S), HeldClock()
        host = "c1-host-00001"
        computing = setup.computing(
            equal_hosts("c1", 1), FaultScript(spawn_ms=300), pace=patient, clock=clock
        )
        await computing.__aenter__()
        await setup.order(spawn(1, host))
        await until(lambda: bool(setup.facts()) and setup.facts()[host].io_ops == 1)
        stopping = asyncio.create_task(computing.__aexit__(None, None, None))
        await asyncio.wait((stopping,), timeout=0.1)
        assert setup.answers == []
        clock.move(0.3)
        await stopping
        await until(lambda: setup.answers == [spawned(1, host)])


@BUSES
async def test_a_report_is_repeated_until_placement_is_there_to_answer(bus: str) -> None:
    under_test = await under_test_of(bus)
    try:
        broker = await declared(under_test)
        store = MemoryPlacementStore()
        compute = Station(broker, "compute", settings=SETTINGS, asks=True)
        told = asyncio.Event()
        parts = simulated_parts(compute, equal_hosts("c1", 2), QUICK, pace=QUICK_PACE)
        running = asyncio.create_task(run_until(told, parts, drain_s_max=PATIENCE_S))
        await until(lambda: compute.asked_again >= 2, "it asks again")
        placement = Station(broker, "placement", settings=SETTINGS)
        books = placement_parts((placement,), store, PlacementSettings(), pace=PACE)
        beside = asyncio.create_task(run_until(told, books, drain_s_max=PATIENCE_S))
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
async def test_orders_for_hosts_that_are_not_here_get_one_answer_and_leave_no_dead_letter(bus: str) -> None:
    async with compute_setup(bus) as setup, setup.computing(equal_hosts("c1", 1)):
        await setup.order(
            *(spawn(1, "nowhere"), destroy(3, "elsewhere"), destroy(4, "nowhere")), spawn(2, "c1-host-00001")
        )
        await until(lambda: spawned(2, "c1-host-00001") in setup.answers)
        await setup.order(CheckHost(cell="c1", host=root_of("nowhere"), number=1))
        missing = [root_of("nowhere"), root_of("elsewhere")]

        def told() -> list[ProviderId]:
            return [host for each in setup.answers if isinstance(each, HostsNotHere) for host in each.hosts]

        await until(lambda: {*told()} == {*missing} and told()[-1] == root_of("nowhere"))
        async with connected(setup.broker) as connection:
            assert await connection.depth(DEAD_QUEUE) == 0


@BUSES
async def test_two_thousand_hosts_start_with_few_messages(bus: str) -> None:
    async with compute_setup(bus) as setup, setup.computing(equal_hosts("c1", 2000)) as station:
        await setup.until_providers(lambda found: len(found) == 2000)
        await until(lambda: len(setup.facts()) == 2000)
        counted = Counter(type(each) for each in setup.heard if not isinstance(each, ProvidersChanged))

        assert counted[HostsReported] == 3
        # Reports, facts and a few heartbeats; a parcel holds at most 200 messages.
        assert station.publisher.parcels_sent <= 60
