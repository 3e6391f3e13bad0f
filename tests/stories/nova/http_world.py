"""A Nova of a few computes whose placement is reached over HTTP alone, OpenStack's or ours, by a line that a test breaks."""

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from urllib.parse import quote, urlsplit
from uuid import UUID

import httpx
import pytest
from msgspec import structs

from bus.broker import Broker
from bus.clock import now
from bus.operating.health import About, Health
from bus.operating.metrics import Metrics
from bus.process import run_until
from bus.rabbit import RabbitBroker
from bus.workers.link import Link
from scheduler_worker.core.choosing.plugins import Plugins
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.nova_worker.over_http.api import PlacementApi
from scheduler_worker.nova_worker.over_http.settings import NovaPlacementSettings
from scheduler_worker.nova_worker.settings import NovaSchedulerSettings
from scheduler_worker.nova_worker.wiring import PlacementSide, nova_parts, placement_over_http
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.wiring.staged import Staged
from tests.api.whole_app import server_over
from tests.contracts.rabbitmq_under_test import URL_VARIABLE, RabbitMQUnderTest
from tests.contracts.stage import SETTINGS
from tests.contracts.stores import open_store
from tests.stories.cloud import QUICK, host_id, wait_until
from tests.stories.nova.conductor import Conductor, conductor
from tests.stories.nova.nova_world import PROJECT, USER, KnownNova, a_node, a_nova
from tests.unit.nova.upstream_placement import UpstreamTransport

EACH = pytest.mark.parametrize("kind", ["OpenStack's", "ours"])
AMOUNTS = {"VCPU": 1, "MEMORY_MB": 64, "DISK_GB": 1}
POOL, NEAR = UUID(int=1), UUID(int=2)
_PLACEMENT = NovaPlacementSettings(
    url="http://placement",
    admin_token_secret="admin",  # noqa: S106 - of noauth2
    conflict_pause_s_max=0.01,
    rest_tries_max=1,
)
IMPATIENT = structs.replace(_PLACEMENT, rest_answer_s_max=0.5)

Write = Callable[[httpx.Request], bool]


def any_write(request: httpx.Request) -> bool:
    return request.method in ("PUT", "POST")


def gives_back(request: httpx.Request) -> bool:
    """Does it take something away from a consumer, so that nothing or one host is left?"""
    return request.method == "PUT" and not json.loads(request.content)["allocations"]


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
        # How many requests are on their way.
        self.held = 0
        self.lost = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await asyncio.shield(asyncio.create_task(self._carried(request)))

    async def _carried(self, request: httpx.Request) -> httpx.Response:
        if self.hangs_at is not None and self.hangs_at(request):
            self.hangs_at = None
            self.open.clear()
        self.held += 1
        await self.open.wait()
        self.held -= 1
        if self.loses_request is not None and self.loses_request(request):
            self.loses_request, self.lost = None, self.lost + 1
            raise httpx.ReadError("reset")
        answer = await self._placement.handle_async_request(request)
        if self.loses_answer is not None and self.loses_answer(request):
            self.loses_answer, self.lost = None, self.lost + 1
            raise httpx.ReadError("reset")
        return answer


class HttpNova:
    def __init__(
        self,
        placement: httpx.AsyncBaseTransport,
        broker: RabbitMQUnderTest,
        direct: RabbitBroker,
        conductor: Conductor,
    ) -> None:
        self.line = Line(placement)
        headers = {"X-Auth-Token": "admin", "OpenStack-API-Version": "placement 1.36"}
        self._client = httpx.AsyncClient(transport=placement, base_url="http://placement", headers=headers)
        self.broker = broker
        # Not cut off when `broker` is.
        self.direct = direct
        self.conductor = conductor
        self.known = KnownNova(None)
        # By how much the clock of schedulers is ahead.
        self.ahead = timedelta()

    def clock(self) -> datetime:
        return now() + self.ahead

    async def _ask(self, method: str, path: str, body: object = None) -> dict[str, object]:
        answer = await self._client.request(method, path, json=body)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else {}

    async def add(self, *names: str, pooled: bool = False, **totals: int) -> None:
        """Computes write their providers. With `pooled`, their disks are in a pool that they share."""
        sizes = {"VCPU": 8, "MEMORY_MB": 65536, "DISK_GB": 1000} | totals
        if pooled:
            await self._provider(POOL, "pool", {"DISK_GB": sizes.pop("DISK_GB")}, "MISC_SHARES_VIA_AGGREGATE")
        for name in names:
            await self._provider(host_id(name), name, sizes)
            if pooled:
                await self._near(host_id(name))
        if pooled:
            await self._near(POOL)
        nodes = [] if self.known.cloud is None else [*self.known.cloud.nodes.values()]
        self.known.cloud = a_nova([*nodes, *map(a_node, names)])

    async def _provider(self, id_: UUID, name: str, totals: Mapping[str, int], *traits: str) -> None:
        await self._ask("POST", "/resource_providers", {"uuid": str(id_), "name": name})
        at = f"/resource_providers/{id_}"
        inventories = {resource: {"total": total} for resource, total in totals.items()}
        await self._ask(
            "PUT", f"{at}/inventories", {"resource_provider_generation": 0, "inventories": inventories}
        )
        if traits:
            await self._ask("PUT", f"{at}/traits", {"resource_provider_generation": 1, "traits": traits})

    async def _near(self, id_: UUID) -> None:
        found = await self._ask("GET", f"/resource_providers/{id_}")
        body = {"resource_provider_generation": found["generation"], "aggregates": [str(NEAR)]}
        await self._ask("PUT", f"/resource_providers/{id_}/aggregates", body)

    async def held(self, consumer: UUID) -> dict[str, dict[str, int]]:
        """What the consumer holds of each host, by the hosts' names."""
        found = (await self._client.get(f"/allocations/{consumer}")).json()["allocations"]
        assert self.known.cloud is not None
        names = {str(id_): node.name for id_, node in self.known.cloud.nodes.items()} | {str(POOL): "pool"}
        return {names[id_]: each["resources"] for id_, each in found.items()}

    async def until_held(self, consumer: UUID, hosts: int) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}

        async def is_held() -> bool:
            nonlocal found
            found = await self.held(consumer)
            return len(found) == hosts

        await wait_until(is_held, f"something of {hosts} hosts is held")
        return found

    async def allocate(self, consumer: UUID, held: Mapping[str, Mapping[str, int]]) -> None:
        """Write all that this consumer holds, as Nova does."""
        found = (await self._client.get(f"/allocations/{consumer}")).json()
        ids = {name: str(POOL if name == "pool" else host_id(name)) for name in held}
        body = {
            "allocations": {ids[name]: {"resources": amounts} for name, amounts in held.items()},
            "project_id": PROJECT,
            "user_id": USER,
            "consumer_generation": found.get("consumer_generation"),
        }
        await self._ask("PUT", f"/allocations/{consumer}", body)

    def _parts(
        self,
        settings: NovaSchedulerSettings,
        choice: SchedulerSettings,
        broker: Broker,
        asking: NovaPlacementSettings,
    ) -> tuple[Staged, Link, PlacementApi]:
        link, api = Link(broker, SETTINGS, name="Nova"), PlacementApi(asking, transport=self.line)

        def placement(picture: Picture, _: Plugins, chance: random.Random) -> PlacementSide:
            return placement_over_http(api, picture, asking, chance)

        (staged,) = nova_parts(
            link,
            self.known,
            settings,
            choice,
            placement=placement,
            clock=self.clock,
            look_again=self.known.read_soon,
        )
        assert isinstance(staged, Staged)
        return staged, link, api

    @asynccontextmanager
    async def scheduler(
        self,
        settings: NovaSchedulerSettings | None = None,
        choice: SchedulerSettings = QUICK,
        *,
        asking: NovaPlacementSettings = _PLACEMENT,
        dies: bool = False,
        is_direct: bool = False,
    ) -> AsyncIterator[Callable[[], str]]:
        """A scheduler. Yields its page of metrics. If it dies, it does so at the end, without a word to anybody."""
        broker = self.direct if is_direct else self.broker.broker()
        staged, link, api = self._parts(settings or NovaSchedulerSettings(), choice, broker, asking)
        told = asyncio.Event()
        running = asyncio.create_task(staged.run() if dies else run_until(told, (staged,), 10))
        metrics = Metrics(Health(About("nova-scheduler", "0"), (staged,)))
        try:
            await self.until_heard()
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

    async def until_heard(self) -> None:
        async def is_heard() -> bool:
            connection = await self.direct.connect()
            try:
                return await connection.consumers("scheduler") > 0
            except Exception:  # noqa: BLE001 - there is no such queue yet
                return False
            finally:
                await connection.close()

        await wait_until(is_heard, "a scheduler hears Nova's queue")

    async def until_ended(self, metrics: Callable[[], str], outcome: str, count: int = 1) -> None:
        async def is_counted() -> bool:
            return f'moor_nova_calls_total{{outcome="{outcome}"}} {count}.0' in metrics()

        await wait_until(is_counted, f"{count} calls are {outcome}", metrics())


def hosts_of(said: Mapping[str, object]) -> list[str]:
    """The chosen hosts in an answer."""
    assert said["failure"] is None, said["failure"]
    result = said["result"]
    assert isinstance(result, Sequence)
    return [each[0]["nova_object.data"]["service_host"] for each in result]


@asynccontextmanager
async def http_nova(kind: str) -> AsyncIterator[HttpNova]:
    async with AsyncExitStack() as stack:
        broker = await RabbitMQUnderTest.start()
        stack.push_async_callback(broker.close)
        # The conductor is not cut off when the scheduler is.
        direct = urlsplit(os.environ[URL_VARIABLE])._replace(path="/" + quote(broker.virtual_host, safe=""))
        caller = await stack.enter_async_context(conductor(direct.geturl()))
        never_cut = RabbitBroker(direct.geturl())
        placement: httpx.AsyncBaseTransport
        if kind == "OpenStack's":
            placement = await stack.enter_async_context(UpstreamTransport())
        else:
            store = await stack.enter_async_context(open_store("memory"))
            server = await stack.enter_async_context(server_over(store))
            placement = server.client._transport  # noqa: SLF001 - httpx has no other way to share it
        yield HttpNova(placement, broker, never_cut, caller)
