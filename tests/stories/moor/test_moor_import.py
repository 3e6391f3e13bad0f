"""`moor nova import`: an operator takes the hosts of a Nova over, one after the other, and gives one back. If its rows contradict each other, or its
databases are not what they should be, each is named with table, row and value, nothing is half done, and other hosts are handed over.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.nova.rows import SMALL, FlavorRow, NovaRows, id_of, stored
from tests.nova.schema import NovaAddresses, sqlite_databases
from tests.nova.switch import switch
from tests.stories.moor.moor_process import Up, up

FIRST = "harbour-host-00001"
AT_HOST = f"harbour/{FIRST}"


async def imported(cloud: Up, addresses: NovaAddresses, *arguments: str) -> tuple[int, Any]:
    """The exit code, and what is printed: its hosts by their cells and names."""
    ran = await cloud.run("nova", "import", *addresses.arguments, *arguments, "-o", "json")
    assert ran.code in (0, 1), ran.out + ran.err
    assert ran.out, ran.err
    told = json.loads(ran.out)
    shared = {"": told["not_created"], "differences": told["differences"]}
    return ran.code, {f"{each['cell']}/{each['host']}": each for each in told["hosts"]} | shared


def bytes_of(addresses: NovaAddresses) -> list[bytes]:
    files = [addresses.api, *addresses.cells.values(), addresses.placement]
    return [Path(each.removeprefix("sqlite:///")).read_bytes() for each in files if each]


async def test_one_host_and_its_instances_are_handed_over_and_given_back(home: Path) -> None:
    addresses = sqlite_databases(home / "nova", ("harbour",))
    with NovaRows(addresses) as nova:
        nova.flavor(SMALL)
        nova.host("harbour", FIRST)
        states = ("active", "stopped", "error")
        ids = [nova.instance("harbour", FIRST, number, vm_state=each) for number, each in enumerate(states)]
    async with up(home, "--cells", "harbour", "--hosts", "2") as cloud:
        code, told = await imported(cloud, addresses)
        assert (code, told[AT_HOST]["stage"], told[AT_HOST]["copied"]) == (1, "in nova", 0)
        assert told[AT_HOST]["reasons"] == [
            f"enabled in Nova: `openstack compute service set --disable {FIRST} nova-compute`"
        ]
        assert await cloud.json("list") == []

        with NovaRows.again(addresses) as nova:
            nova.disable("harbour", FIRST)
        before = bytes_of(addresses)
        code, told = await imported(cloud, addresses)
        assert (code, told[AT_HOST]) == (
            0,
            {"cell": "harbour", "host": FIRST, "stage": "here", "instances": 3, "copied": 3, "reasons": []},
        )
        assert told[""] == []
        listed = {each["id"]: each for each in await cloud.json("list")}
        assert [(listed[id_]["state"], listed[id_]["host"], listed[id_]["name"]) for id_ in ids] == [
            ("active", FIRST, "vm-0"),
            ("stopped", FIRST, "vm-1"),
            ("error", FIRST, "vm-2"),
        ]
        assert listed[ids[0]]["request_id"] == id_of("request", 0)
        await cloud.says(0, "", "audit", "--settle", "0")
        assert (await imported(cloud, addresses))[0] == 0
        code, told = await imported(cloud, addresses, "--verify")
        assert (code, told[AT_HOST]["reasons"]) == (0, [])
        # Instances are built beside them.
        (built,) = (await cloud.json("boot", "--vcpus", "1", "--host", FIRST))["instances"]
        assert built["state"] == "active"

        code, told = await imported(cloud, addresses, "--give-back", FIRST)
        assert (code, told[AT_HOST]["stage"]) == (1, "here")
        assert told[AT_HOST]["reasons"] == [
            f"instance {built['id']} was built or moved here: delete it, or move it to another host"
        ]
        await cloud.says(0, "", "delete", built["id"])
        for _ in range(2):
            code, told = await imported(cloud, addresses, "--give-back", FIRST)
            assert (code, told[AT_HOST]["stage"], told[AT_HOST]["reasons"]) == (0, "given back", [])
        assert {each["state"] for each in await cloud.json("list")} == {"deleted"}
        await cloud.says(0, "", "audit", "--settle", "0")
        code, told = await imported(cloud, addresses)
        assert (code, told[AT_HOST]["stage"], told[AT_HOST]["copied"]) == (0, "here", 3)
        await cloud.says(0, "", "audit", "--settle", "0")
    assert bytes_of(addresses) == before


async def test_what_belongs_to_no_host_comes_over_whole_and_is_compared(home: Path) -> None:
    addresses = sqlite_databases(home / "nova", ("harbour",))
    hosts = [f"harbour-host-{number + 1:05d}" for number in range(1001)]
    limited = {"quota:disk_read_bytes_sec": "1", "hw_rng:allowed": "true", "hw:watchdog_action": "reset"}
    with NovaRows(addresses) as nova:
        nova.flavor(FlavorRow(name="limited", vcpus=1, ram_mb=64, root_gb=1, id=7, extra_specs=limited))
        nova.host("harbour", FIRST)
        nova.disable("harbour", FIRST)
        group = nova.group("apart", "anti-affinity", ())
        nova.aggregate("rack", hosts, rack="1")
    async with up(home, "--cells", "harbour", "--hosts", str(len(hosts))) as cloud:
        code, told = await imported(cloud, addresses, "--verify")
        assert code == 1
        *lacking, of_rack = told["differences"]
        assert lacking == [
            "flavor limited: Nova has it, and it is not here",
            f"server group {group}: Nova has it, and it is not here",
        ]
        assert of_rack.startswith("aggregate rack: Nova has it, and it is not here; host harbour/")
        assert of_rack.count(" is in it in Nova, and not here") == len(hosts)

        assert (await imported(cloud, addresses))[1][""] == []
        assert sorted((await cloud.json("aggregate", "show", "rack"))["hosts"]) == hosts
        assert (await imported(cloud, addresses, "--verify"))[1]["differences"] == []
        (built,) = (await cloud.json("boot", "--flavor", "limited"))["instances"]
        assert built["state"] == "active"
        placed_from = ("--place-from", "rack,none")
        differences = (await imported(cloud, addresses, "--verify", *placed_from))[1]["differences"]
        assert [each.partition(": ")[2] for each in differences] == [
            "1 by Nova's aggregates, and not here"
        ] * 3
        assert differences[0].startswith("place of harbour/")
        assert " and 499 more: " in differences[0]
        assert (await imported(cloud, addresses, *placed_from))[1][""] == []
        assert (await imported(cloud, addresses, "--verify", *placed_from))[1]["differences"] == []
        assert {each["place"] for each in await cloud.json("host", "list")} == {"1"}

        await cloud.run("aggregate", "set", "rack", "rack=2", "row=b")
        await cloud.run("aggregate", "remove", "rack", hosts[-1])
        with NovaRows.again(addresses) as nova:
            nova.change("api", "DELETE FROM aggregate_hosts WHERE host = ?", FIRST)
            nova.change("api", "UPDATE flavors SET vcpus = 2 WHERE name = 'limited'")
        other = "flavor limited: vcpus is 2 in Nova, and 1 here"
        assert (await imported(cloud, addresses, "--verify"))[1]["differences"] == [
            other,
            f"aggregate rack: metadata rack is '1' in Nova, and '2' here; host harbour/{hosts[-1]} is in it in Nova, and not here",
            f"aggregate rack: host harbour/{FIRST} is in it here, and not in Nova; metadata row is 'b' here, and not in Nova",
        ]
        # What is only here may be the operator's: it stays.
        refused = (await imported(cloud, addresses))[1][""]
        assert len(refused) == 1
        assert refused[0].startswith("flavor limited: ")
        assert (await imported(cloud, addresses, "--verify"))[1]["differences"] == [
            other,
            f"aggregate rack: host harbour/{FIRST} is in it here, and not in Nova; metadata row is 'b' here, and not in Nova",
        ]


@pytest.mark.timeout(300)
async def test_interrupted_ten_times_it_ends_the_same_while_both_clouds_build(home: Path) -> None:
    switched = await switch(home, 12, 120)

    assert (switched.kills, switched.built_by_nova) == (10, 10)
    assert switched.boots > 10
    assert switched.audit.startswith("no faults")


GOOD, BAD = "harbour-host-00001", "harbour-host-00002"
# What an attack does to the rows of a host and of its only instance. It may return the id of what it adds.
Attack = Callable[[NovaRows, str, str], object]


def an_estate(home: Path, cells: tuple[str, ...] = ("harbour",)) -> NovaAddresses:
    """Two hosts with an instance each, which may be handed over."""
    addresses = sqlite_databases(home / "nova", cells)
    with NovaRows(addresses) as nova:
        nova.flavor(SMALL)
        for number, host in enumerate((GOOD, BAD)):
            nova.host("harbour", host)
            nova.disable("harbour", host)
            nova.instance("harbour", host, number)
    return addresses


def flavored(**changes: object) -> str:
    data = {**SMALL.object["nova_object.data"], **changes}
    return json.dumps({"cur": stored("Flavor", "1.2", data), "old": None, "new": None})


def changed(database: str, table: str, column: str, value: object, *, key: str = "uuid") -> Attack:
    statement = f"UPDATE {table} SET {column} = ? WHERE {key} = ?"  # noqa: S608 - names of this file
    return lambda nova, host, victim: nova.change(
        database, statement, value, host if key == "host" else victim
    )


of_instance = partial(changed, "harbour", "instances")
of_extra = partial(changed, "harbour", "instance_extra", key="instance_uuid")
of_spec = partial(changed, "api", "request_specs", "spec", key="instance_uuid")
of_allocation = partial(changed, "placement", "allocations", "used", key="consumer_id")
of_node = partial(changed, "harbour", "compute_nodes", key="host")


def with_a_group(nova: NovaRows, host: str, victim: str) -> None:  # noqa: ARG001 - the others use it
    group = nova.group("ring", "affinity", [victim])
    nova.change("api", "UPDATE instance_groups SET uuid = 'ring' WHERE uuid = ?", group)


def of_nobody(nova: NovaRows, host: str, victim: str) -> None:  # noqa: ARG001 - the others use it
    nova.allocations(id_of("gone"), [(nova.provider_of(id_of("node", "harbour", host)), "VCPU", 1)])


def under_way(nova: NovaRows, host: str, victim: str) -> object:
    return nova.migration("harbour", host, "vanished", victim, "post-migrating")


def with_more(number: int, **fields: Any) -> Attack:
    """Another instance on this host."""
    return lambda nova, host, _: nova.instance("harbour", host, number, **fields)


HUGE = FlavorRow(name="huge", vcpus=1, ram_mb=140_000, root_gb=1, id=9)
LATER = json.dumps({"cur": stored("Flavor", "2.3", {}), "old": None, "new": None})
NO_IDS = json.dumps(stored("InstanceNUMATopology", "1.3", {"cells": [stored("InstanceNUMACell", "1.6", {})]}))
FLAVOR, SPEC = "instance {victim}: instance_extra.flavor", "instance {victim}: request_specs.spec"
TOPOLOGY = "instance {victim}: instance_extra.numa_topology"
OF_INSTANCES = "instance {victim}: instances"
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
    (of_instance("task_state", "powering-off"), "instance {victim} is active, and Nova is powering-off"),
    (of_extra("flavor", LATER), f"{FLAVOR} is a Flavor of version 2.3, known are 1.0 to 1.2"),
    (of_extra("numa_topology", "{half"), f"{TOPOLOGY} is not JSON"),
    (with_more(951, flavor=HUGE), "MEMORY_MB of {host}: its instances need"),
    (
        with_more(952, flavor=structs.replace(SMALL, id=77), extra={"flavor": None}),
        "instance {victim} has no flavor in instance_extra, and flavor number 77 is deleted",
    ),
    (with_more(953, holds=False), "instance {victim} holds nothing in Nova's placement"),
    (under_way, "migration {victim} (resize) of instance"),
    (
        of_nobody,
        f"consumer {id_of('gone')} (instance) holds something of host {{host}}, and Nova has no such instance there",
    ),
    (with_more(900, uuid="no-uuid"), "instances.uuid of an instance on host {host} is 'no-uuid'"),
    (of_allocation(-2), "allocations.used of consumer {victim} is -2"),
    (of_allocation("much"), "allocations.used of consumer {victim} is 'much'"),
    (of_node("vcpus", -1), "compute_nodes.vcpus of host {host} is -1"),
    (of_node("memory_mb", "lots"), "compute_nodes.memory_mb of host {host} is 'lots'"),
    (of_node("cpu_allocation_ratio", "four"), "compute_nodes.cpu_allocation_ratio of host {host} is 'four'"),
    (with_a_group, "instance {victim}: instance_groups.uuid is 'ring'"),
)


@pytest.mark.timeout(300)
async def test_a_value_that_cannot_be_and_rows_that_contradict_keep_back_their_host_alone(home: Path) -> None:
    addresses = an_estate(home)
    whys = {"vanished": "host vanished has no compute node"}
    with NovaRows.again(addresses) as nova:
        nova.instance("harbour", "vanished", 950, holds=False)
        for number, (attack, why) in enumerate(ROWS, 3):
            host = f"harbour-host-{number:05d}"
            nova.host("harbour", host)
            nova.disable("harbour", host)
            victim = nova.instance("harbour", host, number)
            added = attack(nova, host, victim)
            whys[host] = why.format(victim=added or victim, host=host)
    async with up(home, "--cells", "harbour", "--hosts", str(len(ROWS) + 2)) as cloud:
        code, told = await imported(cloud, addresses)

        assert code == 1
        for host, why in whys.items():
            report = told[f"harbour/{host}"]
            assert any(why in reason for reason in report["reasons"]), (why, report)
            assert (report["stage"], report["copied"]) == ("kept back", 0), report
        assert {told[f"harbour/{host}"]["stage"] for host in (GOOD, BAD)} == {"here"}
        assert {each["host"] for each in await cloud.json("list")} == {GOOD, BAD}
        # The hosts here are as they were.
        assert {each["setting"]["mode"] for each in await cloud.json("host", "list")} == {"up"}
        await cloud.says(0, "", "audit", "--settle", "0")


@pytest.mark.timeout(300)
async def test_hosts_and_instances_of_several_cells_are_in_one_only(home: Path) -> None:
    addresses = an_estate(home, ("harbour", "island"))
    with NovaRows.again(addresses) as nova:
        nova.host("island", BAD, hypervisor_hostname="twin.example.org")
        nova.host("island", "island-host-00001")
        for host in (BAD, "island-host-00001"):
            nova.disable("island", host)
        nova.change("island", "UPDATE services SET last_seen_up = '2999-01-01 00:00:00' WHERE host = ?", BAD)
        moving = nova.migration("harbour", "vanished", BAD, id_of("instance", 7), "running")
        nova.add(
            "island",
            "instances",
            uuid=id_of("instance", 0),
            host="island-host-00001",
            vm_state="active",
            deleted=0,
        )
    async with up(home, "--cells", "harbour,island", "--hosts", "2") as cloud:
        code, told = await imported(cloud, addresses)

    assert code == 1
    clash = f"host {BAD} is in several cells of Nova: harbour, island"
    assert clash in told[f"harbour/{BAD}"]["reasons"]
    assert clash in told[f"island/{BAD}"]["reasons"]
    fenced = "nova-compute still runs there (heard 0 s ago): stop it, and wait for a minute"
    assert fenced in told[f"island/{BAD}"]["reasons"]
    assert f"migration {moving} (resize) of instance" in str(told[f"harbour/{BAD}"]["reasons"])
    twice = f"instance {id_of('instance', 0)} is in several cells of Nova"
    assert twice in told[f"harbour/{GOOD}"]["reasons"]
    assert twice in told["island/island-host-00001"]["reasons"]
    assert {each["copied"] for where, each in told.items() if "/" in where} == {0}


CELL = {"id": 0, "cpuset": [0, 1], "memory": SMALL.ram_mb, "pagesize": 2048}
IN_LARGE_PAGES = json.dumps(
    stored("InstanceNUMATopology", "1.3", {"cells": [stored("InstanceNUMACell", "1.6", CELL)]})
)
WITH_LARGE_PAGES = "numa_nodes=1,ram_mb=126976,pages=2048:4096"


@pytest.mark.timeout(300)
async def test_what_was_built_here_stays_and_what_differs_is_named(home: Path) -> None:
    """Shared things keep their ids, memory its pages, and bare metal is left alone."""
    addresses = an_estate(home)
    first, second = id_of("instance", 0), id_of("instance", 1)
    with NovaRows.again(addresses) as nova:
        group = nova.group("web", "anti-affinity", [first, second], max_per_host=2)
        zone = nova.aggregate("zone-n", [GOOD], rack="7")
        nova.flavor(FlavorRow(name="gold", id=5, extra_specs={"trait:HW_CPU_X86_AVX2": "required"}))
        nova.host("harbour", "metal", hypervisor_type="ironic")
        of_extra("numa_topology", IN_LARGE_PAGES)(nova, BAD, second)
    async with up(home, "--cells", "harbour", "--hosts", "4", "--host-size", WITH_LARGE_PAGES) as cloud:
        (built,) = (await cloud.json("boot", "--vcpus", "1", "--host", BAD))["instances"]
        code, told = await imported(cloud, addresses)
        assert code == 1
        assert told[f"harbour/{BAD}"]["reasons"] == [
            f"instance {built['id']} was built on it here, while Nova has the host"
        ]
        assert told[f"harbour/{GOOD}"]["stage"] == "here"

        await cloud.json("delete", built["id"], "--wait")
        code, told = await imported(cloud, addresses)
        assert (code, told["harbour/metal"]["stage"]) == (0, "bare metal"), told
        of_node = (await cloud.json("provider", "show", f"{BAD}_NUMA0"))["inventories"]
        assert of_node["CUSTOM_MEMORY_MB_PAGES_2048"]["used"] == SMALL.ram_mb
        shown = await cloud.json("group", "show", group)
        assert (shown["policy"], shown["max_per_host"], shown["project"]) == ("anti-affinity", 2, "shop")
        assert {each["consumer"] for each in shown["members"]} == {first, second}
        assert {each["user"] for each in await cloud.json("provider", "holders", GOOD)} == {"ann"}
        found = await cloud.json("aggregate", "show", "zone-n")
        assert (found["id"], found["metadata"], found["hosts"]) == (zone, {"rack": "7"}, [GOOD])
        specs = (await cloud.json("flavor", "show", "gold"))["extra_specs"]
        assert specs == {"trait:HW_CPU_X86_AVX2": "required"}

        with NovaRows.again(addresses) as nova:
            of_bad = nova.provider_of(id_of("node", "harbour", BAD))
            for database, change, of in (
                ("harbour", "instances SET display_name = 'other' WHERE uuid", first),
                ("harbour", "instances SET vm_state = 'stopped' WHERE uuid", second),
                ("harbour", "services SET disabled = 0 WHERE host", BAD),
                ("placement", "allocations SET used = 3 WHERE used = 2 AND consumer_id", second),
                (
                    "placement",
                    "inventories SET allocation_ratio = 8.0 WHERE total = 32 AND resource_provider_id",
                    of_bad,
                ),
            ):
                nova.change(database, f"UPDATE {change} = ?", of)
        (built,) = (await cloud.json("boot", "--vcpus", "1", "--host", GOOD))["instances"]

        code, told = await imported(cloud, addresses, "--verify")

        assert code == 1
        assert told[f"harbour/{GOOD}"]["reasons"] == [
            f"instance {built['id']}: it is active here, and Nova does not have it on this host",
            f"instance {first}: the name is other in Nova, and vm-0 here",
        ]
        assert told[f"harbour/{BAD}"]["reasons"] == [
            "it is enabled in Nova, too: one host has two masters",
            "inventory of VCPU: allocation_ratio is 8.0 in Nova, and 4.0 here",
            f"instance {second}: the state is stopped in Nova, and active here",
            f"instance {second}: it holds 3 VCPU in Nova, and 2 here",
        ]
