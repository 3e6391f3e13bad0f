"""A Nova of a few computes: our placement, our scheduler in the place of Nova's, and a real RabbitMQ that is Nova's own."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from urllib.parse import quote, urlsplit
from uuid import UUID, uuid4, uuid5

from msgspec import structs

from bus.clock import now
from bus.message import AggregateId, ConsumerId, Message
from bus.messages.administration import (
    AskConsumer,
    ConsumerAllocations,
    ConsumerFound,
    CreateProvider,
    Done,
    ProviderWritten,
    SetAllocations,
    SetInventories,
    WriteAnswered,
)
from bus.messages.placement import ReportedInventory, ResourceAmount
from bus.operating.health import About, Health
from bus.operating.metrics import Metrics
from bus.rabbit import RabbitBroker
from bus.workers.link import Link
from bus.workers.station import Station
from scheduler_worker.core.choosing.plugins import Plugins
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.nova.cloud.values import (
    CloudAggregate,
    CloudCell,
    ComputeService,
    NovaCloud,
    services_by_host,
    zoned,
)
from scheduler_worker.nova.selection import ComputeNode
from scheduler_worker.nova_worker.settings import NovaSchedulerSettings
from scheduler_worker.nova_worker.wiring import (
    PlacementSide,
    bury_on_bus,
    nova_parts,
    placement_on_bus,
)
from tests.contracts.rabbitmq_under_test import URL_VARIABLE, RabbitMQUnderTest
from tests.contracts.stage import SETTINGS
from tests.stories.cloud import NAMES, QUICK, Cloud, cloud_on, host_id, wait_until
from tests.stories.layouts import layout
from tests.stories.nova.conductor import Conductor, conductor
from tests.unit.nova.recorded import args_of

_SPEC = args_of()["spec_obj"]["nova_object.data"]
PROJECT, USER = str(_SPEC["project_id"]), str(_SPEC["user_id"])
FIRST, SECOND = UUID(int=0xC1), UUID(int=0xC2)


class KnownNova:
    """What Nova is known to be; a test replaces it. When all of Nova is to be read again, `unread` becomes known."""

    def __init__(self, cloud: NovaCloud | None) -> None:
        self.cloud = cloud
        self.unread: NovaCloud | None = None

    def read_soon(self) -> None:
        if self.unread is not None:
            self.cloud = self.unread


def a_node(name: str, cell: UUID = FIRST) -> ComputeNode:
    return ComputeNode(id=host_id(name), service=name, name=name, cell=cell)


def a_nova(nodes: Sequence[ComputeNode], aggregates: Sequence[CloudAggregate] = ()) -> NovaCloud:
    services = {
        uuid5(NAMES, f"service {each.service}"): ComputeService(
            id=uuid5(NAMES, f"service {each.service}"), host=each.service, is_up=True
        )
        for each in nodes
    }
    return zoned(
        NovaCloud(
            nodes={each.id: each for each in nodes},
            services=services,
            aggregates={each.id: each for each in aggregates},
            cells={FIRST: CloudCell(FIRST, "cell1"), SECOND: CloudCell(SECOND, "cell2")},
        )
    )


def with_service(cloud: NovaCloud, host: str, **fields: object) -> NovaCloud:
    service = services_by_host(cloud)[host.lower()]
    return structs.replace(cloud, services={**cloud.services, service.id: structs.replace(service, **fields)})


class NovaWorld:
    def __init__(self, cloud: Cloud, broker: RabbitMQUnderTest, conductor: Conductor) -> None:
        self.cloud = cloud
        self.broker = broker
        self.conductor = conductor
        self.known = KnownNova(None)
        self.placement = AsyncExitStack()

    async def add(self, *names: str, cell: UUID = FIRST, vcpu: int = 8) -> None:
        """Computes write their providers to placement, as Nova's do over HTTP."""
        for name in names:
            await self.write(CreateProvider(id=host_id(name), name=name))
            await self.write(
                SetInventories(
                    provider=host_id(name),
                    generation=0,
                    inventories={
                        "VCPU": ReportedInventory(total=vcpu),
                        "MEMORY_MB": ReportedInventory(total=65536),
                        "DISK_GB": ReportedInventory(total=1000),
                    },
                )
            )
        nodes = [] if self.known.cloud is None else [*self.known.cloud.nodes.values()]
        self.known.cloud = a_nova([*nodes, *[a_node(name, cell) for name in names]])

    async def add_device(self, host: str, address: str, resource: str, total: int = 1) -> None:
        """A device below the root provider of a compute, as nova-compute writes it with PCI in placement."""
        id_ = host_id(f"{host}_{address}")
        await self.write(CreateProvider(id=id_, name=f"{host}_{address}", parent=host_id(host)))
        inventories = {resource: ReportedInventory(total=total)}
        await self.write(SetInventories(provider=id_, generation=0, inventories=inventories))

    async def write(self, order: Message) -> None:
        answer = await self.cloud.client.ask(order)
        assert isinstance(answer, WriteAnswered), answer
        assert isinstance(answer.verdict, Done | ProviderWritten), answer

    async def held(self, consumer: UUID) -> dict[str, dict[str, int]]:
        """What the consumer holds of each host, by the hosts' names."""
        answer = await self.cloud.client.ask(AskConsumer(consumer=ConsumerId(consumer)))
        assert isinstance(answer, ConsumerFound)
        found: dict[str, dict[str, int]] = {}
        assert self.known.cloud is not None
        names = {id_: node.name for id_, node in self.known.cloud.nodes.items()}
        for each in () if answer.consumer is None else answer.consumer.held:
            found.setdefault(names[each.provider], {})[each.resource] = each.amount
        return found

    async def generation(self, consumer: UUID) -> int | None:
        answer = await self.cloud.client.ask(AskConsumer(consumer=ConsumerId(consumer)))
        assert isinstance(answer, ConsumerFound)
        return None if answer.consumer is None else answer.consumer.generation

    async def allocate(
        self, consumers: dict[UUID, dict[str, dict[str, int]]], kind: str = "INSTANCE"
    ) -> None:
        """Write what these consumers hold in all, as Nova does: by their generations."""
        written = tuple(
            [
                ConsumerAllocations(
                    consumer=ConsumerId(consumer),
                    amounts=tuple(
                        ResourceAmount(provider=host_id(host), resource=resource, amount=amount)
                        for host, amounts in held.items()
                        for resource, amount in amounts.items()
                    ),
                    project=PROJECT,
                    user=USER,
                    generation=await self.generation(consumer),
                    type=kind,
                )
                for consumer, held in consumers.items()
            ]
        )
        await self.write(SetAllocations(consumers=written))

    @asynccontextmanager
    async def scheduler(
        self, settings: NovaSchedulerSettings | None = None, name: str = "nova-scheduler"
    ) -> AsyncIterator[Callable[[], str]]:
        """A scheduler. Yields its page of metrics."""
        station = Station(self.cloud.brokers.at_api("nova-scheduler"), name, settings=SETTINGS, asks=True)
        link = Link(self.broker_of_nova(), SETTINGS, name="Nova")
        settings = settings or NovaSchedulerSettings()
        parts = nova_parts(
            link,
            self.known,
            settings,
            QUICK,
            placement=partial(self.on_bus, station),
            bury=bury_on_bus(station, settings, now),
            look_again=self.known.read_soon,
        )
        async with self.cloud.running(parts, station):
            await wait_until(self.is_heard, "the scheduler hears Nova's queue")
            metrics = Metrics(Health(About("nova-scheduler", "0"), parts))
            yield lambda: metrics.page().decode()
        await link.close()

    @asynccontextmanager
    async def dying_scheduler(self) -> AsyncIterator[None]:
        """A scheduler that dies at the end, without a word to anybody."""
        station = Station(self.cloud.brokers.at_api("nova-scheduler"), "dies", settings=SETTINGS, asks=True)
        link = Link(self.broker_of_nova(), SETTINGS, name="Nova")
        (staged,) = nova_parts(
            link,
            self.known,
            NovaSchedulerSettings(reply_retry_s=60),
            QUICK,
            placement=partial(self.on_bus, station),
        )
        running = asyncio.create_task(staged.run())
        await wait_until(self.is_heard, "the scheduler hears Nova's queue")
        yield
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await link.close()
        await station.close()

    @staticmethod
    def on_bus(station: Station, picture: Picture, plugins: Plugins, chance: random.Random) -> PlacementSide:
        return placement_on_bus(station, picture, plugins, QUICK, chance)

    @asynccontextmanager
    async def without_placement(self) -> AsyncIterator[None]:
        await self.placement.aclose()
        yield
        await self.placement.enter_async_context(self.cloud.placement())

    async def cut_scheduler_off(self) -> None:
        """Break the connections to Nova's broker, as a network does, and wait until the scheduler is back."""
        await self.broker.unplug()
        await self.broker.plug_in()
        await wait_until(self.is_heard, "the scheduler hears Nova's queue again")

    def broker_of_nova(self) -> RabbitBroker:
        broker = self.broker.broker()
        assert isinstance(broker, RabbitBroker)
        return broker

    async def is_heard(self, queue: str = "scheduler") -> bool:
        connection = await self.broker_of_nova().connect()
        try:
            return await connection.consumers(queue) > 0
        except Exception:  # noqa: BLE001 - there is no such queue yet
            return False
        finally:
            await connection.close()


@asynccontextmanager
async def nova_world(books: str = "memory") -> AsyncIterator[NovaWorld]:
    """Each role has a user of its own with its rights on our broker, which is in memory."""
    async with AsyncExitStack() as stack:
        brokers = await stack.enter_async_context(layout("memory, a broker a cell"))
        cloud = await stack.enter_async_context(cloud_on(brokers, books))
        broker = await RabbitMQUnderTest.start()
        stack.push_async_callback(broker.close)
        # The conductor is not cut off when the scheduler is.
        server = urlsplit(os.environ[URL_VARIABLE])
        direct = server._replace(path="/" + quote(broker.virtual_host, safe="")).geturl()
        caller = await stack.enter_async_context(conductor(direct))
        world = NovaWorld(cloud, broker, caller)
        async with world.placement:
            await world.placement.enter_async_context(cloud.placement())
            yield world


def aggregate(name: str, hosts: Sequence[str], **metadata: str) -> CloudAggregate:
    id_ = AggregateId(uuid5(NAMES, f"aggregate {name}"))
    return CloudAggregate(id=id_, name=name, hosts=tuple(hosts), metadata=metadata)


def an_instance() -> UUID:
    return uuid4()
