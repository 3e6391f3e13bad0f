"""From a build request to a bare-metal node: real schedulers, placement and a conductor, and a scripted daemon that
answers deploys.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime

import pytest
from msgspec import structs

from bus.messages.build import BuildInstance
from bus.messages.cell import (
    DeployInstance,
    DeployProgressed,
    DestroyInstance,
    InstanceDestroyed,
    InstanceSpawned,
    SpawnFailed,
    SpawnInstance,
    UndeployInstance,
)
from bus.messages.hosts import HostsReported
from bus.messages.placement import ReportAccepted, ReportAnswered, ReportInventory
from bus.workers.consuming import Subscription
from bus.workers.handling import Received, Said, Tell
from bus.workers.station import Station
from bus.workers.worker import Worker
from cell_conductor.core.rows import Instance
from cell_conductor.settings import ConductorPace, ConductorSettings
from cell_conductor.store_sql import ConductorStore
from engine.flavors import Flavor, Image, InstanceId
from engine.hosts import NODE, HostFacts
from engine.inventories import (
    ProviderId,
    ReportedInventory,
    ReportedProvider,
)
from engine.picture.picture import Picture
from tests.contracts.conductor_stores import open_conductor_stores
from tests.contracts.stage import SETTINGS
from tests.stories.cloud import Cloud, a_build, cloud, host_id, instance_of
from tests.stories.layouts import STAGES
from tests.waiting import Clock, until

pytestmark = [pytest.mark.asyncio, STAGES]

BUILD, FAIL, SILENT = "build", "fail", "silent"
GOLD = "CUSTOM_GOLD"
METAL = Flavor(name="metal", root_gb=0, extra_specs={f"resources:{GOLD}": "1"})
IMAGE = Image(source="http://images/debian", checksum="0a1b")
PACE = ConductorPace(poll_s=0.005, look_s=1)
DEPLOY_S = ConductorSettings().deploy_timeout_s


class Daemon:
    """A scripted daemon for the nodes of the cell; it remembers which instance is on which node."""

    def __init__(self) -> None:
        self.script: dict[ProviderId, str] = {}
        self.deploys: list[DeployInstance] = []
        self.undeploys: list[UndeployInstance] = []
        self.deployed: set[ProviderId] = set()
        self.orders_to_hypervisors: list[SpawnInstance | DestroyInstance] = []

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield

    async def on_deploy(self, orders: Sequence[Received[DeployInstance]], _: None) -> Sequence[Said]:
        said: list[Said] = []
        for each in orders:
            order = each.message
            self.deploys.append(order)
            match self.script[order.host]:
                case "build":
                    self.deployed.add(order.host)
                    said += [Tell(progressed(order), each), Tell(deployed(order), each)]
                case "fail":
                    failed = SpawnFailed(
                        cell=order.cell,
                        instance=order.instance,
                        attempt=order.attempt,
                        host=order.host,
                        reason="deploy failed: no such image",
                    )
                    said += [Tell(progressed(order), each), Tell(failed, each)]
                case _:
                    self.deployed.add(order.host)
        return said

    async def on_undeploy(self, orders: Sequence[Received[UndeployInstance]], _: None) -> Sequence[Said]:
        said: list[Said] = []
        for each in orders:
            order = each.message
            self.undeploys.append(order)
            if self.script[order.host] != SILENT:
                self.deployed.discard(order.host)
                clean = InstanceDestroyed(
                    cell=order.cell, instance=order.instance, attempt=order.attempt, host=order.host
                )
                said.append(Tell(clean, each))
        return said

    async def on_order_to_a_hypervisor(
        self, orders: Sequence[Received[SpawnInstance | DestroyInstance]], _: None
    ) -> Sequence[Said]:
        self.orders_to_hypervisors += [each.message for each in orders]
        return [
            Tell(
                InstanceSpawned(
                    cell=order.cell, instance=order.instance, attempt=order.attempt, host=order.host
                ),
                each,
            )
            for each in orders
            if isinstance(order := each.message, SpawnInstance)
        ]


class MetalSetup:
    def __init__(
        self,
        running: Cloud,
        picture: Picture,
        station: Station,
        store: ConductorStore,
        clock: Clock[datetime],
    ) -> None:
        self.cloud = running
        # The scheduler's registry: only a host in it can be an alternate.
        self.picture = picture
        self.station = station
        self.store = store
        self.clock = clock
        self.daemon = Daemon()

    async def add_nodes(self, **script: str) -> None:
        """Nodes of one class, as the daemon reports them."""
        for name, what in script.items():
            self.daemon.script[host_id(name)] = what
            provider = ReportedProvider(
                id=host_id(name), name=name, inventories={GOLD: ReportedInventory(total=1)}
            )
            answer = await self.station.ask(
                ReportInventory(cell="c1", root=host_id(name), providers=(provider,), epoch=1, sequence=1)
            )
            assert isinstance(answer, ReportAnswered)
            assert isinstance(answer.verdict, ReportAccepted), answer
        facts = tuple(HostFacts(id=host_id(name), name=name, kind=NODE) for name in script)
        await self.station.publisher.send(HostsReported(cell="c1", hosts=facts, epoch=1, sequence=1))
        await self.until_seen(*script)

    async def until_seen(self, *names: str) -> None:
        hosts = {host_id(name) for name in names}
        await until(
            lambda: all(map(self.picture.has_provider, hosts)) and not hosts & {*self.picture.unregistered()},
            f"the scheduler knows {names}",
        )

    async def boot(self, number: int, *hosts: str) -> InstanceId:
        """Boot, on these hosts if any are named."""
        build = a_metal_build(number, hosts=hosts)
        await self.cloud.send(build)
        return instance_of(build)

    async def until_row(self, instance: InstanceId, state: str, attempt: int = 1) -> Instance:
        found = await until(
            lambda: self.store.read([instance]),
            f"{instance} is {state} by attempt {attempt}",
            lambda rows: [(each.state, each.attempt) for each in rows] == [(state, attempt)],
        )
        return found[0]

    async def until_free(self, *names: str) -> None:
        await until(
            self.cloud.providers,
            f"{names} are free",
            lambda found: all(found[name].inventories[GOLD].used == 0 for name in names),
        )

    async def say(self, message: InstanceSpawned | DeployProgressed) -> None:
        await self.station.publisher.send(message)


def a_metal_build(number: int, **fields: object) -> BuildInstance:
    return structs.replace(a_build(number, flavor=METAL, deadline_s=None, image=IMAGE), **fields)


def deployed(order: DeployInstance) -> InstanceSpawned:
    return InstanceSpawned(
        cell=order.cell, instance=order.instance, attempt=order.attempt, host=order.host, kind=NODE
    )


def progressed(order: DeployInstance) -> DeployProgressed:
    return DeployProgressed(
        cell=order.cell, instance=order.instance, attempt=order.attempt, host=order.host, words="deploying"
    )


@asynccontextmanager
async def metal_setup(bus: str, books: str) -> AsyncIterator[MetalSetup]:
    async with AsyncExitStack() as stack:
        setup = await stack.enter_async_context(cloud(bus, books, scripted=("c2",)))
        await stack.enter_async_context(setup.placement())
        picture = Picture()
        await stack.enter_async_context(setup.scheduler(picture=picture))
        clock = Clock(datetime.now(UTC))
        (store,) = await stack.enter_async_context(open_conductor_stores(books, ("c1",), clock))
        conducting = setup.conductor(store, name="conducting", pace=PACE, clock=clock)
        await stack.enter_async_context(conducting)
        broker = setup.brokers.below("ironic").get("c1") or setup.brokers.at_api("ironic")
        ironic = Station(broker, "ironic-1", settings=SETTINGS, asks=True)
        metal = MetalSetup(setup, picture, ironic, store, clock)
        daemon = metal.daemon
        looking_after = Worker(
            ironic,
            Subscription(
                "ironic.c1.work",
                {DeployInstance: daemon.on_deploy, UndeployInstance: daemon.on_undeploy},
                daemon,
            ),
        )
        computing = Worker(
            setup.stations_in["c1"],
            Subscription(
                "compute.c1.work",
                dict.fromkeys((SpawnInstance, DestroyInstance), daemon.on_order_to_a_hypervisor),
                daemon,
            ),
        )
        await stack.enter_async_context(setup.running((ironic, looking_after), ironic))
        await stack.enter_async_context(setup.running((computing,)))
        yield metal


async def test_a_boot_with_the_class_lands_on_a_node_and_one_without_it_never_does(
    bus: str, books: str
) -> None:
    async with metal_setup(bus, books) as metal:
        await metal.add_nodes(n1=BUILD)
        await metal.cloud.add_host("h1", vcpu=1)
        await metal.until_seen("h1")

        bare = await metal.boot(1)
        virtual = [a_build(number) for number in (2, 3)]
        await metal.cloud.send(*virtual)

        active = await metal.cloud.until_state(bare, "active")
        assert (active.host, active.cell) == ("n1", "c1")
        (deploy,) = {each.instance: each for each in metal.daemon.deploys}.values()
        assert (deploy.image, deploy.flavor) == (IMAGE, METAL)
        ended = [await metal.cloud.until_state(instance_of(each), "active", "error") for each in virtual]
        assert sorted(each.host for each in ended) == ["", "h1"]
        (refused,) = [each.no_valid_host for each in ended if each.state == "error"]
        assert refused is not None
        steps = {step.step: step.example for step in refused.steps}
        assert steps["bare metal"].startswith("n1: is a bare-metal node, only for requests that ask")
        assert {each.host for each in metal.daemon.orders_to_hypervisors} == {host_id("h1")}


async def test_a_failed_deploy_walks_to_the_alternate(bus: str, books: str) -> None:
    async with metal_setup(bus, books) as metal:
        await metal.add_nodes(n1=FAIL)
        first = await metal.boot(1)
        failed = await metal.cloud.until_state(first, "error")
        assert [each.reason for each in failed.failures] == ["deploy failed: no such image"]
        await metal.until_free("n1")

        await metal.add_nodes(n2=BUILD)
        # The scheduler may try any of them first; in the end each instance has the node that works.
        second = await metal.boot(2)
        active = await metal.cloud.until_state(second, "active")

        assert active.host == "n2"
        assert [each.host for each in active.failures] in ([], ["n1"])
        await metal.until_free("n1")


async def test_a_late_answer_of_a_superseded_attempt_is_answered_by_an_undeploy(bus: str, books: str) -> None:
    async with metal_setup(bus, books) as metal:
        await metal.add_nodes(n1=SILENT, n2=SILENT)
        instance = await metal.boot(1)
        first = await _first_deploy(metal)
        (other,) = {host_id("n1"), host_id("n2")} - {first.host}
        metal.daemon.script[other] = BUILD
        await metal.until_row(instance, "building")
        metal.clock.pass_s(DEPLOY_S)
        await metal.cloud.until_state(instance, "active")
        await until(lambda: _told(metal, first), "the silent node was told to undeploy")
        providers = await metal.cloud.providers()
        assert all(providers[name].inventories[GOLD].used == 1 for name in ("n1", "n2"))

        # The daemon reports the old attempt only now.
        metal.daemon.undeploys.clear()
        metal.daemon.script[first.host] = BUILD
        await metal.say(deployed(first))

        await until(lambda: _told(metal, first), "it was told again")
        (name,) = [each for each in ("n1", "n2") if host_id(each) == first.host]
        await metal.until_free(name)
        assert metal.daemon.deployed == {other}
        assert (await metal.until_row(instance, "active", 2)).cleanups == ()


async def _first_deploy(metal: MetalSetup) -> DeployInstance:
    return (await until(lambda: metal.daemon.deploys, "a deploy was ordered"))[0]


async def _told(metal: MetalSetup, deploy: DeployInstance) -> bool:
    return any((each.host, each.attempt) == (deploy.host, deploy.attempt) for each in metal.daemon.undeploys)
