"""`moor nova import` and a Nova whose rows contradict each other, or whose databases are not what they should be: each is named, nothing is
half done, and other hosts are handed over all the same.
"""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.nova.rows import SMALL, FlavorRow, NovaRows, id_of, stored
from tests.nova.schema import NovaAddresses, sqlite_databases
from tests.stories.moor.moor_process import moor, moor_json, started

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(300)]

GOOD, BAD = "harbour-host-00001", "harbour-host-00002"


@asynccontextmanager
async def cloud(home: Path, cells: str = "harbour", *, hosts: int = 4) -> AsyncIterator[dict[str, str]]:
    environment = {"XDG_STATE_HOME": str(home)}
    async with started("up", "--cells", cells, "--hosts", str(hosts), **environment) as up:
        await up.until_printed("ready")
        yield environment


def an_estate(home: Path, cells: tuple[str, ...] = ("harbour",), *, old: bool = False) -> NovaAddresses:
    """Two hosts with an instance each, which may be handed over."""
    addresses = sqlite_databases(
        home / f"nova-{len(list(home.iterdir()))}", cells, old=old, placement=not old
    )
    with NovaRows(addresses) as nova:
        nova.flavor(SMALL)
        for number, host in enumerate((GOOD, BAD)):
            nova.host("harbour", host)
            nova.disable("harbour", host)
            nova.instance("harbour", host, number)
    return addresses


async def reports(
    addresses: NovaAddresses, *arguments: str, **environment: str
) -> tuple[int, Mapping[str, Any]]:
    ran = await moor("nova", "import", *addresses.arguments, *arguments, "-o", "json", **environment)
    assert ran.code in (0, 1), ran.out + ran.err
    assert ran.out, ran.err
    return ran.code, {f"{each['cell']}/{each['host']}": each for each in json.loads(ran.out)["hosts"]}


def of_nowhere(nova: NovaRows) -> str:
    nova.instance("harbour", "vanished", 50, holds=False)
    return "harbour/vanished: host vanished has no compute node"


def without_instance(nova: NovaRows) -> str:
    provider = nova.provider_of(id_of("node", "harbour", BAD))
    nova.allocations(id_of("gone"), [(provider, "VCPU", 1)])
    return f"harbour/{BAD}: consumer {id_of('gone')} (instance) holds something of host {BAD}, and Nova has no such instance there"


def beyond_capacity(nova: NovaRows) -> str:
    huge = FlavorRow(name="huge", vcpus=1, ram_mb=140_000, root_gb=1, id=9)
    nova.instance("harbour", BAD, 51, flavor=huge)
    return f"harbour/{BAD}: MEMORY_MB of {BAD}: its instances need"


def without_flavor(nova: NovaRows) -> str:
    lost = structs.replace(SMALL, id=77)
    id_ = nova.instance("harbour", BAD, 52, flavor=lost, extra={"flavor": None})
    return f"harbour/{BAD}: instance {id_} has no flavor in instance_extra, and flavor number 77 is deleted"


def of_another_version(nova: NovaRows) -> str:
    flavor = json.dumps({"cur": stored("Flavor", "2.3", {}), "old": None, "new": None})
    id_ = nova.instance("harbour", BAD, 53, extra={"flavor": flavor})
    return f"harbour/{BAD}: instance {id_}: instance_extra.flavor is a Flavor of version 2.3, known are 1.0 to 1.2"


def not_json(nova: NovaRows) -> str:
    id_ = nova.instance("harbour", BAD, 54, extra={"numa_topology": "{half"})
    return f"harbour/{BAD}: instance {id_}: instance_extra.numa_topology is not JSON"


def without_allocations(nova: NovaRows) -> str:
    id_ = nova.instance("harbour", BAD, 55, holds=False)
    return f"harbour/{BAD}: instance {id_} holds nothing in Nova's placement"


def under_way(nova: NovaRows) -> str:
    id_ = nova.instance("harbour", BAD, 56, task_state="powering-off")
    return f"harbour/{BAD}: instance {id_} is active, and Nova is powering-off"


def being_moved(nova: NovaRows) -> str:
    migration = nova.migration("harbour", GOOD, BAD, id_of("instance", 1), "post-migrating")
    return (
        f"harbour/{BAD}: migration {migration} (resize) of instance {id_of('instance', 1)} is post-migrating"
    )


ATTACKS: list[Callable[[NovaRows], str]] = [
    *(of_nowhere, without_instance, beyond_capacity, without_flavor, of_another_version, not_json),
    *(without_allocations, under_way, being_moved),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
async def test_rows_that_contradict_keep_back_their_host_alone(
    attack: Callable[[NovaRows], str], home: Path
) -> None:
    addresses = an_estate(home)
    with NovaRows.again(addresses) as nova:
        where, _, why = attack(nova).partition(": ")
    async with cloud(home) as environment:
        code, told = await reports(addresses, **environment)

        assert code == 1
        assert any(why in reason for reason in told[where]["reasons"]), told[where]
        assert (told[where]["stage"], told[where]["copied"]) == ("kept back", 0)
        hosts = {each["host"] for each in await moor_json("list", **environment)}
        is_of_both = attack is being_moved
        assert hosts == (set() if is_of_both else {GOOD} if where.endswith(BAD) else {GOOD, BAD})
        # The host here is as it was.
        if where.endswith(BAD):
            assert (await moor_json("host", "show", BAD, **environment))["setting"]["mode"] == "up"
        assert (await moor("audit", "--settle", "0", **environment)).code == 0


async def test_hosts_and_instances_of_several_cells_are_in_one_only(home: Path) -> None:
    addresses = an_estate(home, ("harbour", "island"))
    with NovaRows.again(addresses) as nova:
        nova.host("island", BAD, hypervisor_hostname="twin.example.org")
        nova.host("island", "island-host-00001")
        for host in (BAD, "island-host-00001"):
            nova.disable("island", host)
        nova.add(
            "island",
            "instances",
            uuid=id_of("instance", 0),
            host="island-host-00001",
            vm_state="active",
            deleted=0,
        )
    async with cloud(home, "harbour,island") as environment:
        code, told = await reports(addresses, **environment)

    assert code == 1
    clash = f"host {BAD} is in several cells of Nova: harbour, island"
    assert clash in told[f"harbour/{BAD}"]["reasons"]
    assert clash in told[f"island/{BAD}"]["reasons"]
    twice = f"instance {id_of('instance', 0)} is in several cells of Nova"
    assert twice in told[f"harbour/{GOOD}"]["reasons"]
    assert twice in told["island/island-host-00001"]["reasons"]
    assert {each["copied"] for each in told.values()} == {0}


async def test_a_host_on_which_something_was_built_here_is_not_taken(home: Path) -> None:
    addresses = an_estate(home)
    async with cloud(home) as environment:
        (built,) = (await moor_json("boot", "--vcpus", "1", "--host", BAD, **environment))["instances"]

        code, told = await reports(addresses, **environment)

        assert code == 1
        assert told[f"harbour/{BAD}"]["reasons"] == [
            f"instance {built['id']} was built on it here, while Nova has the host"
        ]
        assert told[f"harbour/{GOOD}"]["stage"] == "here"


async def test_verify_names_what_differs(home: Path) -> None:
    addresses = an_estate(home)
    async with cloud(home) as environment:
        assert (await reports(addresses, **environment))[0] == 0
        first, second = id_of("instance", 0), id_of("instance", 1)
        with NovaRows.again(addresses) as nova:
            nova.change("harbour", "UPDATE instances SET display_name = 'other' WHERE uuid = ?", first)
            nova.change("harbour", "UPDATE instances SET vm_state = 'stopped' WHERE uuid = ?", second)
            nova.change("harbour", "UPDATE services SET disabled = 0 WHERE host = ?", BAD)
            nova.change(
                "placement", "UPDATE allocations SET used = 3 WHERE consumer_id = ? AND used = 2", second
            )
            nova.change(
                "placement",
                "UPDATE inventories SET allocation_ratio = 8.0 WHERE resource_provider_id = ? AND total = 32",
                nova.provider_of(id_of("node", "harbour", BAD)),
            )
        (built,) = (await moor_json("boot", "--vcpus", "1", "--host", GOOD, **environment))["instances"]

        code, told = await reports(addresses, "--verify", **environment)

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


async def test_shared_things_keep_their_ids_and_bare_metal_is_left_alone(home: Path) -> None:
    addresses = an_estate(home)
    with NovaRows.again(addresses) as nova:
        group = nova.group(
            "web", "anti-affinity", [id_of("instance", 0), id_of("instance", 1)], max_per_host=2
        )
        zone = nova.aggregate("zone-n", [GOOD], rack="7")
        nova.flavor(FlavorRow(name="gold", id=5, extra_specs={"trait:HW_CPU_X86_AVX2": "required"}))
        nova.host("harbour", "metal", hypervisor_type="ironic")
    async with cloud(home) as environment:
        code, told = await reports(addresses, **environment)

        assert code == 0, told
        assert told["harbour/metal"]["stage"] == "bare metal"
        shown = await moor_json("group", "show", group, **environment)
        assert (shown["policy"], shown["max_per_host"], shown["project"]) == ("anti-affinity", 2, "shop")
        assert {each["consumer"] for each in shown["members"]} == {id_of("instance", 0), id_of("instance", 1)}
        found = await moor_json("aggregate", "show", "zone-n", **environment)
        assert (found["id"], found["metadata"], found["hosts"]) == (zone, {"rack": "7"}, [GOOD])
        assert (await moor_json("flavor", "show", "gold", **environment))["extra_specs"] == {
            "trait:HW_CPU_X86_AVX2": "required"
        }
