"""Reads and hears a Nova that schedules through us: its compute API, its API database, and its notifications.

First the client of the API, then the reader of a whole Nova, and the part that keeps what was read true.
"""

import logging
import random
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import httpx
from msgspec import Struct

from bus.settings import BusSettings
from bus.topology import Binding, Limits, Objects, Queue, QueueKind
from bus.workers.consuming import InboxConsuming, consumer
from bus.workers.sending import Link, pauses_of
from engine.inventories import ConsumerId
from kit.errors import Unavailable, WrongAnswer
from kit.keystone import OpenStackSettings
from kit.login import NOT_FOUND, RestAnswer, RestService, marker_of
from kit.metrics import Readings
from kit.parts import PartGroup, Periodic, Supervised
from kit.rest import VERSION_HEADER, Microversion, RestClient, RestLimits
from nova_bridge.cloud import (
    CellsRead,
    CloudAggregate,
    CloudCell,
    ComputeNodeRead,
    Heard,
    HeardCloud,
    NotHeard,
    NovaCloud,
    ServerSeen,
    ServicesRead,
    after_read,
    aggregates_in,
    cloud_of,
    hear,
    hypervisors_in,
    ids_in,
    next_of,
    read_notification,
    server_in,
    services_in,
    with_services,
)
from nova_bridge.databases import NovaDatabase, NovaDatabaseError, NovaDatabaseKind
from nova_bridge.envelope import RefusedError
from nova_bridge.settings import NovaSettings
from scheduler_worker.metrics import NOVA_NOTIFICATIONS

# Nova's compute API over HTTP.
#
# The API is asked at microversion 2.69, which every Nova since Stein has. At this version it also names what it cannot say: hosts and servers
# whose cell does not answer. A single migration can be asked for by its id only before 2.59.


T = TypeVar("T")

# So many are asked for one by one: more unknown ones at once mean that another Nova answers, or an empty one.
UNKNOWN_MAX = 1000
# Nova's default max_limit; a lower one of Nova's counts.
PAGE = 1000

NOVA_API = RestService(
    name="Nova",
    url_key="nova.url",
    types=("compute",),
    version=r"/v2(\.1)?(/[^/]+)?",
)
VERSION, VERSION_OF_MIGRATIONS_BY_ID = "2.69", "2.58"
_BY_ID = {VERSION_HEADER: f"compute {VERSION_OF_MIGRATIONS_BY_ID}"}


class IdsPage(Struct, frozen=True):
    """Ids of servers or migrations. `is_partial`: a cell does not answer, and may have others."""

    ids: tuple[UUID, ...]
    is_partial: bool = False


class NovaApi:
    """A client of Nova's compute API. `transport` is httpx's way to the servers, for tests. Raises BadSetting or ValueError if it
    cannot sign in like this.
    """

    def __init__(
        self,
        url: str,
        account: OpenStackSettings,
        *,
        limits: RestLimits | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._client = RestClient(
            NOVA_API, url, account, Microversion("compute", VERSION), limits=limits, transport=transport
        )

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

    async def unknown(self, consumers: Collection[ConsumerId]) -> frozenset[ConsumerId]:
        """Those of these consumers that Nova knows as no instance and as no migration. Raises `Operational` if Nova does not answer, or
        refuses, or cannot say it.

        All instances and all migrations are read. Of the consumers that are among neither, each is asked for by its id as well: the lists
        have no instance that was deleted softly, and an instance may be new.
        """
        left = {*consumers}
        services = await self.services()
        if services.silent:
            raise Unavailable(
                f"the cell of {len(services.silent)} hosts ({services.silent[0]}, ...) is silent"
            )
        async for page in self.servers():
            left.difference_update(page.ids)
            if page.is_partial:
                raise Unavailable("a cell is silent: Nova knows only the ids of its servers")
        if left:
            async for page in self.migrations():
                left.difference_update(page.ids)
                if not left:
                    break
        if len(left) > UNKNOWN_MAX:
            raise WrongAnswer(
                f"Nova knows {len(left):,} of {len(consumers):,} consumers not, more than {UNKNOWN_MAX:,}: is this the Nova that "
                "uses this placement?"
            )
        unknown = [
            each
            for each in sorted(left)
            if not await self.has_server(each) and not await self.has_migration(each)
        ]
        return frozenset(unknown)

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


# Reads all of a Nova: from its compute API, and the cells of its hosts from its API database, where alone they are.


# The cell of instances that found no host: it has none.
CELL0 = UUID(int=0)
_USED = {"cell_mappings": ("id", "uuid", "name"), "host_mappings": ("cell_id", "host")}
_CELLS = "SELECT uuid, name FROM cell_mappings"
_HOSTS = (
    "SELECT host_mappings.host AS host, cell_mappings.uuid AS cell FROM host_mappings"
    " JOIN cell_mappings ON cell_mappings.id = host_mappings.cell_id"
)


class NovaCells:
    """Nova's API database, as far as it says which cells there are and which hosts they have."""

    def __init__(self, database: NovaDatabase) -> None:
        self._database = database
        self._is_checked = False

    async def read(self) -> CellsRead:
        """Raises Unavailable if the database cannot be used: an operator may mend it meanwhile."""
        try:
            if not self._is_checked:
                await self._database.check(NovaDatabaseKind.API, _USED)
                self._is_checked = True
            async with self._database.reading() as reading:
                cells = await reading.rows(_CELLS)
                hosts = await reading.rows(_HOSTS)
            named = [CloudCell(UUID(str(row["uuid"])), str(row["name"] or "")) for row in cells]
            of_hosts = {str(row["host"]).lower(): UUID(str(row["cell"])) for row in hosts}
        except (NovaDatabaseError, ValueError) as problem:
            raise Unavailable(str(problem)) from problem
        return CellsRead(tuple(each for each in named if each.id != CELL0), of_hosts)

    async def close(self) -> None:
        await self._database.close()


class CloudReader:
    """Reads all of a Nova anew. Each reading raises `Operational` if Nova does not answer, refuses, or answers what cannot be read."""

    def __init__(self, api: NovaApi, cells: NovaCells, *, default_zone: str) -> None:
        self._api = api
        self._cells = cells
        self._default_zone = default_zone

    async def cloud(self) -> NovaCloud:
        # The cells last: a host that Nova discovers meanwhile has its cell.
        services = await self._api.services()
        hypervisors = await self._api.hypervisors()
        aggregates = await self._api.aggregates()
        cells = await self._cells.read()
        return cloud_of(services, hypervisors, aggregates, cells, default_zone=self._default_zone or None)

    async def services(self) -> ServicesRead:
        return await self._api.services()

    async def close(self) -> None:
        await self._api.close()
        await self._cells.close()


# Keeps in memory what Nova knows: read at the start and at intervals, and changed by Nova's notifications in between.
#
# The notifications come by a queue of this process alone, on Nova's own broker. The queue is bounded, drops its oldest, and is deleted
# when nobody reads it: Nova never waits for it. So a notification may be lost. Nothing has to tell of that: all is read again after
# each interruption, and at each interval. Which services are up is in no notification, and is read more often.


log = logging.getLogger(__name__)

# How often the services are read: nothing else tells which of them are up.
SERVICES_S = 20.0
# How often the queue is bound again: an exchange that was deleted and created again has lost its bindings.
BIND_S = 30.0
# Of the queue: its oldest notifications are dropped, and it goes some minutes after its reader. All is read again then.
HEARD_MAX, HEARD_EXPIRES_MS = 10_000, 600_000
# Unreadable types are told once each, and these are remembered.
TYPES_REMEMBERED_MAX = 100


class NovaCloudKeeper(PartGroup):
    """Keeps a Nova in memory. `link` is a connection to Nova's broker; without one, nothing is heard and all is read.

    `queue` is the name of the queue of this process there.
    """

    def __init__(
        self,
        reader: CloudReader,
        settings: NovaSettings,
        *,
        services_s: float = SERVICES_S,
        link: Link | None = None,
        queue: str = "",
        bus: BusSettings | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self._reader = reader
        self._settings = settings
        self._known: HeardCloud | None = None
        # What was heard since each reading that is under way began.
        self._since: list[list[Heard]] = []
        # How many notifications came, by outcome.
        self.counted = dict.fromkeys(("applied", "ignored", "unreadable"), 0)
        self._unreadable_types: set[str] = set()
        self._reading = Periodic(
            "read Nova", self._read, settings.read_s, is_needed=True, is_cut_short=True, chance=chance
        )
        self._services = Periodic(
            "read Nova's services",
            self._read_services,
            services_s,
            is_cut_short=True,
            rests_first=True,
            chance=chance,
        )
        parts: list[Periodic | Supervised] = [self._reading, self._services]
        if link is not None:
            bus = bus or BusSettings()
            hear = partial(self._hear, link, queue, bus.prefetch)
            self._hearing = Supervised("hear Nova", hear, pauses=pauses_of(bus), chance=chance)
            parts.append(self._hearing)
        super().__init__(*parts)

    @property
    def cloud(self) -> NovaCloud | None:
        """As it is known now; None before it was read for the first time. Another value after each change, so `is` tells of changes."""
        return None if self._known is None else self._known.cloud

    def read_soon(self) -> None:
        """Read all now: something may have changed."""
        self._reading.wake()

    @property
    def readings(self) -> Readings:
        return (NOVA_NOTIFICATIONS.numbers({(outcome,): count for outcome, count in self.counted.items()}),)

    # Reading

    async def _read(self) -> None:
        since: list[Heard] = []
        self._since.append(since)
        try:
            read = await self._reader.cloud()
        finally:
            self._since = [each for each in self._since if each is not since]
        self._set(after_read(read, since))

    async def _read_services(self) -> None:
        if self._known is None:
            return
        since: list[Heard] = []
        self._since.append(since)
        try:
            read = await self._reader.services()
        finally:
            self._since = [each for each in self._since if each is not since]
        self._set(with_services(self._known, read, since))

    def _set(self, known: HeardCloud) -> None:
        self._known = known
        if known.doubt:
            log.info("Nova is read again: %s", known.doubt)
            self._known = HeardCloud(known.cloud, known.heard_at)
            self._reading.wake()

    # Hearing

    async def _hear(self, link: Link, queue: str, prefetch: int) -> None:
        bindings = [Binding(self._settings.exchange, f"{topic}.*") for topic in self._settings.topics]
        limits = Limits(feed_length_max=HEARD_MAX, unused_expires_ms=HEARD_EXPIRES_MS)
        inbox = Objects((), (Queue(queue, QueueKind.FEED, tuple(bindings)),), limits)
        opens = partial(InboxConsuming.open, inbox=inbox, prefetch=prefetch, bind_s=BIND_S)
        async with consumer(link, self._hearing.status, opens) as consuming:
            # What was said before may be lost.
            self._reading.wake()
            while True:
                deliveries = await consuming.receive()
                if not deliveries:
                    self._reading.wake()
                    continue
                for each in deliveries:
                    self._take(each.parcel.body)
                await consuming.acknowledge(deliveries[-1].tag, multiple=True)

    def _take(self, body: bytes) -> None:
        heard = read_notification(body)
        if isinstance(heard, NotHeard):
            self.counted["unreadable" if heard.reason else "ignored"] += 1
            if heard.reason and heard.event not in self._unreadable_types:
                if len(self._unreadable_types) < TYPES_REMEMBERED_MAX:
                    self._unreadable_types.add(heard.event)
                log.warning(
                    "a notification %r of Nova cannot be read, and all is read again: %s",
                    heard.event,
                    heard.reason,
                )
                self._reading.wake()
            return
        self.counted["applied"] += 1
        for since in self._since:
            since.append(heard)
        if self._known is not None:
            self._set(hear(self._known, heard))
