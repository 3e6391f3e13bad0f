"""The pages of bare metal: the nodes as the daemons know them, one node, and the ring of daemons."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from urllib.parse import urlencode

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from engine.inventories import ProviderId
from ironic_sync.core.ring import Member, Owned, Why, why
from ironic_sync.core.rows import NodeRow
from ironic_sync.store_sql import IronicStore
from kit.errors import Operational
from kit.parts import Periodic, batches_of
from moor.bare_metal.nodes import (
    NODE,
    POOL_SIZE,
    ROWS_AT_ONCE,
    NodeReader,
    NodeShown,
    last_heard,
    name_order,
    opened_api,
    shown,
    state_of,
)
from moor.bare_metal.ring_command import RingShown, notes_of_ring, ring_of
from moor.dashboard.rendering import FormField, PageRefused, PageRenderer, Reader, is_number, table_of
from moor.settings import Settings
from moor.tables import styled

# All who look within this time see the same.
KEPT_S = 2.0
IRONIC_S_MAX = 5.0
# So that what has changed since the last page is never much.
READ_EVERY_S = 60.0
REASONS_SHOWN_MAX = 8


class NodeHeard(Struct, frozen=True):
    """A node's row, and what is shown of it."""

    row: NodeRow
    node: NodeShown

    @property
    def state(self) -> str:
        return "gone" if self.row.is_deleted else state_of(self.node) or "none"


class NodesSeen(Struct, frozen=True):
    """All nodes in the order of their names, and what they have in common. Pages take from it what they show."""

    nodes: tuple[NodeHeard, ...]
    states: Mapping[str, int]
    cells: tuple[str, ...]
    daemons: tuple[str, ...]
    offered: int
    in_maintenance: int
    # Why nodes without an instance are not offered, the most frequent reason first.
    reasons: tuple[tuple[str, int], ...]


class MetalReader:
    """Reads the daemons' rows for all who look, of these only those that have changed, and asks Ironic about single nodes. Its
    connections to the database stay open between two pages.
    """

    def __init__(self, settings: Settings, *, kept_s: float = KEPT_S) -> None:
        self._settings = settings
        self._kept_s = kept_s
        # Opened when it is first needed.
        self.store: IronicStore | None = None
        self._lock = asyncio.Lock()
        self._opening = asyncio.Lock()
        self._known: dict[ProviderId, NodeHeard] = {}
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

    async def nodes(self) -> NodesSeen | None:
        """None if there is no database of daemons."""
        now_s = asyncio.get_running_loop().time
        async with self._lock:
            store = await self._opened()
            if store is None:
                return None
            if self._seen is None or now_s() >= self._until_s:
                if await self._read_changed(store) or self._seen is None:
                    self._seen = _seen(self._known.values())
                self._until_s = now_s() + self._kept_s
            return self._seen

    async def _read(self) -> None:
        await self.nodes()

    async def ring(self) -> RingShown | None:
        if await self.nodes() is None:
            return None
        return ring_of(await self._members(), [each.row for each in self._known.values()])

    async def node(self, id_: ProviderId) -> tuple[NodeShown, Why, str] | None:
        """A node as Ironic has it now; if Ironic does not answer, as the daemons last heard it, and why. And why its owner has it."""
        store = await self._opened()
        row = None if store is None else (await store.read([id_])).get(id_)
        if store is None or row is None:
            return None
        owned = why(Owned(row.id, row.owner, row.epoch, row.holds_instance), await self._members())
        try:
            async with asyncio.timeout(IRONIC_S_MAX), opened_api(self._settings) as api:
                reader = NodeReader(api, store)
                found = (await reader.find([str(id_)]))[str(id_)]
                away = reader.away
        except TimeoutError:
            found = (await NodeReader(None, store).find([str(id_)]))[str(id_)]
            away = f"Ironic did not answer within {IRONIC_S_MAX:.0f} s"
        return None if found is None else (found, owned, away)

    async def _members(self) -> Sequence[Member]:
        assert self.store is not None, "it was opened before"
        return await self.store.members()

    async def _opened(self) -> IronicStore | None:
        """Two pages at once open one store."""
        async with self._opening:
            url = self._settings.ironic_db_url
            if self.store is not None or not url:
                return self.store
            store = IronicStore(url, pool_size=POOL_SIZE)
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

    async def _read_changed(self, store: IronicStore) -> bool:
        """Read the rows that have another version than when they were read last. Says whether there were any."""
        versions = await store.versions()
        known = self._known
        gone = known.keys() - versions.keys()
        changed = [
            id_
            for id_, version in versions.items()
            if (heard := known.get(id_)) is None or heard.row.version != version
        ]
        for some in batches_of(changed, ROWS_AT_ONCE):
            rows = await store.read(some)
            known |= {id_: _heard(row) for id_, row in rows.items()}
            # A long list must not keep other pages waiting.
            await asyncio.sleep(0)
        for id_ in gone:
            del known[id_]
        return bool(changed or gone)


def _heard(row: NodeRow) -> NodeHeard:
    return NodeHeard(row, shown(row.id, last_heard(row), row))


def _seen(known: Iterable[NodeHeard]) -> NodesSeen:
    there = [each for each in known if not each.row.is_removed]
    nodes = tuple(sorted(there, key=lambda each: name_order(each.node)))
    free = [each for each in nodes if not (each.node.offered.amount or each.row.holds_instance)]
    return NodesSeen(
        nodes=nodes,
        states=dict(sorted(Counter(each.state for each in nodes).items())),
        cells=tuple(sorted({each.row.cell for each in nodes} - {""})),
        daemons=tuple(sorted({each.row.owner for each in nodes} - {""})),
        offered=sum(each.node.offered.amount for each in nodes),
        in_maintenance=sum(bool(each.node.ironic and each.node.ironic.maintenance) for each in nodes),
        reasons=tuple(
            Counter(reasons[0] for each in free if (reasons := each.node.offered.reasons)).most_common(
                REASONS_SHOWN_MAX
            )
        ),
    )


PAGE = 100


class NodePages(PageRenderer):
    def __init__(self, metal: MetalReader) -> None:
        self._metal = metal

    async def nodes(self, request: Request, reader: Reader) -> Response:
        asked = request.query_params
        number = _page_number(asked.get("page", "1"))
        seen = await self._metal.nodes()
        fields = _fields(seen) if seen else ()
        given = {each.name: text for each in fields if (text := asked.get(each.name, "").strip())}
        found = [each.node for each in seen.nodes if _takes(given, each)] if seen else []
        pages = max(-(-len(found) // PAGE), 1)
        if number > pages:
            raise PageRefused(f"page is {number}: there are {pages} pages of these nodes.")

        def link(page: int) -> str:
            return f"/nodes?{urlencode({**given, 'page': page})}"

        nothing = "no node is so" if seen and seen.nodes else "no nodes"
        shown_ = found[(number - 1) * PAGE : number * PAGE]
        return self._page(
            request,
            reader,
            "nodes.html",
            seen=seen,
            is_named=self._metal.is_named,
            title="Bare-metal nodes",
            path_of_list="/nodes",
            live="",
            fields=fields,
            given=given,
            table=table_of(NODE.columns, shown_, NODE.page_of, nothing),
            counted=f"{len(found):,} {'node' if len(found) == 1 else 'nodes'}",
            first=link(1) if number > 1 else "",
            next=link(number + 1) if number < pages else "",
            links=((link(number - 1), "The page before"),) if number > 1 else (),
        )

    async def node(self, request: Request, reader: Reader) -> Response:
        id_ = ProviderId(request.path_params["id"])
        found = await self._metal.node(id_)
        if found is None:
            return self.refusal(request, reader, HTTPStatus.NOT_FOUND, f"No daemon knows a node {id_}.")
        node, owned, away = found
        return self._page(
            request,
            reader,
            "node.html",
            node=node,
            instance=node.ironic.instance_uuid if node.ironic else None,
            facts=[(label, styled(fact).plain) for label, fact in NODE.facts(node) if label != "instance"],
            owned=owned,
            away=away,
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


def _fields(seen: NodesSeen) -> Sequence[FormField]:
    def choice(name: str, label: str, values: Iterable[str]) -> FormField:
        return FormField(name, label, (("", f"every {name}"), *((each, each) for each in values)))

    return (
        FormField("text", "Name or id begins with"),
        choice("state", "State", seen.states),
        choice("cell", "Cell", seen.cells),
        choice("daemon", "Daemon", seen.daemons),
        FormField("not_offered", "Offered", (("", "offered or not"), ("1", "only what is not offered"))),
    )


def _takes(given: Mapping[str, str], each: NodeHeard) -> bool:
    text, node = given.get("text", ""), each.node
    return (
        given.get("state", each.state) == each.state
        and given.get("cell", node.cell) == node.cell
        and given.get("daemon", node.daemon) == node.daemon
        and not ("not_offered" in given and node.offered.amount)
        and (node.name.startswith(text) or str(node.id).startswith(text))
    )


def _page_number(text: str) -> int:
    if not (is_number(text) and int(text)):
        raise PageRefused(f"page is {text!r}: it must be a whole number from 1.")
    return int(text)
