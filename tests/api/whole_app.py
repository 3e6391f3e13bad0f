"""The whole service over a store of its own, at an address of this machine."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
from msgspec import structs

from kit.health import Listen
from placement_worker.api.auth import Authentication, BelievedToken
from placement_worker.api.policy import policy_named
from placement_worker.api.service import PlacementService, ServiceOptions
from placement_worker.store_sql import PlacementStore
from tests.contracts.stores import open_store
from tests.running import running

Version = tuple[int, int]
NEWEST = (1, 39)

HOST = "6f4ca9ef-4a3c-4ba4-9a1f-1d2b5c3a0001"
NIC = "6f4ca9ef-4a3c-4ba4-9a1f-1d2b5c3a0002"
NOBODY = "6f4ca9ef-4a3c-4ba4-9a1f-1d2b5c3a0003"
WEB = "6f4ca9ef-4a3c-4ba4-9a1f-1d2b5c3a0004"
RACK = "6f4ca9ef-4a3c-4ba4-9a1f-1d2b5c3a0005"


class Sent(NamedTuple):
    method: str
    target: str
    version: Version
    body: bytes | None = None


class ToHere(httpx.AsyncHTTPTransport):
    """Requests to any host go to this one."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._here = httpx.URL(url)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.url = request.url.copy_with(host=self._here.host, port=self._here.port)
        return await super().handle_async_request(request)


class Server:
    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self.client = client
        self.url = url

    async def answer(self, sent: Sent) -> httpx.Response:
        headers = {
            "x-auth-token": "admin",
            "openstack-api-version": "placement {}.{}".format(*sent.version),
        }
        if sent.body is not None:
            headers["content-type"] = "application/json"
        return await self.client.request(sent.method, sent.target, headers=headers, content=sent.body)

    async def ask(
        self, method: str, target: str, body: Any = None, version: Version = NEWEST
    ) -> httpx.Response:
        text = None if body is None else json.dumps(body).encode()
        return await self.answer(Sent(method, target, version, text))

    async def done(self, method: str, target: str, body: Any = None, version: Version = NEWEST) -> Any:
        """The body of a successful answer, if it has one."""
        answer = await self.ask(method, target, body, version)
        assert answer.is_success, f"{method} {target}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    async def reason(
        self, method: str, target: str, body: Any = None, version: Version = NEWEST
    ) -> tuple[int, str]:
        """The status and the reason of a refusal, as the `openstack` client prints it."""
        answer = await self.ask(method, target, body, version)
        (error,) = answer.json()["errors"]
        return answer.status_code, error["detail"].split("\n")[-1]

    async def fill(self) -> None:
        """A host with a network card, and a consumer that holds some of it."""
        await self.done("POST", "/resource_providers", {"name": "host", "uuid": HOST})
        nic = {"name": "nic", "uuid": NIC, "parent_provider_uuid": HOST}
        await self.done("POST", "/resource_providers", nic)
        inventories = {"VCPU": {"total": 8}, "DISK_GB": {"total": 9}}
        await self.done(
            "PUT",
            f"/resource_providers/{HOST}/inventories",
            {"resource_provider_generation": 0, "inventories": inventories},
        )
        await self.done("PUT", f"/allocations/{WEB}", an_allocation(VCPU=1))


def an_allocation(generation: int | None = None, **amounts: int) -> dict[str, Any]:
    """The body of a write of a consumer's allocations on the host."""
    return {
        "allocations": {HOST: {"resources": amounts}} if amounts else {},
        "project_id": "shop",
        "user_id": "ann",
        "consumer_generation": generation,
        "consumer_type": "INSTANCE",
    }


@asynccontextmanager
async def a_server(kind: str = "memory", **options: Any) -> AsyncIterator[Server]:
    """It has the host and the consumer of `fill`; by these options of the service."""
    async with open_store(kind) as store, server_over(store, **options) as server:
        await server.fill()
        yield server


@asynccontextmanager
async def server_over(
    store: PlacementStore, policy: str = "open", auth: Authentication | None = None, **options: Any
) -> AsyncIterator[Server]:
    serving = structs.replace(
        ServiceOptions(Listen("127.0.0.1", 0), auth or BelievedToken(), policy_named(policy)), **options
    )
    service = PlacementService(store, serving)
    transport = ToHere(service.url)
    async with (
        running((service,)),
        httpx.AsyncClient(base_url="http://placement", transport=transport, timeout=60) as client,
    ):
        yield Server(client, service.url)
