"""Bare-metal nodes as an operator sees them: Ironic's state of each, and what Moorage offers of it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import click
from msgspec import Struct, structs
from rich.markup import escape

from engine.inventories import CUSTOM, ConsumerId, ProviderId
from ironic_sync.core.node import Node, is_of_nobody, provision_state
from ironic_sync.core.offers import class_of
from ironic_sync.core.rows import OF_NOBODY, NodeDeploy, NodeRow, Unasked
from ironic_sync.rest import HttpIronicApi, UnreadableNode, ironic_api
from ironic_sync.store_sql import IronicStore
from kit.errors import Operational, Unavailable
from kit.keystone import OPENSTACK
from kit.parts import batches_of
from kit.settings import without_password
from moor.client import Client, Flavor, InstanceState
from moor.client.books.rules import NodeInIronic, NodesInIronic
from moor.client.errors import ClientError, NotFound
from moor.client.finding import NamedKind, id_in, prefix_in, the_one
from moor.options import (
    DatabaseUrl,
    IronicDatabaseUrl,
    IronicUrl,
    client,
    command_settings,
    run_with,
    tuned,
    wrong_value,
)
from moor.resources import ResourceKind
from moor.settings import Settings
from moor.showing import amounts_of, time_in_words
from moor.tables import Columns, styled

# The bare-metal daemons' rows, which operators' commands read from the database instead of asking a daemon.

T = TypeVar("T")

# A command sends one query at a time.
POOL_SIZE = 1


def with_rows(ironic_db: str, db: str, work: Callable[[IronicStore], Awaitable[T]]) -> T:
    """Run `work` on the daemons' rows in the named database, or else in that of a `moor up` on this machine."""
    url = command_settings(db=db, ironic_db=ironic_db).ironic_db_url
    if not url:
        raise click.BadParameter(
            "no database is named: give --ironic-db or --db, MOOR_IRONIC_DB_URL or MOOR_DB_URL"
        )
    return run_with(opened_rows(url), work)


@asynccontextmanager
async def opened_rows(url: str) -> AsyncIterator[IronicStore]:
    store = IronicStore(url, pool_size=POOL_SIZE)
    try:
        if not await store.has_tables():
            raise Unavailable(
                f"{without_password(url)} has no tables of bare-metal daemons: `moor db upgrade` creates them"
            )
        yield store
    finally:
        await store.close()


ROWS_AT_ONCE = 1000
LOOK_AGAIN_S = 0.2
NOT_HEARD = "Ironic has changed the node, and the daemons have not heard of it yet"
NOT_REPORTED = "the change is not reported to placement yet"
# These reasons normally disappear within a second.
TEMPORARY_REASONS = frozenset({NOT_HEARD, NOT_REPORTED})
# The fields on which an offer depends.
_OFFER_FIELDS = (
    "provision_state",
    "maintenance",
    "power_state",
    "instance_uuid",
    "resource_class",
    "fault",
    "retired",
    "protected",
)


InstancesNamed = Callable[[Sequence[str]], Awaitable[Mapping[str, InstanceState]]]


class DeployShown(Struct, frozen=True, kw_only=True):
    """A deploy or undeploy that a cell's conductor ordered and that is under way on a node."""

    kind: str
    instance: UUID
    attempt: int
    words: str
    tries: int
    failure: str
    started_at: datetime | None


class Offered(Struct, frozen=True, kw_only=True):
    """What placement has of a node: `amount` of its class, 1 or 0. `reasons` say why it is 0 and what was left out."""

    resource_class: str = ""
    kept_class: str = ""
    amount: int = 0
    traits: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


class NodeShown(Struct, frozen=True, kw_only=True):
    """A node as the commands show it.

    `ironic` is the node in Ironic: read from its REST API, or without that, as the daemons last heard it. It is null if
    Ironic no longer has the node. Without the daemons' rows, `daemon` and `cell` are empty and the offer is unknown.
    """

    id: UUID
    name: str
    cell: str
    # The daemon that owns the node; the epoch grows with each change of owner.
    daemon: str
    epoch: int
    ironic: Node | None
    offered: Offered
    deploy: DeployShown | None
    # Why the node has no cell, or not the one that the operator's tables name.
    cell_note: str = ""
    # The instance that lives there by the daemons' books.
    lives: UUID | None = None
    # What daemons have taken off by themselves, and why.
    unasked: tuple[Unasked, ...] = ()
    # A person must decide about this: Ironic and the books disagree about the node.
    trouble: str = ""


class NodeReader:
    """Reads nodes from Ironic's REST API and from the daemons' rows, or from one of them."""

    def __init__(
        self, api: HttpIronicApi | None, rows: IronicStore | None, instances: InstancesNamed | None = None
    ) -> None:
        """`instances` finds instances by their names, on the bus."""
        self.api = api
        self._instances = instances
        self.rows = rows
        # Why Ironic could not be asked. Then nodes are shown as the daemons last heard them.
        self.away = ""
        # Nodes in Ironic's list that cannot be parsed.
        self.unreadable: Sequence[UnreadableNode] = ()

    @property
    def notes(self) -> Sequence[str]:
        """What people are told beside what was read."""
        return (*filter(None, (self.trouble,)), *self.of_unreadable)

    @property
    def trouble(self) -> str:
        if not self.away:
            return ""
        return f"Ironic does not answer, so nodes are as the daemons last heard them: {self.away}"

    @property
    def of_unreadable(self) -> Sequence[str]:
        return tuple(
            f"node {each.id or 'without an id'} cannot be read from Ironic's answer: {each.reason}"
            for each in self.unreadable
        )

    async def list_nodes(
        self, *, cell: str = "", daemon: str = "", state: str = "", unavailable: bool = False
    ) -> list[NodeShown]:
        """All nodes by name; or of these only those of a cell, of a daemon, in a state, or those that are not offered."""
        rows = await self._all_rows()
        nodes = [self._shown(id_, node, rows) for id_, node in (await self._all_in_ironic(rows)).items()]
        found = [
            each
            for each in nodes
            if cell in ("", each.cell)
            and daemon in ("", each.daemon)
            and state in ("", state_of(each))
            and not (unavailable and each.offered.amount)
        ]
        return sorted(found, key=name_order)

    async def _all_in_ironic(self, rows: Mapping[ProviderId, NodeRow]) -> dict[ProviderId, Node | None]:
        """All nodes as Ironic has them; as the daemons last heard them, if no Ironic is named or it does not answer."""
        found: dict[ProviderId, Node | None] = {}
        unreadable: list[UnreadableNode] = []
        there = {id_: row for id_, row in rows.items() if not row.is_removed}
        if self.api is not None:
            try:
                async for page in self.api.pages():
                    found |= {node.id: node for node in page.nodes}
                    unreadable += page.unreadable
            except Operational as problem:
                if self.rows is None:
                    raise
                self.away = str(problem)
            else:
                self.unreadable = unreadable
                return dict.fromkeys(there) | found
        return {id_: last_heard(row) for id_, row in there.items()}

    async def show_node(self, name: str) -> NodeShown:
        """The node that is named. Raises `NotFound` or `Ambiguous`."""
        (found,) = await self.nodes_called(name)
        return found

    async def nodes_called(self, *names: str) -> list[NodeShown]:
        """The nodes that are named, in this order. Raises `NotFound` or `Ambiguous`."""
        found = await self.find(names)
        if missing := [name for name in names if found[name] is None]:
            raise NotFound("node", *missing)
        return [node for name in names if (node := found[name]) is not None]

    async def find(self, names: Sequence[str]) -> dict[str, NodeShown | None]:
        """Find nodes by uuid, by the uuid of the instance on them, by Ironic's name, by the beginning of their uuid, or by the
        name of the instance on them. Each uuid is a question to Ironic, or two; names are searched in the full list.

        If a text may mean several nodes, the one that Ironic still has is meant. Raises `Ambiguous` if Ironic still has several of
        them, or none.
        """
        ids = {name: ProviderId(id_) for name in names if (id_ := id_in(name)) is not None}
        found: dict[str, NodeShown | None] = dict.fromkeys(names)
        rows = {**await self._rows_of(ids.values())}
        for name, id_ in ids.items():
            node = await self._node(id_, rows.get(id_))
            if node is None and id_ not in rows and self.api is not None:
                node = await self.api.node_of_instance(id_)
                rows |= {} if node is None else await self._rows_of([node.id])
            if node is not None or id_ in rows:
                found[name] = self._shown(id_ if node is None else node.id, node, rows)
        if named := {*names} - ids.keys():
            of_names: dict[str, list[NodeShown]] = {}
            everything = await self.list_nodes()
            for each in everything:
                if each.name:
                    of_names.setdefault(each.name, []).append(each)
            found |= {name: _meant(name, of_names[name]) for name in named & of_names.keys()}
            for name in named - of_names.keys():
                if prefix := prefix_in(name):
                    there = [each for each in everything if each.id.hex.startswith(prefix)]
                    found[name] = _meant(name, there)
            found |= await self._of_instances([name for name in named if name and found[name] is None])
        return found

    async def _of_instances(self, names: Sequence[str]) -> dict[str, NodeShown | None]:
        """The nodes of the instances with these names, or with ids that begin so. A node counts only if it has the instance."""
        instances = await self._instances(names) if names and self._instances is not None else {}
        texts = {name: (str(each.id), each.host) for name, each in instances.items()}
        nodes = await self.find(
            [*dict.fromkeys(each for both in texts.values() for each in both if id_in(each))]
        )
        found = {name: nodes[id_] or nodes.get(host) for name, (id_, host) in texts.items()}
        return {
            name: node
            for name, node in found.items()
            if node and node.ironic and node.ironic.instance_uuid == instances[name].id
        }

    async def _node(self, id_: ProviderId, row: NodeRow | None) -> Node | None:
        """The node as Ironic has it; as the daemons last heard it, if no Ironic is named or it does not answer."""
        heard = None if row is None else last_heard(row)
        if self.api is None:
            return heard
        try:
            return await self.api.node(id_)
        except Operational as problem:
            if row is None:
                raise
            self.away = str(problem)
            return heard

    def _shown(self, id_: ProviderId, node: Node | None, rows: Mapping[ProviderId, NodeRow]) -> NodeShown:
        return shown(id_, node, rows.get(id_), has_rows=self.rows is not None)

    async def _all_rows(self) -> dict[ProviderId, NodeRow]:
        if self.rows is None:
            return {}
        return await self._rows_of([each.id for each in await self.rows.owners()])

    async def _rows_of(self, ids: Collection[ProviderId]) -> dict[ProviderId, NodeRow]:
        if self.rows is None:
            return {}
        rows: dict[ProviderId, NodeRow] = {}
        for some in batches_of([*ids], ROWS_AT_ONCE):
            rows |= await self.rows.read(some)
        return rows


@asynccontextmanager
async def reading_nodes(settings: Settings) -> AsyncIterator[NodeReader]:
    """A reader of Ironic's REST API, the daemons' database, or both, as the settings name them."""
    if not settings.ironic_url and not settings.ironic_db_url:
        raise click.BadParameter(
            "neither an Ironic nor the daemons' database is named, and no `moor up --nodes` runs on this machine: "
            "give --ironic or MOOR_IRONIC_URL, or --ironic-db or MOOR_IRONIC_DB_URL"
        )
    async with AsyncExitStack() as stack:
        rows = None
        api = await stack.enter_async_context(opened_api(settings))
        if settings.ironic_db_url:
            rows = await stack.enter_async_context(opened_rows(settings.ironic_db_url))
        yield NodeReader(api, rows, partial(_instances_named, settings) if settings.bus_url else None)


def settings_with_ironic(ironic: str, *, ironic_db: str = "", bus: str = "") -> Settings:
    settings = command_settings(ironic=ironic, ironic_db=ironic_db, bus=bus)
    if not settings.ironic_url:
        raise click.BadParameter(
            "no Ironic is named, and no `moor up --nodes` runs on this machine: give --ironic or MOOR_IRONIC_URL"
        )
    return settings


async def until(look: Callable[[], Awaitable[T]], by_s: float) -> T:
    """Look again and again until the result is true, or time is up. Return the last result."""
    while True:
        if (found := await look()) or asyncio.get_running_loop().time() > by_s:
            return found
        await asyncio.sleep(LOOK_AGAIN_S)


async def _instances_named(settings: Settings, names: Sequence[str]) -> Mapping[str, InstanceState]:
    async with client(settings, operates=True) as moor:
        return await moor.instances_called(*names)


@asynccontextmanager
async def listing_nodes(settings: Settings) -> AsyncIterator[Callable[[], Awaitable[NodesInIronic]] | None]:
    """Lists the nodes of the Ironic that the settings name, for an audit; None if they name none."""
    async with opened_api(settings) as api:
        yield None if api is None else partial(_all_seen, api)


@asynccontextmanager
async def opened_api(settings: Settings) -> AsyncIterator[HttpIronicApi | None]:
    with wrong_value():
        addresses = structs.replace(settings.addresses, ironic_url=settings.ironic_url)
        api = ironic_api(addresses, tuned(OPENSTACK))
    try:
        yield api
    finally:
        if api is not None:
            await api.close()


async def _all_seen(api: HttpIronicApi) -> NodesInIronic:
    return {node.id: seen_in_ironic(node) async for page in api.pages() for node in page.nodes}


def seen_in_ironic(node: Node) -> NodeInIronic:
    instance = None if node.instance_uuid is None else ConsumerId(node.instance_uuid)
    is_busy = provision_state(node.provision_state).undeploy == "wait"
    state = node.provision_state or "none"
    return NodeInIronic(node.id, node.name or "", state, instance, is_busy, is_of_nobody(node))


def shown(id_: ProviderId, node: Node | None, row: NodeRow | None, *, has_rows: bool = True) -> NodeShown:
    known = node or (row.node if row else None)
    return NodeShown(
        id=id_,
        name=(known.name if known else None) or "",
        cell=row.cell if row else "",
        daemon=row.owner if row else "",
        epoch=row.epoch if row else 0,
        ironic=node,
        offered=_offered(node, row, has_rows=has_rows),
        deploy=None if row is None or row.deploy is None else _deploy(row.deploy),
        cell_note=row.cell_note if row else "",
        lives=row.living.instance if row and row.living else None,
        unasked=row.unasked if row else (),
        trouble=_trouble(node, row),
    )


def _trouble(node: Node | None, row: NodeRow | None) -> str:
    if row is not None and row.trouble:
        return row.trouble
    # Without a row, another program may keep it.
    return OF_NOBODY if row is not None and node is not None and is_of_nobody(node) else ""


def _offered(node: Node | None, row: NodeRow | None, *, has_rows: bool) -> Offered:
    if row is None:
        why = "no daemon knows the node yet" if has_rows else "the daemons' database is not named"
        return Offered(reasons=(why,))
    reported, wanted, heard = row.reported, row.offer, row.node
    has_changed = node is not None and (
        heard is None or any(getattr(node, each) != getattr(heard, each) for each in _OFFER_FIELDS)
    )
    reasons = [
        NOT_HEARD if has_changed else "",
        "Ironic has no such node" if node is None and not row.is_deleted else "",
        *(wanted.reasons if wanted else ()),
        row.cell_note,
        row.report_note,
        "" if row.owner else "no daemon has taken the node yet",
        NOT_REPORTED if not row.report_note and row.needs_report else "",
    ]
    return Offered(
        resource_class=reported.resource_class if reported else "",
        kept_class=reported.kept_class if reported else "",
        amount=int(reported is not None and not reported.reserved and not row.is_removed),
        traits=reported.traits if reported else (),
        reasons=tuple(dict.fromkeys(reason for reason in reasons if reason)),
    )


def last_heard(row: NodeRow) -> Node | None:
    return None if row.is_deleted else row.node


def _meant(name: str, nodes: Sequence[NodeShown]) -> NodeShown | None:
    """The one of these; None if there is none. Raises `Ambiguous`."""
    there = [each for each in nodes if each.ironic is not None] or nodes
    return the_one(CALLED, name, sorted(there, key=lambda each: each.id))


def state_of(node: NodeShown) -> str:
    return (node.ironic and node.ironic.provision_state) or ""


CALLED = NamedKind[NodeShown]("node", lambda each: each.id, lambda each: each.name, state_of)


def _deploy(deploy: NodeDeploy) -> DeployShown:
    return DeployShown(
        kind=deploy.kind,
        instance=deploy.instance,
        attempt=deploy.attempt,
        words=deploy.progress,
        tries=deploy.tries,
        failure=deploy.failure,
        started_at=deploy.started_at,
    )


def name_order(node: NodeShown) -> tuple[bool, str, UUID]:
    """By this, nodes are in the order of their names; those without one are last."""
    return not node.name, node.name, node.id


# How bare-metal nodes look in a terminal.

STATE_COLOURS = {
    "available": "green",
    "active": "cyan",
    "error": "red",
    "enroll": "dim",
    "manageable": "yellow",
}


# Each fact with its label, in Rich's markup; empty facts are left out where they are shown.


def _of_ironic(shown: NodeShown) -> list[tuple[str, str]]:
    first = [("node", str(shown.id)), ("name", escape(shown.name))]
    node = shown.ironic
    if node is None:
        return [*first, ("state", "[red]Ironic has no such node[/red]")]
    reason = escape(node.maintenance_reason or "no reason is given")
    projects = dict.fromkeys(each for each in (node.owner, node.lessee) if each)
    return [
        *first,
        ("state", _state(node)),
        ("power", node.power_state or ""),
        ("maintenance", reason if node.maintenance else ""),
        ("fault", _red(node.fault)),
        ("last error", _red(node.last_error)),
        ("retired", "yes" if node.retired else ""),
        ("protected", "yes" if node.protected else ""),
        ("class", escape(node.resource_class or "") or "[yellow]none[/yellow]"),
        ("traits", escape(", ".join(node.traits))),
        ("instance", str(node.instance_uuid or "")),
        ("driver", escape(node.driver or "")),
        ("group", escape(node.conductor_group)),
        ("shard", escape(node.shard or "")),
        ("projects", escape(", ".join(projects))),
        ("since", time_in_words(node.provision_updated_at)),
    ]


def _of_moorage(shown: NodeShown) -> list[tuple[str, str]]:
    offered = shown.offered
    colour = "green" if offered.amount else "yellow"
    amount = (
        f"{offered.amount}[/{colour}] {offered.resource_class}"
        if offered.resource_class
        else "nothing[/yellow]"
    )
    rows = [
        ("cell", shown.cell),
        ("daemon", f"{escape(shown.daemon)}, epoch {shown.epoch}" if shown.daemon else ""),
        ("lives here", f"instance {shown.lives}" if shown.lives else ""),
        ("trouble", _red(shown.trouble)),
        ("offered", f"[{colour}]{amount}"),
        ("kept class", offered.kept_class),
        *(
            ("" if number else "why", f"[yellow]{escape(reason)}[/yellow]")
            for number, reason in enumerate(offered.reasons)
        ),
    ]
    rows += [
        ("without an order", f"{time_in_words(each.at)}: instance {each.instance} taken off: {each.why}")
        for each in shown.unasked
    ]
    if (deploy := shown.deploy) is not None:
        rows += [
            ("order", f"{deploy.kind} of instance {deploy.instance}, attempt {deploy.attempt}"),
            ("step", escape(deploy.words)),
            ("tries", str(deploy.tries or "")),
            ("failed", _red(deploy.failure)),
        ]
    return rows


def _red(text: str | None) -> str:
    return f"[red]{escape(text)}[/red]" if text else ""


def _state(node: Node | None) -> str:
    if node is None:
        return "[red]gone[/red]"
    state = node.provision_state or "none"
    colour = "red" if state.endswith("failed") else STATE_COLOURS.get(state, "white")
    goal = f" → {escape(node.target_provision_state)}" if node.target_provision_state else ""
    extra = " [magenta]maintenance[/magenta]" if node.maintenance else ""
    return f"[{colour}]{escape(state)}[/{colour}]{goal}{extra}"


def _in_short(offered: Offered) -> str:
    """The resources that a node offers, in one line. If it offers none, the first reason and the number of others."""
    if offered.amount:
        return f"[green]1[/green] {offered.resource_class}"
    more = f" (and {len(offered.reasons) - 1} more)" if len(offered.reasons) > 1 else ""
    why = f"{escape(offered.reasons[0])}{more}" if offered.reasons else ""
    return f"[yellow]0[/yellow] {why}"


def nodes_named_by(
    ironic: IronicUrl = "",
    ironic_db: IronicDatabaseUrl = "",
    db: DatabaseUrl = "",
    **_: Any,
) -> AbstractAsyncContextManager[NodeReader]:
    """A reader of the Ironic and of the daemons' database that these flags of a command name."""
    return reading_nodes(command_settings(ironic=ironic, ironic_db=ironic_db, db=db))


NODE = ResourceKind[NodeShown](
    word="node",
    command="node",
    lists="List all nodes, ordered by name: Ironic's state, and what is offered to placement, or why nothing is.",
    list=NodeReader.list_nodes,
    filters=("cell", "daemon", "state", "unavailable"),
    show=NodeReader.show_node,
    facts=lambda node: [*_of_ironic(node), *_of_moorage(node)],
    named_by="NODE",
    named_how="A node's id, its name in Ironic, or the id or name of the instance on it.",
    opened=nodes_named_by,
    told=lambda reader: reader.notes,
    path="/nodes",
    page_of=lambda each: f"/nodes/{each.id}",
    in_words=lambda each: each.name or str(each.id),
    columns=Columns(
        {
            "id": lambda each: str(each.id),
            "name": lambda each: each.name,
            "state": lambda each: styled(_state(each.ironic)),
            "class": lambda each: (each.ironic and each.ironic.resource_class) or "",
            "cell": lambda each: each.cell,
            "daemon": lambda each: each.daemon,
            "offered": lambda each: styled(_in_short(each.offered)),
        },
        prose=("offered",),
        ids={"id": lambda _: True},
    ),
)


# Mistakes that keep bare-metal nodes unused although nothing is broken.
#
# - A node without a resource class, or without a cell, offers nothing.
# - A class that no stored flavor requests may never be used.
# - A bare-metal flavor whose class no node has never finds a host.


async def notes_on_nodes(moor: Client | None, settings: Settings) -> tuple[str, Sequence[str]]:
    """Why nodes are not known, or only as they were last heard, and how many are held; and the mistakes in the Ironic that the settings name, each as a
    sentence. Without a client that a scheduler answers, classes are not compared with flavors.
    """
    try:
        async with reading_nodes(settings) as reader:
            nodes = await reader.list_nodes()
    except Operational as problem:
        return f"the bare-metal nodes are not known: {problem}", ()
    flavors: dict[str, Flavor] = {}
    if moor is not None:
        with suppress(ClientError):
            flavors = {each.name: each async for each in moor.list_flavors()}
    wrong = sum(bool(each.trouble) for each in nodes)
    disagrees = (
        f"Ironic and the books disagree about {wrong} bare-metal nodes: they are held" if wrong else ""
    )
    trouble = "; ".join(filter(None, (reader.trouble, disagrees)))
    return trouble, (*reader.of_unreadable, *mistakes_in(nodes, flavors))


def mistakes_in(nodes: Sequence[NodeShown], flavors: Mapping[str, Flavor]) -> tuple[str, ...]:
    """Without any flavor, classes are not compared with flavors: requests may have theirs from elsewhere."""
    counts = Counter[str]()
    mistakes = []
    for each in nodes:
        name = each.name or each.id
        if each.trouble:
            mistakes.append(f"node {name}: {each.trouble}")
        if each.ironic is None:
            continue
        own = each.ironic.resource_class
        if named := class_of(own):
            counts[named] += 1
        else:
            why = f"its resource class {own!r} is too long" if own else "it has no resource class"
            mistakes.append(f"node {name}: {why}")
        if each.cell_note and not each.cell:
            mistakes.append(f"node {name}: it has no cell: {each.cell_note}")
    if flavors:
        asked = {name: classes_of_nodes(flavor) for name, flavor in flavors.items()}
        all_asked = {each for classes in asked.values() for each in classes}
        mistakes += [
            f"class {name} of {count} {'node' if count == 1 else 'nodes'}: no stored flavor requests it"
            for name, count in sorted(counts.items())
            if name not in all_asked
        ]
        mistakes += [
            f"flavor {name}: no node has {', '.join(lacking)}"
            for name, classes in asked.items()
            if (lacking := [each for each in classes if each not in counts])
        ]
    return tuple(mistakes)


def classes_of_nodes(flavor: Flavor) -> tuple[str, ...]:
    """The bare-metal classes that the flavor requests. Empty if it also requests VCPU or the like: then it is for
    hypervisors, and its custom classes are devices there.
    """
    asked = [name for name, amount in amounts_of(flavor).items() if amount]
    return tuple(sorted(asked)) if all(name.startswith(CUSTOM) for name in asked) else ()
