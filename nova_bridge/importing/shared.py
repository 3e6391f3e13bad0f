"""What belongs to no single host: flavors, server groups and aggregates of Nova, which are created here under their ids and names."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product, takewhile
from typing import Any, TypeVar

from msgspec import Struct

from bus.message import Message
from bus.messages.build import BuildRejected
from bus.messages.catalog import AskFlavors, CreateFlavor, FlavorsFound
from bus.messages.hosts import (
    HOSTS_PER_ORDER_MAX,
    HOSTS_PLACED_MAX,
    AggregatesFound,
    AskAggregates,
    HostPlace,
    PlaceHosts,
    SetAggregate,
)
from bus.messages.projects import AskGroups, CreateGroup, GroupsFound, GroupState
from engine.flavors import Flavor
from engine.hosts import Aggregate, HostState, host_in_cell
from engine.inventories import AggregateId, GroupId, ProviderState
from engine.places import why_no_place
from kit.errors import UNREADABLE
from kit.parts import batches_of
from moor.client.bus_client import BusClient, items_of
from moor.client.finding import PAGE
from nova_bridge.importing.reading import NovaDatabases
from nova_bridge.importing.records import ContradictionError, check_message, id_of, text_in, whole_in, wrong

AT_ONCE = 200
T = TypeVar("T")
Row = Mapping[str, Any]
_SIZES = {
    "vcpus": "vcpus",
    "ram_mb": "memory_mb",
    "root_gb": "root_gb",
    "ephemeral_gb": "ephemeral_gb",
    "swap_mb": "swap",
}
# Of a server group, what must be equal.
_GROUP = ("policy", "max_per_host", "name", "project")
_NOT_HERE = "Nova has it, and it is not here"
POLICIES = ("affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity")


class NovaAggregate(Struct, frozen=True):
    id: AggregateId
    name: str
    metadata: dict[str, str]
    hosts: tuple[str, ...]


class Shared(Struct, frozen=True):
    """`flavors` are by their row in Nova, for instances that only name it. `problems` are what was not created, and why."""

    flavors: Mapping[int, Flavor]
    groups: tuple[CreateGroup, ...]
    aggregates: tuple[NovaAggregate, ...]
    problems: tuple[str, ...] = ()


async def read_shared(databases: NovaDatabases) -> Shared:
    async with databases.api.reading() as reading:
        specs: dict[int, dict[str, str]] = {}
        for row in await reading.rows("SELECT flavor_id, `key` AS name, value FROM flavor_extra_specs"):
            specs.setdefault(row["flavor_id"], {})[row["name"]] = row["value"] or ""
        flavors = await reading.rows(
            "SELECT id, name, vcpus, memory_mb, root_gb, ephemeral_gb, swap FROM flavors"
        )
        groups = await reading.rows(
            "SELECT g.uuid AS uuid, g.name AS name, g.project_id AS project, p.policy AS policy, p.rules AS rules"
            " FROM instance_groups g LEFT JOIN instance_group_policy p ON p.group_id = g.id ORDER BY g.id"
        )
        aggregates = await reading.rows("SELECT id, uuid, name FROM aggregates ORDER BY id")
        metadata: dict[int, dict[str, str]] = {}
        for row in await reading.rows("SELECT aggregate_id, `key` AS name, value FROM aggregate_metadata"):
            metadata.setdefault(row["aggregate_id"], {})[row["name"]] = row["value"]
        members: dict[int, list[str]] = {}
        for row in await reading.rows("SELECT aggregate_id, host FROM aggregate_hosts ORDER BY host"):
            members.setdefault(row["aggregate_id"], []).append(row["host"])
    problems: list[str] = []
    return Shared(
        flavors=dict(
            _right(flavors, lambda row: (row["id"], _flavor(row, specs.get(row["id"], {}))), problems)
        ),
        groups=tuple(_right([row for row in groups if row["policy"] in POLICIES], _group, problems)),
        aggregates=tuple(
            _right(
                [row for row in aggregates if row["uuid"]],
                lambda row: _aggregate(row, metadata.get(row["id"], {}), members.get(row["id"], ())),
                problems,
            )
        ),
        problems=tuple(problems),
    )


def _right(rows: Sequence[Row], make: Callable[[Row], T], problems: list[str]) -> Iterator[T]:
    """What can be made of these rows; what cannot is noted among the problems."""
    for row in rows:
        try:
            yield make(row)
        except ContradictionError as problem:
            problems.append(str(problem))


def _flavor(row: Row, specs: dict[str, str]) -> Flavor:
    whose = f"flavor {row['name']!r}"
    sizes = {
        field: whole_in({column: row[column] or 0}, column, f"flavors.{column} of {whose}")
        for field, column in _SIZES.items()
    }
    flavor = Flavor(
        name=text_in(row, "name", f"flavors.name of number {row['id']}"), extra_specs=specs, **sizes
    )
    check_message(CreateFlavor(flavor=flavor), {"flavor": "flavors"}, f"{whose}: ")
    return flavor


def _group(row: Row) -> CreateGroup:
    whose = f"group {row['uuid']}"
    try:
        rules = json.loads(row["rules"]) if row["rules"] else {}
        max_per_host = int(rules.get("max_server_per_host", 1))
    except UNREADABLE:
        must_be = '{"max_server_per_host": NUMBER}'
        raise wrong(f"instance_group_policy.rules of {whose}", row["rules"], must_be) from None
    group = CreateGroup(
        id=GroupId(id_of(row["uuid"], f"instance_groups.uuid of group {row['name']!r}")),
        policy=row["policy"],
        max_per_host=max_per_host,
        name=row["name"] or "",
        project=row["project"] or "",
    )
    columns = {"max_per_host": "instance_group_policy.rules", "name": "instance_groups.name"}
    check_message(group, columns | {"project": "instance_groups.project_id"}, f"{whose}: ")
    return group


def _aggregate(row: Row, metadata: dict[str, str], hosts: Sequence[str]) -> NovaAggregate:
    whose = f"aggregate {row['name']!r}"
    aggregate = NovaAggregate(
        AggregateId(id_of(row["uuid"], f"aggregates.uuid of {whose}")), row["name"], metadata, tuple(hosts)
    )
    order = SetAggregate(aggregate=aggregate.id, name=aggregate.name, metadata=dict(metadata))
    check_message(order, {"name": "aggregates.name", "metadata": "aggregate_metadata"}, f"{whose}: ")
    return aggregate


class Difference(Struct, frozen=True):
    """What Nova has otherwise than we do. `orders` make it equal, one after the other; without any, only people can decide."""

    what: str
    words: str
    orders: tuple[Message, ...] = ()


async def compare_shared(
    api: BusClient,
    shared: Shared,
    hosts: Sequence[HostState],
    providers: Sequence[ProviderState],
    *,
    names: Collection[str],
) -> list[Difference]:
    """`names` are those of all hosts that Nova has."""
    flavors = await items_of(api, AskFlavors(limit=PAGE), FlavorsFound, lambda page: page.flavors)
    groups = await items_of(api, AskGroups(limit=AT_ONCE), GroupsFound, lambda page: page.groups)
    aggregates = await items_of(api, AskAggregates(limit=PAGE), AggregatesFound, lambda page: page.aggregates)
    known, there = {each.name: each for each in flavors}, {each.id: each for each in groups}
    return [
        *_of_flavors(shared.flavors.values(), known),
        *_of_groups(shared.groups, there),
        *_of_aggregates(shared.aggregates, aggregates, hosts, providers, names),
    ]


async def create_shared(api: BusClient, differences: Sequence[Difference]) -> list[str]:
    """Create what is missing here. Returns what is not created, and why."""
    problems: list[str] = []
    left = [(each.what, each.orders) for each in differences]
    # An order about an aggregate that comes before an earlier one is done would overtake it.
    while left := [(what, orders) for what, orders in left if orders]:
        for some in batches_of(left, AT_ONCE):
            answers = await api.ask_all([orders[0] for _, orders in some])
            problems += [
                f"{what}: {answer.field} {answer.value}: {answer.reason}"
                for (what, _), answer in zip(some, answers, strict=True)
                if isinstance(answer, BuildRejected)
            ]
        left = [(what, orders[1:]) for what, orders in left]
    return problems


def _of_flavors(wanted: Iterable[Flavor], known: Mapping[str, Flavor]) -> Iterator[Difference]:
    for each in wanted:
        if (here := known.get(each.name)) != each:
            yield Difference(f"flavor {each.name}", _in_words(each, here), (CreateFlavor(flavor=each),))


def _of_groups(wanted: Iterable[CreateGroup], known: Mapping[GroupId, GroupState]) -> Iterator[Difference]:
    for each in wanted:
        here = known.get(each.id)
        if here is None or any(getattr(here, field) != getattr(each, field) for field in _GROUP):
            # One that is here was created by an earlier run, or is somebody else's, and stays as it is.
            orders = (each,) if here is None else ()
            yield Difference(f"server group {each.id}", _in_words(each, here, _GROUP), orders)


def _in_words(there: Struct, here: Struct | None, fields: Sequence[str] = ()) -> str:
    if here is None:
        return _NOT_HERE
    return ", ".join(
        f"{field} is {getattr(there, field)!r} in Nova, and {getattr(here, field)!r} here"
        for field in fields or there.__struct_fields__
        if getattr(there, field) != getattr(here, field)
    )


def _of_aggregates(
    wanted: Sequence[NovaAggregate],
    known: Sequence[Aggregate],
    hosts: Sequence[HostState],
    providers: Sequence[ProviderState],
    names: Collection[str],
) -> Iterator[Difference]:
    of_id = {each.id: each for each in known}
    member_of = {each.id: {*each.aggregates} for each in providers if each.parent is None}
    by_name: dict[str, list[HostState]] = {}
    members: dict[AggregateId, list[HostState]] = {}
    for host in hosts:
        by_name.setdefault(host.name, []).append(host)
        for id_ in member_of.get(host.id, ()):
            members.setdefault(id_, []).append(host)
    for each in wanted:
        what, of_nova, here = f"aggregate {each.name}", frozenset(each.hosts), of_id.get(each.id)
        missing = [
            host
            for name in each.hosts
            for host in by_name.get(name, ())
            if each.id not in member_of.get(host.id, ())
        ]
        more = [
            f"host {host.cell}/{host.name} is in it here, and not in Nova"
            for host in members.get(each.id, ())
            if host.name in names and host.name not in of_nova
        ]
        words = [_NOT_HERE] if here is None else [*_named_otherwise(each, here)]
        if words or missing:
            words += [f"host {host.cell}/{host.name} is in it in Nova, and not here" for host in missing]
            ids = [str(host.id) for host in missing]
            yield Difference(what, "; ".join(words), tuple(_orders_about(each, ids)))
        if here is not None:
            more += [
                f"metadata {key} is {value!r} here, and not in Nova"
                for key, value in sorted(here.metadata.items())
                if key not in each.metadata
            ]
        if more:
            yield Difference(what, "; ".join(more))


def compare_places(
    aggregates: Sequence[NovaAggregate], hosts: Sequence[HostState], keys: Sequence[str]
) -> list[Difference]:
    """Where these hosts are by the metadata of their aggregates: each key names the domains of one level, the largest first."""
    values: dict[tuple[str, str], str] = {}
    for aggregate in sorted(aggregates, key=lambda each: each.name):
        for key, name in product(aggregate.metadata.keys() & {*keys}, aggregate.hosts):
            values.setdefault((name, key), aggregate.metadata[key])
    at: dict[str, list[HostState]] = {}
    for host in hosts:
        found = takewhile(bool, [values.get((host.name, key), "") for key in keys])
        if (place := "/".join(found)) and place != host.place:
            at.setdefault(place, []).append(host)
    return [
        _misplaced(place, some) for place, there in at.items() for some in batches_of(there, HOSTS_PLACED_MAX)
    ]


def _misplaced(place: str, hosts: Sequence[HostState]) -> Difference:
    first = host_in_cell(hosts[0].cell, hosts[0].name)
    what = f"place of {first} and {len(hosts) - 1} more" if len(hosts) > 1 else f"place of {first}"
    if why := why_no_place(place):
        return Difference(what, f"{place!r} by Nova's aggregates: {why}")
    entries = tuple([HostPlace(host=str(each.id), place=place) for each in hosts])
    return Difference(what, f"{place} by Nova's aggregates, and not here", (PlaceHosts(hosts=entries),))


def _named_otherwise(there: NovaAggregate, here: Aggregate) -> Iterator[str]:
    if there.name != here.name:
        yield f"its name is {there.name!r} in Nova, and {here.name!r} here"
    for key, value in sorted(there.metadata.items()):
        if (ours := here.metadata.get(key)) != value:
            yield f"metadata {key} is {value!r} in Nova, and {'missing' if ours is None else repr(ours)} here"


def _orders_about(aggregate: NovaAggregate, hosts: Sequence[str]) -> Iterator[SetAggregate]:
    for some in batches_of(hosts, HOSTS_PER_ORDER_MAX) if hosts else [()]:
        yield SetAggregate(
            aggregate=aggregate.id,
            name=aggregate.name,
            metadata=dict(aggregate.metadata),
            add_hosts=tuple(some),
        )
