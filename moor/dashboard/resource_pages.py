"""The pages that follow from the table of resources: lists with their filters, and a page about one thing.

A list shows the columns of the resource, and its form has the filters; the page of a thing shows its facts, and what belongs to it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, get_args
from urllib.parse import quote, urlencode

from msgspec import Struct, structs
from starlette.requests import Request
from starlette.responses import Response

from moor.client import (
    Client,
    HostKind,
    HostMode,
    InstanceState,
    Listing,
    MovementLife,
    MovePlace,
    NotFound,
    StateName,
    host_in_cell,
)
from moor.client.finding import id_in
from moor.dashboard.rendering import (
    PAGE,
    FormField,
    HtmlTable,
    PageRefused,
    PageRenderer,
    Reader,
    stream_of,
    streamed,
    table_of,
)
from moor.resources import AGGREGATE, CAMPAIGN, GROUP, HOST, INSTANCE, MIGRATION, MOVEMENT, ResourceKind
from moor.showing import INSTANCES, WAITING
from moor.tables import Columns

# All who look at the same list within this time see one answer, so that many readers ask no more than one.
LOOK_S = 5.0
# So many questions a page asks at most, until it has something to show.
QUESTIONS_MAX = 20

# The lists.


def _choice(name: str, label: str, kind: Any, every: str) -> FormField:
    return FormField(name, label, (("", every), *((each, each) for each in get_args(kind) if each)))


ORDERS = (("newest", "newest first"), ("age", "oldest first"), ("name", "by name"), ("host", "by host"))
FILTERS = {
    each.name: each
    for each in (
        _choice("state", "State", StateName, "every state"),
        _choice("mode", "Mode", HostMode, "every mode"),
        _choice("kind", "Kind", HostKind, "every kind"),
        FormField("up", "Up", (("", "up and down"), ("yes", "up"), ("no", "down"))),
        FormField("order", "Order", ORDERS),
        _choice("life", "State", MovementLife, "every state"),
        FormField("ended", "Which", (("", "under way"), ("1", "also those that are over"))),
        FormField("campaign", "Campaign"),
        FormField("part", "Name with"),
        FormField("name", "With this name"),
        FormField("host", "Host"),
        FormField("cell", "Cell"),
        FormField("project", "Project"),
        FormField("flavor", "Flavor"),
        FormField("image", "Image"),
    )
}


class ListView(Struct, frozen=True, kw_only=True):
    """A list: its title, and the fields of its form. `fixed` are further arguments of the list."""

    resource: ResourceKind[Any]
    title: str
    path: str
    filters: Sequence[str] = ()
    for_members: Sequence[str] = ()
    columns: Columns[Any] | None = None
    fixed: Mapping[str, Any] = {}
    is_live: bool = False


HOSTS = ListView(
    resource=HOST,
    title="Hosts",
    path="/hosts",
    filters=("name", "cell", "kind", "up", "mode"),
)
INSTANCE_LIST = ListView(
    resource=INSTANCE,
    title="Instances",
    path="/instances",
    filters=("part", "state", "project", "cell", "host", "flavor", "image", "order"),
    for_members=("part", "state", "flavor", "image", "order"),
    is_live=True,
)
WAITING_LIST = ListView(
    resource=INSTANCE,
    title="Waiting for room",
    path="/waiting",
    filters=("part", "project"),
    columns=WAITING,
    fixed={"state": "waiting", "order": "age"},
)
GROUPS = ListView(
    resource=GROUP,
    title="Server groups",
    path="/groups",
    filters=("name",),
    for_members=("name",),
)
AGGREGATES = ListView(resource=AGGREGATE, title="Aggregates", path="/aggregates")
MOVES = ListView(resource=MIGRATION, title="Moves", path="/moves", filters=("ended",))
CAMPAIGNS = ListView(resource=CAMPAIGN, title="Campaigns", path="/campaigns", filters=("ended",))
MOVEMENTS = ListView(
    resource=MOVEMENT,
    title="Movements",
    path="/movements",
    filters=("campaign", "host", "life", "ended"),
)


def _given(view: ListView, asked: Mapping[str, str], reader: Reader) -> dict[str, str]:
    """The fields of the form that have a value."""
    names = view.filters if reader.is_admin else view.for_members
    given = {name: text for name in names if (text := asked.get(name, "").strip())}
    for name, text in given.items():
        values = [value for value, _ in FILTERS[name].values]
        if values and text not in values:
            raise PageRefused(f"{name} is {text!r}: it must be one of {', '.join(filter(None, values))}.")
    return given


def _arguments(view: ListView, given: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of the client's method."""
    arguments: dict[str, Any] = {**given, **view.fixed}
    if "up" in arguments:
        arguments["up"] = arguments["up"] == "yes"
    if "ended" in arguments:
        arguments["ended"] = True
    if view.resource is INSTANCE and not view.fixed:
        order = arguments.pop("order", "newest")
        arguments |= {"order": "age", "backwards": True} if order == "newest" else {"order": order}
        arguments["counted"] = True
    return arguments


def _listing(view: ListView, moor: Client, **arguments: Any) -> Listing[Any, Any]:
    listing = view.resource.list(moor, **arguments)
    assert isinstance(listing, Listing), "a page of the dashboard is a page of the list"
    return listing


def _after(view: ListView, asked: Mapping[str, str]) -> Any:
    """The `next` of the page before; None for the first page."""
    text = asked.get("after", "")
    if not text or view.resource in (HOST, AGGREGATE):
        return text
    if (id_ := id_in(text)) is None:
        raise PageRefused(f"after is {text!r}: it is no id.")
    if view.resource is not MIGRATION:
        return id_
    at, said = None, asked.get("at", "")
    with suppress(ValueError):
        at = datetime.fromisoformat(said)
    if at is None or at.tzinfo is None:
        raise PageRefused(f"at is {said!r}: it must be a time with a zone, in ISO 8601.")
    return MovePlace(asked_at=at, instance=id_)  # type: ignore[arg-type]  # it is the id of one


def _next(place: Any) -> dict[str, str]:
    """The fields that name this place in an address."""
    if isinstance(place, MovePlace):
        return {"at": place.asked_at.isoformat(), "after": str(place.instance)}
    return {"after": str(place)} if place else {}


class ResourcePages(PageRenderer):
    def __init__(self, moor: Client) -> None:
        self._moor = moor
        # The lists that were rendered last, and until when they count.
        self._seen_tables: dict[object, tuple[float, str]] = {}

    async def listed(self, view: ListView, request: Request, reader: Reader) -> Response:
        asked = request.query_params
        given, after = _given(view, asked, reader), _after(view, asked)
        found = await self._found(view, given, after, reader)
        fields = [FILTERS[name] for name in (view.filters if reader.is_admin else view.for_members)]
        following = _next(getattr(found, "next", None))
        return self._page(
            request,
            reader,
            "list.html",
            title=view.title,
            path_of_list=view.path,
            live=f"{view.path}/live?{request.url.query}" if view.is_live else "",
            fields=fields,
            given=given,
            table=self._table(view, found, is_later=bool(after)),
            counted=self._counted(found),
            first=f"{view.path}?{urlencode(given)}".rstrip("?") if after else "",
            next=f"{view.path}?{urlencode(given | following)}" if following else "",
            links=(),
        )

    async def _found(self, view: ListView, given: Mapping[str, str], after: Any, reader: Reader) -> Any:
        listing = _listing(
            view,
            self._moor.of_project(reader.project, for_member=not reader.is_admin),
            **_arguments(view, given),
        )
        page = await listing.page(after, PAGE)
        for _ in range(QUESTIONS_MAX):
            # One question reads so many rows; what is asked for may come after them.
            if [*listing.items_on(page)] or not getattr(page, "next", None):
                break
            page = await listing.page(page.next, PAGE)
        return page

    def _table(self, view: ListView, found: Any, *, is_later: bool) -> HtmlTable:
        resource = view.resource
        items = resource.of_page(found) if resource.of_page else [*_listing(view, self._moor).items_on(found)]
        nothing = f"no more {resource.several}" if is_later else resource.nothing
        if getattr(found, "next", None):
            nothing = f"{resource.nothing} so far: the next page goes on"
        return table_of(view.columns or resource.columns, items, resource.page_of, nothing)

    @staticmethod
    def _counted(found: Any) -> str:
        count = getattr(found, "count", None)
        if count is None:
            return ""
        return f"{count:,}{' or more' if found.more_than else ''} {'instance' if count == 1 else 'instances'}"

    # The list of instances as a stream: the table again whenever it has changed. A member gets that of their project, as on the page.

    async def live_instances(self, request: Request, reader: Reader) -> Response:
        asked = request.query_params
        given, after = _given(INSTANCE_LIST, asked, reader), _after(INSTANCE_LIST, asked)
        render = partial(self._seen, given, after, reader)
        return streamed(stream_of("instances", render, LOOK_S))

    async def _seen(self, given: Mapping[str, str], after: Any, reader: Reader) -> str:
        now_s = asyncio.get_running_loop().time()
        for old in [asked for asked, (until_s, _) in self._seen_tables.items() if until_s <= now_s]:
            del self._seen_tables[old]
        key = (reader.project, tuple(sorted(given.items())), after)
        if key not in self._seen_tables:
            found = await self._found(INSTANCE_LIST, given, after, reader)
            table = self._table(INSTANCE_LIST, found, is_later=bool(after))
            page = self._render("table.html", table=table, counted=self._counted(found))
            self._seen_tables[key] = (now_s + LOOK_S / 2, page)
        return self._seen_tables[key][1]

    # Pages about one thing.

    async def host(self, request: Request, reader: Reader) -> Response:
        name = host_in_cell(request.path_params["cell"], request.path_params["name"])
        if not request.path_params["name"]:
            raise NotFound("host", name)
        assert HOST.show is not None, "it has a page"
        shown = await HOST.show(self._moor, name)
        after = _after(INSTANCE_LIST, request.query_params)
        there = await self._moor.list_instances(host=name, order="name").page(after, PAGE)
        following = ((f"?after={there.next}", "The next page"),) if there.next else ()
        node = ((f"/nodes/{shown.host.id}", "The bare-metal node"),) if shown.host.kind else ()
        return self.thing(
            request,
            reader,
            shown.host.name,
            HOST.facts(shown),
            [("Its instances", self._instances(there.instances))],
            orders=_orders_of(shown.host.setting.mode, name, up=shown.host.up, is_node=bool(shown.host.kind))
            if reader.operates
            else (),
            links=(*following, *node),
        )

    @staticmethod
    def _instances(states: Sequence[InstanceState]) -> HtmlTable:
        return table_of(INSTANCES, states, INSTANCE.page_of, "no instances")

    async def group(self, request: Request, reader: Reader) -> Response:
        group = await self._moor.of_project(reader.project, for_member=not reader.is_admin).show_group(
            request.path_params["id"]
        )
        columns = Columns[Any](
            {
                "member": lambda each: str(each.consumer),
                "host": lambda each: each.host,
            }
        )
        members = table_of(
            columns,
            group.members,
            lambda each: f"/instances/{each.consumer}",
            "no member holds a share of a host",
        )
        more = len(group.members) < group.size
        facts = GROUP.facts(structs.replace(group, members=()))
        return self.thing(
            request,
            reader,
            group.name or "Server group",
            facts,
            [("Its members", members)],
            note=f"These are the first {len(group.members):,}." if more else "",
        )

    async def aggregate(self, request: Request, reader: Reader) -> Response:
        name = request.path_params["name"]
        if not name:
            raise NotFound("aggregate", name)
        aggregate = await self._moor.show_aggregate(name)
        begin = request.query_params.get("after", "")
        rest = sorted(each for each in aggregate.hosts if each > begin)
        shown = rest[:PAGE]
        columns = Columns[str]({"host": lambda each: each})
        hosts = table_of(columns, shown, None, "no more hosts" if begin else "no host is in it")
        following = ((f"?after={quote(shown[-1])}", "The next page"),) if len(rest) > PAGE else ()
        facts = [(label, fact) for label, fact in AGGREGATE.facts(aggregate) if label != "hosts"]
        return self.thing(
            request,
            reader,
            aggregate.name,
            [*facts, ("hosts", f"{aggregate.hosts_count:,}")],
            [("Its hosts", hosts)],
            links=following,
        )


def _orders_of(mode: str, name: str, *, up: bool, is_node: bool) -> list[tuple[str, str]]:
    named = quote(name, safe="")
    words = {"up": "Set it up", "draining": "Set it draining", "down": "Set it down", "dead": "Set it dead"}
    orders = [
        (f"/orders/set-host?mode={each}&host={named}", title)
        for each, title in words.items()
        if each != mode and not (each == "dead" and is_node)
    ]
    if up:
        return [*orders, (f"/orders/drain?host={named}", "Drain it")]
    return [
        *orders,
        (f"/orders/evacuate?host={named}", "Evacuate it"),
        *([] if is_node else [(f"/orders/delete-host?host={named}", "Delete it")]),
    ]
