"""GET /v1/nodes and /v1/nodes/detail: filters and pages."""

from collections.abc import Callable, Iterable, Mapping
from itertools import dropwhile, islice
from urllib.parse import urlencode

from msgspec import Struct

from compute_sim.laboratory.ironic.core.changes import FIELD_MINORS, check_minors, is_uuid
from compute_sim.laboratory.ironic.core.node import SimulatedNode
from compute_sim.laboratory.ironic.core.refusals import BAD_REQUEST, RequestRefused, no_such_node

PAGE_MAX = 1000
_DETAIL_MINOR = 43
_EQUAL = (
    "driver",
    "resource_class",
    "fault",
    "conductor_group",
    "owner",
    "lessee",
    "provision_state",
    "instance_uuid",
    "instance_name",
    "parent_node",
    "chassis_uuid",
)
_SORT_KEYS = ("id", "updated_at")
_SWITCHES = ("maintenance", "retired", "associated", "sharded", "detail")
_OTHERS = ("shard", "project", "conductor", "marker", "limit", "fields", "sort_key", "sort_dir")
_MINORS = {**FIELD_MINORS, "sharded": FIELD_MINORS["shard"], "detail": _DETAIL_MINOR}
# Ironic's link to the next page omits the other filters.
_REMEMBERED = ("associated", "maintenance", "retired", "detail", "fields")
_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class NodePage(Struct, frozen=True):
    """A page of nodes, and the query of the next one; empty on the last one."""

    nodes: tuple[SimulatedNode, ...]
    next_query: str
    is_detailed: bool


def page_of(
    nodes: Mapping[str, SimulatedNode], asked: Mapping[str, str], minor: int, conductor: str
) -> NodePage:
    """The nodes that pass the filters of this query, after its marker."""
    _check_names(asked, minor)
    switches = {name: _switch(name, asked[name]) for name in _SWITCHES if name in asked}
    passes = _test_of(asked, switches, conductor)
    limit, marker = _limit(asked.get("limit")), asked.get("marker")
    rest: Iterable[SimulatedNode] = nodes.values()
    key, is_descending = asked.get("sort_key", "id"), asked.get("sort_dir", "asc") == "desc"
    if key == "updated_at":
        # Nodes that were never changed count as the oldest.
        rest = sorted(rest, key=lambda node: node.updated_at or "")
    if is_descending:
        rest = reversed([*rest])
    if marker is not None:
        if marker not in nodes:
            raise no_such_node(marker)
        rest = islice(dropwhile(lambda node: node.uuid != marker, rest), 1, None)
    page = tuple(islice(filter(passes, rest), limit))
    next_query = ""
    # As in Ironic, a full page has a next page, which may be empty.
    if "instance_uuid" not in asked and len(page) == limit:
        remembered = [(name, asked[name]) for name in _REMEMBERED if name in asked]
        place = [("limit", str(limit)), ("marker", page[-1].uuid)]
        order = [("sort_key", key), ("sort_dir", "desc" if is_descending else "asc")]
        next_query = urlencode([*order, *remembered, *place], safe=",")
    return NodePage(page, next_query, switches.get("detail", False))


def _check_names(asked: Mapping[str, str], minor: int) -> None:
    """Raise RequestRefused for a query that is invalid in this version."""
    for name in asked:
        if name not in (*_EQUAL, *_SWITCHES, *_OTHERS):
            raise RequestRefused(BAD_REQUEST, f"Unexpected argument: {name}")
    check_minors(asked, minor, _MINORS)
    if "instance_uuid" in asked and not is_uuid(asked["instance_uuid"]):
        raise RequestRefused(BAD_REQUEST, f"Expected UUID for instance_uuid: {asked['instance_uuid']}")
    if asked.get("sort_key", "id") not in _SORT_KEYS:
        raise RequestRefused(BAD_REQUEST, f"This simulated Ironic sorts by {' or '.join(_SORT_KEYS)}.")
    if asked.get("sort_dir", "asc") not in ("asc", "desc"):
        raise RequestRefused(
            BAD_REQUEST, f"Invalid sort direction: {asked['sort_dir']}. Acceptable values are asc or desc"
        )


def _switch(name: str, text: str) -> bool:
    if text.lower() not in _WORDS:
        raise RequestRefused(BAD_REQUEST, f"{name} is {text!r}, must be true or false.")
    return _WORDS[text.lower()]


def _limit(text: str | None) -> int:
    if text is None:
        return PAGE_MAX
    if not text.lstrip("-").isdecimal():
        raise RequestRefused(BAD_REQUEST, f"limit is {text!r}, must be a number.")
    if int(text) <= 0:
        raise RequestRefused(BAD_REQUEST, "limit must be positive.")
    return min(int(text), PAGE_MAX)


def _test_of(
    asked: Mapping[str, str], switches: Mapping[str, bool], conductor: str
) -> Callable[[SimulatedNode], bool]:
    equal: dict[str, str | bool] = {name: asked[name] for name in _EQUAL if name in asked}
    equal |= {name: switches[name] for name in ("maintenance", "retired") if name in switches}
    if "conductor_group" in asked:
        equal["conductor_group"] = asked["conductor_group"].lower()
    shards = {each.strip() for each in asked.get("shard", "").split(",")}

    def passes(node: SimulatedNode) -> bool:
        is_associated, is_sharded = node.instance_uuid is not None, node.shard is not None
        return (
            all(getattr(node, name) == value for name, value in equal.items())
            and ("shard" not in asked or node.shard in shards)
            and ("project" not in asked or asked["project"] in (node.owner, node.lessee))
            and asked.get("conductor", conductor) == conductor
            and switches.get("associated", is_associated) is is_associated
            and switches.get("sharded", is_sharded) is is_sharded
        )

    return passes
