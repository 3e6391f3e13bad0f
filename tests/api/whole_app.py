"""The whole application over a store of its own, called without a socket."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import httpx

from engine.candidates.budget import DEFAULT_LIMITS, SearchLimits
from placement_worker.admin_writes import WriteBatcher
from placement_worker.api.auth import BelievedToken
from placement_worker.api.policy import policy_named
from placement_worker.api.routes import routes_of
from placement_worker.api.service import PlacementApp
from placement_worker.api.values import NEWEST, Version, version_text
from placement_worker.store import PlacementStore
from placement_worker.view import ProviderView
from placement_worker.wiring import STANDARD
from tests.contracts.stores import open_store

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


class Server:
    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def answer(self, sent: Sent) -> httpx.Response:
        headers = {
            "x-auth-token": "admin",
            "openstack-api-version": f"placement {version_text(sent.version)}",
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
async def a_server(kind: str, limits: SearchLimits = DEFAULT_LIMITS) -> AsyncIterator[Server]:
    async with open_store(kind) as store, server_over(store, limits=limits) as server:
        await server.fill()
        yield server


@asynccontextmanager
async def server_over(
    store: PlacementStore, policy: str = "open", limits: SearchLimits = DEFAULT_LIMITS
) -> AsyncIterator[Server]:
    desk, view = WriteBatcher(store, STANDARD, lambda: datetime.now(UTC)), ProviderView(store)
    routes = routes_of(desk, view, store, STANDARD, limits)
    app = PlacementApp(routes, BelievedToken(), policy_named(policy))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://placement") as client:
        yield Server(client)
        await view.close()
        await desk.close()
