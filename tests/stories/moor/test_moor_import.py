"""`moor nova import`: an operator takes the hosts of a Nova over, one after the other, and gives one back."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.nova.rows import SMALL, FlavorRow, NovaRows, id_of
from tests.nova.schema import NovaAddresses, sqlite_databases
from tests.nova.switch import switch
from tests.stories.moor.moor_process import moor, moor_json, started

pytestmark = pytest.mark.asyncio

FIRST, SECOND = "harbour-host-00001", "harbour-host-00002"


async def import_json(addresses: NovaAddresses, *arguments: str, **environment: str) -> tuple[int, Any]:
    """The exit code, and what is printed: its hosts by name."""
    ran = await moor("nova", "import", *addresses.arguments, *arguments, "-o", "json", **environment)
    assert ran.code in (0, 1), ran.out + ran.err
    assert ran.out, ran.err
    told = json.loads(ran.out)
    shared = {"": told["not_created"], "differences": told["differences"]}
    return ran.code, {each["host"]: each for each in told["hosts"]} | shared


def bytes_of(addresses: NovaAddresses) -> list[bytes]:
    files = [addresses.api, *addresses.cells.values(), addresses.placement]
    return [Path(each.removeprefix("sqlite:///")).read_bytes() for each in files if each]


async def test_one_host_and_its_instances_are_handed_over_and_given_back(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    addresses = sqlite_databases(home / "nova", ("harbour",))
    with NovaRows(addresses) as nova:
        nova.flavor(SMALL)
        nova.host("harbour", FIRST)
        states = ("active", "stopped", "error")
        ids = [nova.instance("harbour", FIRST, number, vm_state=each) for number, each in enumerate(states)]
    async with started("up", "--cells", "harbour", "--hosts", "2", **environment) as up:
        await up.until_printed("ready")

        code, told = await import_json(addresses, **environment)
        assert (code, told[FIRST]["stage"], told[FIRST]["copied"]) == (1, "in nova", 0)
        assert told[FIRST]["reasons"] == [
            f"enabled in Nova: `openstack compute service set --disable {FIRST} nova-compute`"
        ]
        assert await moor_json("list", **environment) == []

        with NovaRows.again(addresses) as nova:
            nova.disable("harbour", FIRST)
        before = bytes_of(addresses)
        code, told = await import_json(addresses, **environment)
        assert (code, told[FIRST]) == (
            0,
            {"cell": "harbour", "host": FIRST, "stage": "here", "instances": 3, "copied": 3, "reasons": []},
        )
        assert told[""] == []
        listed = {each["id"]: each for each in await moor_json("list", **environment)}
        assert [(listed[id_]["state"], listed[id_]["host"], listed[id_]["name"]) for id_ in ids] == [
            ("active", FIRST, "vm-0"),
            ("stopped", FIRST, "vm-1"),
            ("error", FIRST, "vm-2"),
        ]
        assert listed[ids[0]]["request_id"] == id_of("request", 0)
        assert (await moor("audit", "--settle", "0", **environment)).code == 0
        assert (await import_json(addresses, **environment))[0] == 0
        code, told = await import_json(addresses, "--verify", **environment)
        assert (code, told[FIRST]["reasons"]) == (0, [])
        # Instances are built beside them.
        (built,) = (await moor_json("boot", "--vcpus", "1", "--host", FIRST, **environment))["instances"]
        assert built["state"] == "active"

        code, told = await import_json(addresses, "--give-back", FIRST, **environment)
        assert (code, told[FIRST]["stage"]) == (1, "here")
        assert told[FIRST]["reasons"] == [
            f"instance {built['id']} was built or moved here: delete it, or move it to another host"
        ]
        assert (await moor("delete", built["id"], **environment)).code == 0
        for _ in range(2):
            code, told = await import_json(addresses, "--give-back", FIRST, **environment)
            assert (code, told[FIRST]["stage"], told[FIRST]["reasons"]) == (0, "given back", [])
        assert {each["state"] for each in await moor_json("list", **environment)} == {"deleted"}
        assert (await moor("audit", "--settle", "0", **environment)).code == 0
        code, told = await import_json(addresses, **environment)
        assert (code, told[FIRST]["stage"], told[FIRST]["copied"]) == (0, "here", 3)
        assert (await moor("audit", "--settle", "0", **environment)).code == 0
    assert bytes_of(addresses) == before


async def test_what_belongs_to_no_host_comes_over_whole_and_is_compared(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    addresses = sqlite_databases(home / "nova", ("harbour",))
    hosts = [f"harbour-host-{number + 1:05d}" for number in range(1001)]
    limited = {"quota:disk_read_bytes_sec": "1", "hw_rng:allowed": "true", "hw:watchdog_action": "reset"}
    with NovaRows(addresses) as nova:
        nova.flavor(FlavorRow(name="limited", vcpus=1, ram_mb=64, root_gb=1, id=7, extra_specs=limited))
        nova.host("harbour", FIRST)
        nova.disable("harbour", FIRST)
        group = nova.group("apart", "anti-affinity", ())
        nova.aggregate("rack", hosts, rack="1")
    async with started("up", "--cells", "harbour", "--hosts", str(len(hosts)), **environment) as up:
        await up.until_printed("ready")

        code, told = await import_json(addresses, "--verify", **environment)
        assert code == 1
        *lacking, of_rack = told["differences"]
        assert lacking == [
            "flavor limited: Nova has it, and it is not here",
            f"server group {group}: Nova has it, and it is not here",
        ]
        assert of_rack.startswith("aggregate rack: Nova has it, and it is not here; host harbour/")
        assert of_rack.count(" is in it in Nova, and not here") == len(hosts)

        assert (await import_json(addresses, **environment))[1][""] == []
        members = await moor_json("aggregate", "show", "rack", **environment)
        assert sorted(members["hosts"]) == hosts
        assert (await import_json(addresses, "--verify", **environment))[1]["differences"] == []
        (built,) = (await moor_json("boot", "--flavor", "limited", **environment))["instances"]
        assert built["state"] == "active"

        await moor("aggregate", "set", "rack", "rack=2", "row=b", **environment)
        await moor("aggregate", "remove", "rack", hosts[-1], **environment)
        with NovaRows.again(addresses) as nova:
            nova.change("api", "DELETE FROM aggregate_hosts WHERE host = ?", FIRST)
            nova.change("api", "UPDATE flavors SET vcpus = 2 WHERE name = 'limited'")
        other = "flavor limited: vcpus is 2 in Nova, and 1 here"
        assert (await import_json(addresses, "--verify", **environment))[1]["differences"] == [
            other,
            f"aggregate rack: metadata rack is '1' in Nova, and '2' here; host harbour/{hosts[-1]} is in it in Nova, and not here",
            f"aggregate rack: host harbour/{FIRST} is in it here, and not in Nova; metadata row is 'b' here, and not in Nova",
        ]
        # What is only here may be the operator's: it stays.
        refused = (await import_json(addresses, **environment))[1][""]
        assert len(refused) == 1
        assert refused[0].startswith("flavor limited: ")
        assert (await import_json(addresses, "--verify", **environment))[1]["differences"] == [
            other,
            f"aggregate rack: host harbour/{FIRST} is in it here, and not in Nova; metadata row is 'b' here, and not in Nova",
        ]


@pytest.mark.timeout(300)
async def test_interrupted_ten_times_it_ends_the_same_while_both_clouds_build() -> None:
    with tempfile.TemporaryDirectory(prefix="moor-") as place:
        switched = await switch(Path(place), 12, 120)

    assert (switched.kills, switched.built_by_nova) == (10, 10)
    assert switched.boots > 10
    assert switched.audit.startswith("no faults")
