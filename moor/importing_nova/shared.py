"""What belongs to no single host: flavors, server groups and aggregates of Nova, which are created here under their ids and names."""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from msgspec import Struct

from bus.message import AggregateId, GroupId, Message
from bus.messages.aggregates import Aggregate, AggregatesFound, AskAggregates, SetAggregate
from bus.messages.build import BuildRejected, Flavor
from bus.messages.flavors import AskFlavors, CreateFlavor, FlavorsFound
from bus.messages.groups import AskGroups, CreateGroup, GroupsFound
from bus.messages.hosts import HostState
from bus.messages.placement import ProviderState
from moor.asking import PAGE, Client, batches_of, items_of
from moor.importing_nova.reading import NovaDatabases

AT_ONCE = 200
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
    return Shared(
        flavors={row["id"]: _flavor(row, specs.get(row["id"], {})) for row in flavors},
        groups=tuple(_group(row) for row in groups if row["policy"] in POLICIES),
        aggregates=tuple(
            NovaAggregate(
                AggregateId(UUID(row["uuid"])),
                row["name"],
                metadata.get(row["id"], {}),
                tuple(members.get(row["id"], ())),
            )
            for row in aggregates
            if row["uuid"]
        ),
    )


def _flavor(row: Mapping[str, Any], specs: dict[str, str]) -> Flavor:
    return Flavor(
        name=row["name"],
        vcpus=row["vcpus"],
        ram_mb=row["memory_mb"],
        root_gb=row["root_gb"] or 0,
        ephemeral_gb=row["ephemeral_gb"] or 0,
        swap_mb=row["swap"] or 0,
        extra_specs=specs,
    )


def _group(row: Mapping[str, Any]) -> CreateGroup:
    rules = json.loads(row["rules"]) if row["rules"] else {}
    return CreateGroup(
        id=GroupId(UUID(row["uuid"])),
        policy=row["policy"],
        max_per_host=int(rules.get("max_server_per_host", 1)),
        name=row["name"] or "",
        project=row["project"] or "",
    )


async def create_shared(
    api: Client, shared: Shared, hosts: Sequence[HostState], providers: Sequence[ProviderState]
) -> list[str]:
    """Create what is missing here. Returns what is not created, and why."""
    orders: list[tuple[str, Message]] = []
    known = {
        each.name: each
        for each in await items_of(api, AskFlavors(limit=PAGE), FlavorsFound, lambda page: page.flavors)
    }
    orders += [
        (f"flavor {each.name}", CreateFlavor(flavor=each))
        for each in shared.flavors.values()
        if known.get(each.name) != each
    ]
    groups = {
        each.id
        for each in await items_of(api, AskGroups(limit=AT_ONCE), GroupsFound, lambda page: page.groups)
    }
    orders += [(f"server group {each.id}", each) for each in shared.groups if each.id not in groups]
    there = await items_of(api, AskAggregates(limit=PAGE), AggregatesFound, lambda page: page.aggregates)
    orders += _of_aggregates(shared.aggregates, there, hosts, providers)
    problems = []
    for some in batches_of(orders, AT_ONCE):
        answers = await api.ask_all([order for _, order in some])
        problems += [
            f"{what}: {answer.field} {answer.value}: {answer.reason}"
            for (what, _), answer in zip(some, answers, strict=True)
            if isinstance(answer, BuildRejected)
        ]
    return problems


def _of_aggregates(
    wanted: Sequence[NovaAggregate],
    known: Sequence[Aggregate],
    hosts: Sequence[HostState],
    providers: Sequence[ProviderState],
) -> list[tuple[str, Message]]:
    of_id = {each.id: each for each in known}
    member_of = {each.id: {*each.aggregates} for each in providers if each.parent is None}
    by_name: dict[str, list[HostState]] = {}
    for host in hosts:
        by_name.setdefault(host.name, []).append(host)
    found: list[tuple[str, Message]] = []
    for each in wanted:
        here = of_id.get(each.id)
        missing = tuple(
            str(host.id)
            for name in each.hosts
            for host in by_name.get(name, ())
            if each.id not in member_of.get(host.id, ())
        )
        if here is not None and here.metadata == each.metadata and not missing:
            continue
        order = SetAggregate(
            aggregate=each.id, name=each.name, metadata=dict(each.metadata), add_hosts=missing[:1000]
        )
        found.append((f"aggregate {each.name}", order))
    return found
