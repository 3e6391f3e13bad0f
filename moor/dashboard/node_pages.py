"""The pages of bare metal: the nodes as the daemons know them, one node, and the ring of daemons."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from uuid import UUID

from msgspec import Struct, structs
from rich.text import Text
from starlette.requests import Request
from starlette.responses import Response

from engine.inventories import ProviderId
from ironic_sync.core.ring import Member, Owned, Why, why
from ironic_sync.core.rows import NodeRow
from ironic_sync.rest import HttpIronicApi, ironic_api
from ironic_sync.store_sql import SqlIronicStore
from kit.errors import Operational
from kit.keystone import OpenStackSettings
from kit.parts import Periodic, batches_of
from moor.bare_metal.nodes import POOL_SIZE, ROWS_AT_ONCE, NodeReader, NodeShown, facts_of_node, shown
from moor.bare_metal.ring_command import RingShown, notes_of_ring, ring_of
from moor.dashboard.rendering import PageRefused, PageRenderer, Reader
from moor.settings import Settings

# All who look within this time see the same.
KEPT_S = 2.0
IRONIC_S_MAX = 5.0
# So that what has changed since the last page is never much.
READ_EVERY_S = 60.0
REASONS_SHOWN_MAX = 8
NOTHING_GIVEN = "no reason is given"


class NodeLine(Struct, frozen=True, kw_only=True):
    """One node in a list. `reasons` say why it is not offered, and what was left out of the offer."""

    id: ProviderId
    version: int
    name: str
    state: str
    target: str
    maintenance: str
    fault: str
    resource_class: str
    cell: str
    owner: str
    instance: UUID | None
    holds_instance: bool
    since: datetime | None
    is_offered: bool
    reasons: tuple[str, ...]
    # Ironic has deleted it, and placement has removed it: only `moor node ring` counts it.
    is_removed: bool
    is_missing: bool
    is_moving: bool
    is_foreign: bool


class NodeFilter(Struct, frozen=True):
    """Which nodes are listed: each field that is not empty must match. `text` is the beginning of a name or an id."""

    state: str = ""
    cell: str = ""
    daemon: str = ""
    text: str = ""
    only_not_offered: bool = False

    def takes(self, line: NodeLine) -> bool:
        return (
            self.state in ("", line.state)
            and self.cell in ("", line.cell)
            and self.daemon in ("", line.owner)
            and not (self.only_not_offered and line.is_offered)
            and (not self.text or line.name.startswith(self.text) or str(line.id).startswith(self.text))
        )


class NodesSeen(Struct, frozen=True):
    """All nodes in the order of their names, and what they have in common. Pages take from it what they show."""

    lines: tuple[NodeLine, ...]
    states: Mapping[str, int]
    cells: tuple[str, ...]
    daemons: tuple[str, ...]
    offered: int
    in_maintenance: int
    # Why nodes without an instance are not offered, the most frequent reason first.
    reasons: tuple[tuple[str, int], ...]


class NodeSeen(Struct, frozen=True):
    """One node, why its owner has it, and why Ironic itself could not be asked."""

    node: NodeShown
    owned: Why | None
    away: str = ""


class MetalReader:
    """Reads the daemons' rows for all who look, of these only those that have changed, and asks Ironic about single nodes. Its
    connections stay open between two pages.
    """

    def __init__(
        self, settings: Settings, account: Callable[[], OpenStackSettings], *, kept_s: float = KEPT_S
    ) -> None:
        self._settings = settings
        self._account = account
        self._kept_s = kept_s
        # Opened when it is first needed.
        self.store: SqlIronicStore | None = None
        self._api: HttpIronicApi | None = None
        self._api_url = ""
        self._lock = asyncio.Lock()
        self._opening = asyncio.Lock()
        self._lines: dict[ProviderId, NodeLine] = {}
        self._seen: NodesSeen | None = None
        self._until_s = 0.0
        # To read 10,000 rows for the first time takes longer than a page may.
        self.part = Periodic("read bare-metal nodes", self._read, READ_EVERY_S, is_cut_short=True)

    @property
    def is_named(self) -> bool:
        """Whether a database of daemons is named, or that of a `moor up`."""
        return bool(self._settings.ironic_db_url)

    async def close(self) -> None:
        if self.store is not None:
            await self.store.close()
        if self._api is not None:
            await self._api.close()

    async def nodes(self) -> NodesSeen | None:
        """None if there is no database of daemons."""
        now_s = asyncio.get_running_loop().time
        async with self._lock:
            store = await self._opened()
            if store is None:
                return None
            if self._seen is None or now_s() >= self._until_s:
                if await self._read_changed(store) or self._seen is None:
                    self._seen = _seen(self._lines.values())
                self._until_s = now_s() + self._kept_s
            return self._seen

    async def _read(self) -> None:
        await self.nodes()

    async def ring(self) -> RingShown | None:
        if await self.nodes() is None:
            return None
        lines = self._lines.values()
        return ring_of(
            await self._members(),
            [(each.owner, each.holds_instance) for each in lines],
            missing=sum(each.is_missing for each in lines),
            moving=sum(each.is_moving for each in lines),
            foreign=sum(each.is_foreign for each in lines),
        )

    async def node(self, id_: ProviderId) -> NodeSeen | None:
        """A node as Ironic has it now; if Ironic does not answer, as the daemons last heard it."""
        store = await self._opened()
        if store is None:
            return None
        row = (await store.read([id_])).get(id_)
        if row is None:
            return None
        owned = why(Owned(row.id, row.owner, row.epoch, row.holds_instance), await self._members())
        try:
            async with asyncio.timeout(IRONIC_S_MAX):
                reader = NodeReader(await self._ironic(), store)
                found = (await reader.find([str(id_)]))[str(id_)]
                away = reader.away
        except TimeoutError:
            found = (await NodeReader(None, store).find([str(id_)]))[str(id_)]
            away = f"Ironic did not answer within {IRONIC_S_MAX:.0f} s"
        return None if found is None else NodeSeen(found, owned, away)

    async def _members(self) -> Sequence[Member]:
        assert self.store is not None, "it was opened before"
        return await self.store.members()

    async def _opened(self) -> SqlIronicStore | None:
        """Two pages at once open one store."""
        async with self._opening:
            url = self._settings.ironic_db_url
            if self.store is not None or not url:
                return self.store
            store = SqlIronicStore(url, pool_size=POOL_SIZE)
            try:
                has_tables = await store.has_tables()
            except Operational:
                await store.close()
                raise
            if not has_tables:
                await store.close()
                return None
            self.store = store
            return store

    async def _ironic(self) -> HttpIronicApi | None:
        """A client of Ironic's API. That of `moor up` is known only some time after its start."""
        async with self._opening:
            url = self._settings.ironic_url
            if self._api is None or url != self._api_url:
                if self._api is not None:
                    await self._api.close()
                addresses = structs.replace(self._settings.addresses, ironic_url=url)
                self._api, self._api_url = ironic_api(addresses, self._account()), url
            return self._api

    async def _read_changed(self, store: SqlIronicStore) -> bool:
        """Read the rows that have another version than when they were read last. Says whether there were any."""
        versions = await store.versions()
        known = self._lines
        gone = known.keys() - versions.keys()
        changed = [
            id_
            for id_, version in versions.items()
            if (line := known.get(id_)) is None or line.version != version
        ]
        for some in batches_of(changed, ROWS_AT_ONCE):
            rows = await store.read(some)
            known |= {id_: _line(row) for id_, row in rows.items()}
            # A long list must not keep other pages waiting.
            await asyncio.sleep(0)
        for id_ in gone:
            del known[id_]
        return bool(changed or gone)


def _line(row: NodeRow) -> NodeLine:
    node = None if row.is_deleted else row.node
    offer = shown(row.id, node, row)
    known = row.node
    return NodeLine(
        id=row.id,
        version=row.version,
        name=offer.name,
        state=(node and node.provision_state) or ("gone" if row.is_deleted else "none"),
        target=(node and node.target_provision_state) or "",
        maintenance=(node.maintenance_reason or NOTHING_GIVEN) if node and node.maintenance else "",
        fault=(node and node.fault) or "",
        resource_class=(known and known.resource_class) or "",
        cell=row.cell,
        owner=row.owner,
        instance=node.instance_uuid if node else None,
        holds_instance=row.holds_instance,
        since=node.provision_updated_at if node else None,
        is_offered=bool(offer.offered.amount),
        reasons=offer.offered.reasons,
        is_removed=row.is_removed,
        is_missing=bool(row.missing_since_us),
        is_moving=bool(row.cell_wanted),
        is_foreign=row.is_foreign,
    )


def _seen(lines: Iterable[NodeLine]) -> NodesSeen:
    there = [line for line in lines if not line.is_removed]
    ordered = tuple(sorted(there, key=lambda line: (not line.name, line.name, line.id)))
    free = [line for line in ordered if not (line.is_offered or line.holds_instance)]
    return NodesSeen(
        lines=ordered,
        states=dict(sorted(Counter(line.state for line in ordered).items())),
        cells=tuple(sorted({line.cell for line in ordered} - {""})),
        daemons=tuple(sorted({line.owner for line in ordered} - {""})),
        offered=sum(line.is_offered for line in ordered),
        in_maintenance=sum(bool(line.maintenance) for line in ordered),
        reasons=tuple(
            Counter(line.reasons[0] for line in free if line.reasons).most_common(REASONS_SHOWN_MAX)
        ),
    )


PAGE = 100
PAGES_DIGITS_MAX = 6


class NodePages(PageRenderer):
    def __init__(self, metal: MetalReader) -> None:
        self._metal = metal

    async def nodes(self, request: Request, reader: Reader) -> Response:
        asked = request.query_params
        chosen = NodeFilter(
            state=asked.get("state", ""),
            cell=asked.get("cell", ""),
            daemon=asked.get("daemon", ""),
            text=asked.get("text", "").strip(),
            only_not_offered=bool(asked.get("not_offered", "")),
        )
        number = _page_number(asked.get("page", "1"))
        seen = await self._metal.nodes()
        lines = [line for line in seen.lines if chosen.takes(line)] if seen else []
        pages = max(-(-len(lines) // PAGE), 1)
        if number > pages:
            raise PageRefused(f"page is {number}: there are {pages} pages of these nodes.")
        return self._page(
            request,
            reader,
            "nodes.html",
            seen=seen,
            is_named=self._metal.is_named,
            chosen=chosen,
            lines=lines[(number - 1) * PAGE : number * PAGE],
            count=len(lines),
            number=number,
            pages=pages,
            link=lambda page: str(request.url.include_query_params(page=page).query),
        )

    async def node(self, request: Request, reader: Reader) -> Response:
        id_ = ProviderId(request.path_params["id"])
        found = await self._metal.node(id_)
        if found is None:
            return self.refusal(request, reader, HTTPStatus.NOT_FOUND, f"No daemon knows a node {id_}.")
        ironic = found.node.ironic
        return self._page(
            request,
            reader,
            "node.html",
            node=found.node,
            instance=ironic.instance_uuid if ironic else None,
            facts=[
                (label, Text.from_markup(fact).plain)
                for label, fact in facts_of_node(found.node)
                if label != "instance"
            ],
            owned=found.owned,
            away=found.away,
        )

    async def ring(self, request: Request, reader: Reader) -> Response:
        ring = await self._metal.ring()
        return self._page(
            request,
            reader,
            "ring.html",
            ring=ring,
            is_named=self._metal.is_named,
            notes=notes_of_ring(ring) if ring else [],
            nodes=sum(each.nodes for each in ring.daemons) if ring else 0,
        )


def _page_number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= PAGES_DIGITS_MAX and int(text)):
        raise PageRefused(f"page is {text!r}: it must be a whole number from 1.")
    return int(text)
