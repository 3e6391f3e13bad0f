"""GET /v1/nodes and /v1/nodes/detail, in pages and by the instance on a node: all that Moorage asks for."""

from collections.abc import Iterable, Mapping
from itertools import dropwhile, islice
from urllib.parse import urlencode

from msgspec import Struct

from compute_sim.laboratory.ironic.core.changes import is_uuid
from compute_sim.laboratory.ironic.core.node import SimulatedNode
from compute_sim.laboratory.ironic.core.refusals import BAD_REQUEST, RequestRefused, no_such_node

PAGE_MAX = 1000
_ALLOWED: Mapping[str, tuple[str, ...] | None] = {
    **dict.fromkeys(("instance_uuid", "marker", "limit", "fields")),
    "sort_key": ("id", "created_at", "updated_at"),
    "sort_dir": ("asc", "desc"),
}


class NodePage(Struct, frozen=True):
    """A page of nodes, and the query of the next one; empty on the last one."""

    nodes: tuple[SimulatedNode, ...]
    next_query: str


def page_of(nodes: Mapping[str, SimulatedNode], asked: Mapping[str, str]) -> NodePage:
    """The nodes that this query asks for, after its marker."""
    _check(asked)
    limit, marker, instance = _limit(asked.get("limit")), asked.get("marker"), asked.get("instance_uuid")
    key, direction = asked.get("sort_key", "id"), asked.get("sort_dir", "asc")
    rest: Iterable[SimulatedNode] = nodes.values()
    if key != "id":
        # Nodes that were never changed count as the oldest.
        rest = sorted(rest, key=lambda node: getattr(node, key) or "")
    if direction == "desc":
        rest = reversed([*rest])
    if marker is not None:
        if marker not in nodes:
            raise no_such_node(marker)
        rest = islice(dropwhile(lambda node: node.uuid != marker, rest), 1, None)
    if instance is not None:
        return NodePage(tuple(node for node in rest if node.instance_uuid == instance), "")
    page = tuple(islice(rest, limit))
    # As in Ironic, a full page has a next page, which may be empty.
    if len(page) < limit:
        return NodePage(page, "")
    following = {"sort_key": key, "sort_dir": direction, "limit": str(limit), "marker": page[-1].uuid}
    if "fields" in asked:
        following["fields"] = asked["fields"]
    return NodePage(page, urlencode(following, safe=","))


def _check(asked: Mapping[str, str]) -> None:
    for name, text in asked.items():
        if name not in _ALLOWED:
            raise RequestRefused(BAD_REQUEST, f"Unexpected argument: {name}")
        allowed = _ALLOWED[name]
        if allowed is not None and text not in allowed:
            raise RequestRefused(BAD_REQUEST, f"{name} is {text!r}, must be {' or '.join(allowed)}.")
    if "instance_uuid" in asked and not is_uuid(asked["instance_uuid"]):
        raise RequestRefused(BAD_REQUEST, f"Expected UUID for instance_uuid: {asked['instance_uuid']}")


def _limit(text: str | None) -> int:
    if text is None:
        return PAGE_MAX
    if not text.isdecimal() or int(text) <= 0:
        raise RequestRefused(BAD_REQUEST, f"limit is {text!r}, must be a positive number.")
    return min(int(text), PAGE_MAX)
