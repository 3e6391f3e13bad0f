"""`moor nova import` and rows with values that cannot be: the error names table, row and value, and nothing is half done."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.nova.rows import SMALL, NovaRows, stored
from tests.stories.moor.moor_process import moor, moor_json
from tests.stories.moor.test_moor_import_attacked import BAD, GOOD, an_estate, cloud, reports

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(300)]

# What an attack does to the rows of a host and of its only instance.
Attack = Callable[[NovaRows, str, str], None]


def flavored(**changes: object) -> str:
    small = SMALL.object
    data = {**small["nova_object.data"], **changes}
    return json.dumps({"cur": stored("Flavor", "1.2", data), "old": None, "new": None})


def changed(database: str, table: str, column: str, value: object, *, key: str = "uuid") -> Attack:
    statement = f"UPDATE {table} SET {column} = ? WHERE {key} = ?"  # noqa: S608 - names of this file
    return lambda nova, host, victim: nova.change(
        database, statement, value, host if key == "host" else victim
    )


def of_instance(column: str, value: object) -> Attack:
    return changed("harbour", "instances", column, value)


def of_extra(column: str, value: object) -> Attack:
    return changed("harbour", "instance_extra", column, value, key="instance_uuid")


def of_spec(value: object) -> Attack:
    return changed("api", "request_specs", "spec", value, key="instance_uuid")


def of_allocation(value: object) -> Attack:
    return changed("placement", "allocations", "used", value, key="consumer_id")


def of_node(column: str, value: object) -> Attack:
    return changed("harbour", "compute_nodes", column, value, key="host")


def with_another_id(nova: NovaRows, host: str, victim: str) -> None:  # noqa: ARG001 - the others use it
    nova.instance("harbour", host, 900, uuid="no-uuid")


def with_a_group(nova: NovaRows, host: str, victim: str) -> None:  # noqa: ARG001 - the others use it
    group = nova.group("ring", "affinity", [victim])
    nova.change("api", "UPDATE instance_groups SET uuid = 'ring' WHERE uuid = ?", group)


NO_IDS = json.dumps(stored("InstanceNUMATopology", "1.3", {"cells": [stored("InstanceNUMACell", "1.6", {})]}))
FLAVOR, SPEC = "instance {victim}: instance_extra.flavor", "instance {victim}: request_specs.spec"
TOPOLOGY = "instance {victim}: instance_extra.numa_topology"
OF_INSTANCES, OF_NODES = "instance {victim}: instances", "compute_nodes"
# What is done to a host of its own, and what its reason says.
ROWS: tuple[tuple[Attack, str], ...] = (
    (of_extra("flavor", flavored(vcpus=-1)), f"{FLAVOR}: vcpus is -1"),
    (of_extra("flavor", flavored(vcpus="many")), f"{FLAVOR}: a field is missing or wrong"),
    (of_extra("flavor", "<flavor/>"), f"{FLAVOR} is not JSON"),
    (of_spec("[["), f"{SPEC} is not JSON"),
    (of_spec("[1]"), f"{SPEC} is no RequestSpec: [1]"),
    (of_extra("numa_topology", NO_IDS), f"{TOPOLOGY}: a field is missing or wrong: KeyError('id')"),
    (of_instance("vm_state", None), f"{OF_INSTANCES}.vm_state is None"),
    (of_instance("vm_state", "sublimated"), "instance {victim} is 'sublimated'"),
    (of_instance("created_at", "yesterday"), f"{OF_INSTANCES}.created_at is 'yesterday'"),
    (of_instance("launch_index", -3), f"{OF_INSTANCES}.launch_index is -3"),
    (of_instance("display_name", "x" * 300), f"{OF_INSTANCES}.display_name is 'xxx"),
    (of_instance("project_id", "p" * 256), f"{OF_INSTANCES}.project_id is 'ppp"),
    (with_another_id, "instances.uuid of an instance on host {host} is 'no-uuid'"),
    (of_allocation(-2), "allocations.used of consumer {victim} is -2"),
    (of_allocation("much"), "allocations.used of consumer {victim} is 'much'"),
    (of_node("vcpus", -1), "compute_nodes.vcpus of host {host} is -1"),
    (of_node("memory_mb", "lots"), "compute_nodes.memory_mb of host {host} is 'lots'"),
    (of_node("cpu_allocation_ratio", "four"), "compute_nodes.cpu_allocation_ratio of host {host} is 'four'"),
    (with_a_group, "instance {victim}: instance_groups.uuid is 'ring'"),
)


async def test_an_impossible_value_keeps_back_its_host_alone_and_is_named(home: Path) -> None:
    addresses = an_estate(home)
    whys: dict[str, str] = {}
    with NovaRows.again(addresses) as nova:
        for number, (attack, why) in enumerate(ROWS, 3):
            host = f"harbour-host-{number:05d}"
            nova.host("harbour", host)
            nova.disable("harbour", host)
            victim = nova.instance("harbour", host, number)
            attack(nova, host, victim)
            whys[host] = why.format(victim=victim, host=host)
    async with cloud(home, hosts=len(ROWS) + 2) as environment:
        code, told = await reports(addresses, **environment)

        assert code == 1
        for host, why in whys.items():
            report = told[f"harbour/{host}"]
            assert any(why in reason for reason in report["reasons"]), (why, report)
            assert (report["stage"], report["copied"]) == ("kept back", 0), report
        assert {told[f"harbour/{host}"]["stage"] for host in (GOOD, BAD)} == {"here"}
        assert {each["host"] for each in await moor_json("list", **environment)} == {GOOD, BAD}
        hosts = await moor_json("host", "list", **environment)
        assert {each["setting"]["mode"] for each in hosts} == {"up"}
        assert (await moor("audit", "--settle", "0", **environment)).code == 0
