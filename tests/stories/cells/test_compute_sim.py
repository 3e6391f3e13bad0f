"""The simulated hypervisors as other workers see them: with a real placement worker, a scripted conductor, and a feed
of events.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.cell import (
    DestroyInstance,
    InstanceDestroyed,
    InstanceSpawned,
    InstanceStopped,
    SpawnFailed,
    SpawnInstance,
    StopInstance,
)
from bus.messages.hosts import (
    CheckHost,
    HeldAttempt,
    HostHolds,
    HostsAlive,
    HostsNotHere,
    HostsReported,
)
from bus.messages.placement import ReportAccepted, ReportAnswered, ReportInventory
from bus.topology import DEAD_QUEUE
from bus.workers.connections import Station
from bus.workers.consuming import Subscription
from bus.workers.handlers import Handlers, Received, Said
from bus.workers.worker import Worker
from compute_sim.core.attempts import AttemptRecord
from compute_sim.core.hosts import Load
from compute_sim.handlers import ComputeStore
from compute_sim.settings import ComputeSettings
from compute_sim.store_sql import SqlComputeStore
from compute_sim.wiring import driver_named
from engine.flavors import Flavor
from engine.hosts import HostFacts
from engine.inventories import (
    ConsumerId,
    ProviderId,
    ProviderState,
    ReportedInventory,
    ReportedProvider,
    ResourceAmount,
    Share,
)
from laboratory.computes.driver import SimulatedDriver, root_of
from laboratory.computes.faults import (
    Changes,
    FailsToBuild,
    FaultScript,
)
from laboratory.computes.hosts import HostSize, SimulatedHost, equal_hosts
from placement_worker.settings import FeedPace
from tests.contracts.small_world import connected
from tests.contracts.stores import open_again
from tests.stories.cells.held_driver import HeldDriver
from tests.stories.cloud import COMPUTING, SETTLED, Cloud, M, cloud
from tests.waiting import Clock, until

BUSES = pytest.mark.parametrize("bus", ["memory", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])


class ComputeSetup:
    """A compute with its surroundings: placement, a conductor's queue, a feed of events."""

    def __init__(self, running: Cloud) -> None:
        self.cloud = running
        self.client = running.client
        self.store = running.books
        self.answers: list[Message] = []
        self.listed: list[HostHolds] = []
        self.heard: list[Message] = []

    async def order(self, *orders: Message) -> None:
        conductor = self.cloud.conductors_in["c1"]
        await asyncio.gather(*(conductor.publisher.send(each) for each in orders))

    async def on_answers(self, answers: Sequence[Received[Message]], _: None) -> list[Said]:
        self.answers += [each.message for each in answers]
        return []

    async def on_lists(self, lists: Sequence[Received[HostHolds]], _: None) -> list[Said]:
        self.listed += [each.message for each in lists]
        return []

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield

    async def providers(self) -> dict[str, ProviderState]:
        return {each.name: each for each in (await self.store.snapshot_page(0, 10_000)).providers}

    async def until_providers(self, holds: Callable[[dict[str, ProviderState]], bool]) -> None:
        await until(self.providers, "placement has them", holds)

    def facts(self) -> dict[str, HostFacts]:
        """The latest facts of each host."""
        reported = [each for each in self.heard if isinstance(each, HostsReported)]
        return {facts.name: facts for each in reported for facts in each.hosts}

    def beats(self) -> list[frozenset[ProviderId]]:
        return [frozenset(each.hosts) for each in self.heard if isinstance(each, HostsAlive)]

    def computing(
        self,
        hosts: Sequence[SimulatedHost],
        faults: FaultScript | None = None,
        settings: ComputeSettings = COMPUTING,
        store: Any = None,
        *,
        clock: Clock[float] | None = None,
    ) -> AbstractAsyncContextManager[Station]:
        """With a `clock`, faults begin and end and builds last by that clock, which only the test moves."""
        script = faults or FaultScript(spawn_ms=5)
        held = [] if clock is None else [HeldDriver(SimulatedDriver(host, script), clock) for host in hosts]
        return self.cloud.computes(hosts, script, settings, drivers=held, store=store)


@asynccontextmanager
async def compute_setup(bus: str, pace: FeedPace = SETTLED) -> AsyncIterator[ComputeSetup]:
    events = "host.#", "providers.changed", "inventory.refused.*"
    async with cloud(bus, "memory", scripted=()) as running, running.placement(pace=pace):
        setup = ComputeSetup(running)
        kinds = (InstanceSpawned, SpawnFailed, InstanceStopped, InstanceDestroyed, HostsNotHere)
        handlers: Handlers = {**dict.fromkeys(kinds, setup.on_answers), HostHolds: setup.on_lists}
        conductor = Worker(running.conductors_in["c1"], Subscription("conductor.c1.work", handlers, setup))
        async with running.running((conductor,)), running.listening(*events) as setup.heard:
            yield setup


def about(kind: type[M], number: int, host: str, /, **fields: Any) -> M:
    """A message about the first attempt of this instance, on this host."""
    return kind(cell="c1", instance=ConsumerId(UUID(int=number)), attempt=1, host=root_of(host), **fields)


def spawn(number: int, host: str) -> SpawnInstance:
    amount = ResourceAmount(provider=root_of(host), resource="VCPU", amount=1)
    share = Share(host=root_of(host), amounts=(amount,))
    return about(SpawnInstance, number, host, flavor=Flavor(name="small", vcpus=1), share=share)


destroy, spawned = partial(about, DestroyInstance), partial(about, InstanceSpawned)
gone = partial(about, InstanceDestroyed)


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


@pytest.mark.hits("a build waits: its host builds as many as it may")
@BUSES
async def test_builds_beyond_the_limit_of_a_host_wait_for_their_turn_and_may_be_deleted_meanwhile(
    bus: str,
) -> None:
    host, other, clock = "c1-host-00001", "c1-host-00002", Clock(0.0)
    limited = structs.replace(COMPUTING, builds_at_once_max=2)
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
        clock.pass_s(0.3)
        await until(lambda: len(setup.answers) == 4)
        assert set(setup.answers[1:]) == {spawned(1, host), spawned(2, host), spawned(9, other)}
        # One that is deleted while it is built makes room, too.
        await setup.order(spawn(6, host), destroy(3, host))
        await until(lambda: setup.answers[4:] == [gone(3, host)])
        clock.pass_s(0.3)
        await until(lambda: len(setup.answers) == 7)
        assert set(setup.answers[5:]) == {spawned(5, host), spawned(6, host)}


async def test_builds_that_fail_make_room_for_those_that_wait() -> None:
    host, script = "c1-host-00001", FaultScript(spawn_ms=1, faults=(FailsToBuild(reason="no image"),))
    one_at_once = structs.replace(COMPUTING, builds_at_once_max=1)
    async with compute_setup("memory") as setup, setup.computing(equal_hosts("c1", 1), script, one_at_once):
        await setup.order(*[spawn(number, host) for number in range(5)])
        await until(lambda: len(setup.answers) == 5)

        assert {each.reason for each in setup.answers if isinstance(each, SpawnFailed)} == {"no image"}


@BUSES
async def test_only_changes_are_reported_and_an_operators_settings_survive(bus: str) -> None:
    change = Changes(hosts=("*-00001",), after_s=0.4, vcpus=-8, traits_gained=("CUSTOM_WARM",))
    hosts, clock = equal_hosts("c1", 3, HostSize(vcpus=16)), Clock(0.0)
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
            answer = await setup.cloud.ask(
                ReportInventory(cell="c1", root=root_of("c1-host-00001"), providers=(device,)), ReportAnswered
            )
            assert isinstance(answer.verdict, ReportAccepted)
            clock.pass_s(0.4)
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
        assert (await setup.providers())["c1-host-00002"].shape == after["c1-host-00002"].shape


async def test_an_unconfirmed_answer_is_sent_by_the_next_process_after_a_kill() -> None:
    host = "c1-host-00001"
    clock_s = asyncio.get_running_loop().time
    async with compute_setup("memory") as setup, open_again("sqlite", clock_s) as again:
        killed, clock, slow = await again("c1"), Clock(0.0), FaultScript(spawn_ms=200)
        async with setup.computing(equal_hosts("c1", 1), slow, store=killed, clock=clock):
            await setup.order(spawn(1, host))
            await _until_it_has(killed, host, Load(instances=1, io_ops=1))
            await setup.cloud.brokers.api.set_alarm(on=True)
            clock.pass_s(0.2)
            await _until_it_has(killed, host, Load(instances=1, io_ops=0))
            # The rows of unconfirmed answers are all that a killed process leaves behind.
            left = await again("c1")
            # Closed properly; a test cannot kill a process inside itself.
            await setup.cloud.brokers.api.set_alarm(on=False)
            await until(lambda: setup.answers == [spawned(1, host)])
        setup.answers.clear()

        async with setup.computing(equal_hosts("c1", 1), store=left):
            await until(lambda: setup.answers == [spawned(1, host)])
            # A host lists what it has when its compute starts.
            has = (HeldAttempt(instance=ConsumerId(UUID(int=1)), attempt=1),)
            await until(lambda: [each.attempts for each in setup.listed] == [has])
            # Of several pages, a later one has all that is behind the one before it.
            behind = ConsumerId(UUID(int=0))
            await setup.order(CheckHost(cell="c1", host=root_of(host), number=2, after=behind))
            await until(lambda: [each.attempts for each in setup.listed] == [has, has])


@pytest.mark.parametrize(
    "database",
    [
        True,
        pytest.param(
            False, marks=pytest.mark.hits("a host refuses an order: it has a later one, or no such attempt")
        ),
    ],
)
async def test_simulated_guests_outlive_their_process_in_a_database_and_end_with_it_in_memory(
    *, database: bool, tmp_path: Path
) -> None:
    host = "c1-host-00001"
    url = f"sqlite+aiosqlite:///{tmp_path}/guests.db" if database else ""
    environment = {"MOOR_CELL": "c1", "MOOR_COMPUTE_HOSTS": "1", "MOOR_DB_URL": url}
    async with compute_setup("memory") as setup:
        async with _a_compute(setup, environment):
            await setup.order(spawn(1, host))
            await until(lambda: setup.answers == [spawned(1, host)])
        async with _a_compute(setup, environment):
            await setup.order(about(StopInstance, 1, host, number=1, save_as="image"))
            await until(lambda: len(setup.answers) == 2)
            # Its answer was lost.
            await setup.order(about(StopInstance, 1, host, number=1, save_as="image"))
            await until(lambda: len(setup.answers) == 3)

    said = {"saved": "image"} if database else {"failure": "the host has no attempt 1 of it"}
    assert setup.answers[1:] == [about(InstanceStopped, 1, host, number=1, **said)] * 2


@asynccontextmanager
async def _a_compute(setup: ComputeSetup, environment: Mapping[str, str]) -> AsyncIterator[None]:
    """The compute of the cell, as `python -m compute_sim` opens it with these variables."""
    place = setup.cloud.station("compute", cell="c1")
    opens = driver_named("simulated", environment)
    async with opens(place, COMPUTING) as parts, setup.cloud.running(parts, place):
        yield


class CountedStore(ComputeStore):
    """Counts how many attempts were looked at, and how many were saved."""

    looks = 0
    saves = 0

    async def ending(self, at_s: float, limit: int) -> Sequence[AttemptRecord]:
        found = await super().ending(at_s, limit)
        self.looks += len(found)
        return found

    async def save(self, attempts: Iterable[AttemptRecord]) -> None:
        saved = [*attempts]
        self.saves += len(saved)
        await super().save(saved)


async def test_an_attempt_is_not_written_while_its_work_goes_on() -> None:
    host, clock, store = "c1-host-00001", Clock(0.0), CountedStore(asyncio.get_running_loop().time)
    slow = FaultScript(spawn_ms=300)
    async with (
        compute_setup("memory") as setup,
        setup.computing(equal_hosts("c1", 1), slow, store=store, clock=clock),
    ):
        await setup.order(spawn(1, host))
        await until(lambda: store.looks >= 3)
        saves, looks = store.saves, store.looks
        # An order that is repeated meanwhile takes nothing from it.
        await setup.order(spawn(1, host))
        await until(lambda: store.looks >= looks + 5)
        assert store.saves == saves + 1
        clock.pass_s(0.3)

        await until(lambda: setup.answers == [spawned(1, host)])


async def _until_it_has(store: SqlComputeStore, host: str, load: Load) -> None:
    root = root_of(host)
    await until(lambda: store.loads([root]), f"{host} has {load}", lambda found: found[root] == load)


@pytest.mark.hits(
    "there are orders for hosts that this compute does not have, which wait until it has them or they are set dead: %s"
)
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
        async with connected(setup.cloud.brokers.api.broker()) as connection:
            assert await connection.depth(DEAD_QUEUE) == 0
