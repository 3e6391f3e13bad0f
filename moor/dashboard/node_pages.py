"""The pages of bare metal: the nodes, one node, and the ring of daemons."""

from http import HTTPStatus

from rich.text import Text
from starlette.requests import Request
from starlette.responses import Response

from engine.inventories import ProviderId
from moor.bare_metal.nodes_showing import facts_of_node
from moor.bare_metal.rings import notes_of_ring
from moor.dashboard.nodes import MetalReader, NodeFilter
from moor.dashboard.rendering import PageRefused, PageRenderer, Reader

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
