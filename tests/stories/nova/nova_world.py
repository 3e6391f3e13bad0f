"""A Nova of a few computes: our scheduler in the place of Nova's, a real RabbitMQ that is Nova's own, and a placement over HTTP, OpenStack's
or ours, by a line that a test breaks.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import UUID, uuid4, uuid5

import httpx
import pytest
from msgspec import structs

from bus.rabbit import RabbitBroker
from bus.workers.sending import Link
from kit.health import About, Health
from kit.health_server import Metrics
from kit.keystone import OpenStackSettings
from kit.process import Part, run_until
from kit.rest import RestLimits
from nova_bridge.cloud import CloudAggregate, CloudCell, ComputeService, NovaCloud, services_by_host, zoned
from nova_bridge.cloud_reading import NovaCloudKeeper
from nova_bridge.placement_api import PlacementApi
from nova_bridge.selection import ComputeNode
from nova_bridge.serving import ServingLimits
from nova_bridge.settings import NovaSettings
from nova_bridge.wiring import nova_parts
from scheduler_worker.settings import SchedulerSettings
from tests.contracts.rabbitmq_under_test import URL_VARIABLE, RabbitMQUnderTest
from tests.contracts.stage import SETTINGS
from tests.narrowing import must_be, present
from tests.stories.cloud import QUICK
from tests.stories.nova.conductor import Conductor, conductor
from tests.stories.scripted import NAMES, host_id
from tests.unit.nova.recorded import args_of
from tests.unit.nova.upstream_placement import PlacementWriter, a_placement
from tests.waiting import MovedClock, until

EACH = pytest.mark.parametrize("kind", [pytest.param("OpenStack's", marks=pytest.mark.proof), "ours"])
AMOUNTS = {"VCPU": 1, "MEMORY_MB": 64, "DISK_GB": 1}
POOL, NEAR = UUID(int=1), UUID(int=2)
FIRST, SECOND = UUID(int=0xC1), UUID(int=0xC2)
_SPEC = args_of()["spec_obj"]["nova_object.data"]
PROJECT, USER = str(_SPEC["project_id"]), str(_SPEC["user_id"])
ONCE = RestLimits(tries_max=1)
IMPATIENT = RestLimits(tries_max=1, answer_s_max=0.5)

Write = Callable[[httpx.Request], bool]


def any_write(request: httpx.Request) -> bool:
    return request.method in ("PUT", "POST")


def gives_back(request: httpx.Request) -> bool:
    """Does it take something away from a consumer, so that nothing or one host is left?"""
    return request.method == "PUT" and not json.loads(request.content)["allocations"]


class KnownNova(NovaCloudKeeper):
    """What Nova is known to be; a test replaces it. When all of Nova is to be read again, `unread` becomes known."""

    cloud: NovaCloud | None = None

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


class Line(httpx.AsyncBaseTransport):
    """The way to placement. While it is not `open`, requests arrive there late: a client that does not wait gets no answer."""

    def __init__(self, placement: httpx.AsyncBaseTransport) -> None:
        self._placement = placement
        self.open = asyncio.Event()
        self.open.set()
        # The next request of which this is true is lost, or its answer.
        self.loses_request: Write | None = None
        self.loses_answer: Write | None = None
        # From the next request on of which this is true, it is not open.
        self.hangs_at: Write | None = None
        # While it is, all requests fail.
        self.is_cut = False
        # How many requests are on their way, and how many writes among them.
        self.held = self.writes_held = 0
        self.lost = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await asyncio.shield(asyncio.create_task(self._carried(request)))

    async def _carried(self, request: httpx.Request) -> httpx.Response:
        # As noauth2 wants it.
        request.headers.setdefault("X-Auth-Token", "admin")
        if self.is_cut:
            raise httpx.ConnectError("refused")
        if self.hangs_at is not None and self.hangs_at(request):
            self.hangs_at = None
            self.open.clear()
        self.held += 1
        self.writes_held += any_write(request)
        await self.open.wait()
        self.held -= 1
        self.writes_held -= any_write(request)
        if self.loses_request is not None and self.loses_request(request):
            self.loses_request, self.lost = None, self.lost + 1
            raise httpx.ReadError("reset")
        answer = await self._placement.handle_async_request(request)
        # An answer that nobody reads would keep its connection open: one that is lost, or that comes too late.
        await answer.aread()
        if self.loses_answer is not None and self.loses_answer(request):
            self.loses_answer, self.lost = None, self.lost + 1
            raise httpx.ReadError("reset")
        return answer


class NovaWorld(PlacementWriter):
    def __init__(
        self,
        placement: httpx.AsyncBaseTransport,
        broker: RabbitMQUnderTest,
        direct: RabbitBroker,
        conductor: Conductor,
    ) -> None:
        self.line = Line(placement)
        super().__init__(placement)
        self.broker = broker
        # Not cut off when `broker` is.
        self.direct = direct
        self.conductor = conductor
        self.known = KnownNova(None)
        # That of schedulers.
        self.clock = MovedClock()

    async def add(self, *names: str, pooled: bool = False, cell: UUID = FIRST, **totals: int) -> None:
        """Computes write their providers. With `pooled`, their disks are in a pool that they share."""
        sizes = {"VCPU": 8, "MEMORY_MB": 65536, "DISK_GB": 1000} | totals
        if pooled:
            await self.add_provider(
                POOL, "pool", {"DISK_GB": sizes.pop("DISK_GB")}, "MISC_SHARES_VIA_AGGREGATE"
            )
        for name in names:
            await self.add_provider(host_id(name), name, sizes)
            if pooled:
                await self._near(host_id(name))
        if pooled:
            await self._near(POOL)
        nodes = [] if self.known.cloud is None else [*self.known.cloud.nodes.values()]
        self.known.cloud = a_nova([*nodes, *[a_node(name, cell) for name in names]])

    async def add_device(self, host: str, address: str, resource: str, total: int = 1) -> None:
        """A device below the root provider of a compute, as nova-compute writes it with PCI in placement."""
        name = f"{host}_{address}"
        await self.add_provider(host_id(name), name, {resource: total}, below=host_id(host))

    async def _near(self, id_: UUID) -> None:
        found = await self.done("GET", f"/resource_providers/{id_}")
        await self.done(
            "PUT",
            f"/resource_providers/{id_}/aggregates",
            {"resource_provider_generation": found["generation"], "aggregates": [str(NEAR)]},
        )

    def set_service(self, host: str, **fields: object) -> None:
        """Nova tells this of the service of a host."""
        assert self.known.cloud is not None
        service = services_by_host(self.known.cloud)[host.lower()]
        services = {**self.known.cloud.services, service.id: structs.replace(service, **fields)}
        self.known.cloud = structs.replace(self.known.cloud, services=services)

    async def held(self, consumer: UUID) -> dict[str, dict[str, int]]:
        """What the consumer holds of each host, by the hosts' names."""
        names = {str(id_): node.name for id_, node in present(self.known.cloud).nodes.items()} | {
            str(POOL): "pool"
        }
        return {names[id_]: amounts for id_, amounts in (await self.holds(consumer)).items()}

    async def until_held(self, consumer: UUID, hosts: int) -> dict[str, dict[str, int]]:
        return await until(
            lambda: self.held(consumer),
            f"something of {hosts} hosts is held",
            lambda found: len(found) == hosts,
        )

    async def allocate(self, consumers: Mapping[UUID, Mapping[str, Mapping[str, int]]]) -> None:
        """Write what these consumers hold in all, by the hosts' names."""
        await self.write(
            {
                consumer: {POOL if name == "pool" else host_id(name): each for name, each in held.items()}
                for consumer, held in consumers.items()
            },
            project=PROJECT,
            user=USER,
        )

    @asynccontextmanager
    async def scheduler(
        self,
        limits: ServingLimits | None = None,
        choice: SchedulerSettings = QUICK,
        *,
        asking: RestLimits = ONCE,
        dies: bool = False,
        is_direct: bool = False,
    ) -> AsyncIterator[Callable[[], str]]:
        """A scheduler. Yields its page of metrics. If it dies, it does so at the end, without a word to anybody."""
        link = Link(self.direct if is_direct else self.broker.broker(), SETTINGS, name="Nova")
        api = PlacementApi("http://placement", OpenStackSettings(), limits=asking, transport=self.line)
        parts = nova_parts(
            link,
            self.known,
            NovaSettings(),
            choice,
            api=api,
            limits=limits,
            clock=self.clock,
            look_again=self.known.read_soon,
        )
        async with self.running(parts, link, api, dies=dies) as page:
            await self.until_heard()
            yield page

    @asynccontextmanager
    async def running(
        self, parts: Sequence[Part], link: Link, api: PlacementApi, *, dies: bool = False
    ) -> AsyncIterator[Callable[[], str]]:
        """Runs these parts. Yields their page of metrics."""
        told = asyncio.Event()
        running = asyncio.create_task(parts[0].run() if dies else run_until(told, tuple(parts), 10))
        metrics = Metrics(Health(About("nova-scheduler", "0"), tuple(parts)))
        try:
            yield lambda: metrics.page().decode()
        finally:
            if dies:
                running.cancel()
            told.set()
            await asyncio.wait((running,))
            await link.close()
            await api.close()
        if not dies:
            running.result()

    @asynccontextmanager
    async def without_placement(self) -> AsyncIterator[None]:
        self.line.is_cut = True
        yield
        self.line.is_cut = False

    async def until_heard(self, queue: str = "scheduler", by: int = 1) -> None:
        async def is_heard() -> bool:
            connection = await self.direct.connect()
            try:
                return await connection.consumers(queue) >= by
            except Exception:  # noqa: BLE001 - there is no such queue yet
                return False
            finally:
                await connection.close()

        await until(is_heard, f"{by} schedulers hear {queue}")

    async def until_ended(self, metrics: Callable[[], str], outcome: str, count: int = 1) -> None:
        line = f'moor_nova_calls_total{{outcome="{outcome}"}} {count}.0'
        await until(metrics, line, lambda page: line in page)


@asynccontextmanager
async def scheduled(*hosts: str, kind: str = "ours", **totals: Any) -> AsyncIterator[NovaWorld]:
    """A Nova with these computes, and our scheduler at work there."""
    async with nova_world(kind) as world:
        await world.add(*hosts, **totals)
        async with world.scheduler():
            yield world


def hosts_of(said: Mapping[str, object]) -> list[str]:
    """The chosen hosts in an answer."""
    assert said["failure"] is None, said["failure"]
    result = must_be(list, said["result"])
    return [each[0]["nova_object.data"]["service_host"] for each in result]


@asynccontextmanager
async def nova_world(kind: str = "ours") -> AsyncIterator[NovaWorld]:
    async with AsyncExitStack() as stack:
        broker = await RabbitMQUnderTest.start()
        stack.push_async_callback(broker.close)
        # The conductor is not cut off when the scheduler is.
        direct = urlsplit(os.environ[URL_VARIABLE])._replace(path="/" + quote(broker.virtual_host, safe=""))
        caller = await stack.enter_async_context(conductor(direct.geturl()))
        placement = await stack.enter_async_context(a_placement(kind))
        yield NovaWorld(placement, broker, RabbitBroker(direct.geturl()), caller)


def an_instance() -> UUID:
    return uuid4()
