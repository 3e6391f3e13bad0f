"""A placement as httpx's way to a server, OpenStack's in a process of its own or ours; and what computes and conductors write there."""

import atexit
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import Any
from uuid import UUID

import httpx

from tests.api.whole_app import ToHere, server_over
from tests.conformance.upstream import Upstream
from tests.contracts.stores import open_store


@asynccontextmanager
async def a_placement(kind: str) -> AsyncIterator[httpx.AsyncBaseTransport]:
    """ "OpenStack's" or "ours"."""
    if kind == "OpenStack's":
        upstream = _upstream()
        upstream.wipe()
        yield ToHere(upstream.url)
        return
    async with open_store("memory") as store, server_over(store) as server:
        yield server.client._transport  # noqa: SLF001 - httpx has no other way to share it


@cache
def _upstream() -> Upstream:
    """One for all tests of this process: it takes seconds to start."""
    upstream = Upstream()
    atexit.register(upstream.__exit__)
    return upstream


EIGHT: Mapping[str, int] = {"VCPU": 8}


class PlacementWriter:
    """Writes to a placement as Nova's computes and conductors do."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        headers = {"X-Auth-Token": "admin", "OpenStack-API-Version": "placement 1.36"}
        self.client = httpx.AsyncClient(transport=transport, base_url="http://placement", headers=headers)

    async def done(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        answer = await self.client.request(method, path, json=body)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else {}

    async def add_provider(
        self,
        id_: UUID,
        name: str,
        totals: Mapping[str, int] = EIGHT,
        *traits: str,
        below: UUID | None = None,
    ) -> None:
        parent = {} if below is None else {"parent_provider_uuid": str(below)}
        await self.done("POST", "/resource_providers", {"uuid": str(id_), "name": name, **parent})
        at = f"/resource_providers/{id_}"
        stock = {resource: {"total": total} for resource, total in totals.items()}
        await self.done("PUT", f"{at}/inventories", {"resource_provider_generation": 0, "inventories": stock})
        if traits:
            await self.done("PUT", f"{at}/traits", {"resource_provider_generation": 1, "traits": traits})

    async def holds(self, consumer: UUID) -> dict[str, dict[str, int]]:
        """What the consumer holds, by provider."""
        found = (await self.done("GET", f"/allocations/{consumer}"))["allocations"]
        return {id_: each["resources"] for id_, each in found.items()}

    async def write(
        self,
        consumers: Mapping[UUID, Mapping[UUID, Mapping[str, int]]],
        *,
        project: str = "p",
        user: str = "u",
    ) -> None:
        """Write what these consumers hold in all, as Nova does: by their generations."""
        body = {}
        for consumer, held in consumers.items():
            found = await self.done("GET", f"/allocations/{consumer}")
            body[str(consumer)] = {
                "allocations": {str(id_): {"resources": amounts} for id_, amounts in held.items()},
                "project_id": project,
                "user_id": user,
                "consumer_generation": found.get("consumer_generation"),
            }
        await self.done("POST", "/allocations", body)
