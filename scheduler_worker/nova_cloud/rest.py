"""Nova's compute API over HTTP.

The API is asked at microversion 2.69, which every Nova since Stein has. At this version it also names what it cannot say: hosts and servers
whose cell does not answer. A single migration can be asked for by its id only before 2.59.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

import httpx
from msgspec import Struct

from bus.errors import VersionNotOffered, WrongAnswer
from bus.rest.answers import NOT_FOUND, RestAnswer, marker_of
from bus.rest.client import RestClient
from bus.rest.login import RestService
from scheduler_worker.nova.cloud.answers import (
    ComputeNodeRead,
    ServerSeen,
    ServicesRead,
    aggregates_in,
    hypervisors_in,
    ids_in,
    next_of,
    server_in,
    services_in,
)
from scheduler_worker.nova.cloud.values import CloudAggregate
from scheduler_worker.nova.refusals import RefusedError
from scheduler_worker.nova_cloud.settings import NOVA_CLOUD, NovaCloudSettings

T = TypeVar("T")

# Nova's default max_limit; a lower one of Nova's counts.
PAGE = 1000

NOVA_API = RestService(
    name="Nova",
    section=NOVA_CLOUD,
    url_key="nova_cloud.url",
    types=("compute",),
    version=r"/v2(\.1)?(/[^/]+)?",
)
VERSION_HEADER = "OpenStack-API-Version"
VERSION, VERSION_OF_MIGRATIONS_BY_ID = "2.69", "2.58"
_BY_ID = {VERSION_HEADER: f"compute {VERSION_OF_MIGRATIONS_BY_ID}"}


class IdsPage(Struct, frozen=True):
    """Ids of servers or migrations. `is_partial`: a cell does not answer, and may have others."""

    ids: tuple[UUID, ...]
    is_partial: bool = False


class _NovaVersion:
    headers: Mapping[str, str] = {VERSION_HEADER: f"compute {VERSION}"}

    def refused(self, answer: RestAnswer, name: str) -> str:
        raise VersionNotOffered(f"{name} does not take version {VERSION}: {answer.message}")


class NovaApi:
    """A client of Nova's compute API. `transport` is httpx's way to the servers, for tests. Raises BadSetting if the settings cannot
    log in.
    """

    def __init__(
        self, settings: NovaCloudSettings, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._client = RestClient(NOVA_API, settings.url, settings, _NovaVersion(), transport=transport)

    @property
    def name(self) -> str:
        return self._client.name

    async def close(self) -> None:
        await self._client.close()

    async def services(self) -> ServicesRead:
        return self._read(await self._ask("/v2.1/os-services", {"binary": "nova-compute"}), services_in)

    async def hypervisors(self) -> list[ComputeNodeRead]:
        path = "/v2.1/os-hypervisors/detail"
        found: dict[UUID, ComputeNodeRead] = {}
        async for page in self._pages(path, {}, "hypervisors"):
            found |= {each.id: each for each in self._read(page, hypervisors_in)}
        return [*found.values()]

    async def aggregates(self) -> tuple[CloudAggregate, ...]:
        return self._read(await self._ask("/v2.1/os-aggregates"), aggregates_in)

    async def servers(self) -> AsyncGenerator[IdsPage, None]:
        """All instances of all projects but those that were deleted softly, and those that are just being built."""
        async for page in self._pages("/v2.1/servers", {"all_tenants": "1"}, "servers"):
            ids, is_partial = self._read(page, lambda body: ids_in(body, "servers", "id"))
            yield IdsPage(ids, is_partial)

    async def migrations(self) -> AsyncGenerator[IdsPage, None]:
        """All migrations, the newest first.

        The API leaves hidden ones out of a page, and then names no next one. So pages are read until one is empty.
        """
        marker = ""
        while True:
            query = {"limit": str(PAGE), **({"marker": marker} if marker else {})}
            ids, _ = self._read(
                await self._ask("/v2.1/os-migrations", query), lambda body: ids_in(body, "migrations", "uuid")
            )
            if not ids:
                return
            yield IdsPage(ids)
            if str(ids[-1]) == marker:
                raise WrongAnswer(f"{self.name}: the page of migrations after {marker} was read already")
            marker = str(ids[-1])

    async def has_server(self, id_: UUID) -> bool:
        """Does Nova know this instance? Also one that was deleted softly, and one whose cell does not answer."""
        return await self._server(id_) is not None

    async def server(self, id_: UUID) -> ServerSeen | None:
        """The instance; None if Nova does not know it."""
        answer = await self._server(id_)
        return None if answer is None else self._read(answer, server_in)

    async def has_migration(self, id_: UUID) -> bool:
        """Does Nova know this migration? A cell that does not answer makes this an error."""
        answer = await self._client.ask("/v2.1/os-migrations", lambda: {"uuid": str(id_)}, _BY_ID)
        body = self._client.read(self._client.granted(answer), dict[str, Any])
        if not isinstance(listed := body.get("migrations"), list):
            raise WrongAnswer(f"{self.name}: migrations is {listed!r}, must be a list")
        return bool(listed)

    async def _server(self, id_: UUID) -> RestAnswer | None:
        answer = await self._client.ask(f"/v2.1/servers/{id_}")
        if answer.status == NOT_FOUND:
            # A proxy before Nova may answer 404 to everything.
            self._read(answer, _missing)
            return None
        return self._client.granted(answer)

    async def _pages(self, path: str, query: Mapping[str, str], key: str) -> AsyncGenerator[RestAnswer, None]:
        marker, seen = "", set[str]()
        while True:
            after = {"marker": marker} if marker else {}
            answer = await self._ask(path, {**query, "limit": str(PAGE), **after})
            yield answer
            link = self._read(answer, lambda body: next_of(body, key))
            if not link:
                return
            marker = marker_of(link)
            if not marker or marker in seen:
                raise WrongAnswer(
                    f"{self.name}: the next page of {key} is {link[:200]!r}, which leads nowhere"
                )
            seen.add(marker)

    async def _ask(self, path: str, query: Mapping[str, str] | None = None) -> RestAnswer:
        return self._client.granted(await self._client.ask(path, lambda: query or {}))

    def _read(self, answer: RestAnswer, read: Callable[[object], T]) -> T:
        try:
            return read(self._client.read(answer, dict[str, Any]))
        except RefusedError as refused:
            raise WrongAnswer(f"{self.name}: an answer that is not as it must be: {refused}") from None


def _missing(body: object) -> Sequence[object]:
    """Nova's own words for what it does not have. Raises RefusedError for any other body."""
    if not isinstance(body, dict) or not isinstance(body.get("itemNotFound"), dict):
        raise RefusedError("itemNotFound", body, "only Nova's own answer says that a server does not exist")
    return ()
