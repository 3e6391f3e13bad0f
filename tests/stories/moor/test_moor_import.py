"""`moor import nova`: an operator takes the hosts of a Nova over, one after the other, and gives one back."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.nova.rows import SMALL, NovaRows, id_of
from tests.nova.schema import NovaAddresses, sqlite_databases
from tests.nova.switch import switch
from tests.stories.moor.moor_process import moor, moor_json, started

pytestmark = pytest.mark.asyncio

FIRST, SECOND = "harbour-host-00001", "harbour-host-00002"


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: the path of a socket may not be long."""
    with tempfile.TemporaryDirectory(prefix="moor-") as place:
        yield Path(place)


async def import_json(addresses: NovaAddresses, *arguments: str, **environment: str) -> tuple[int, Any]:
    """The exit code, and what is printed: its hosts by name."""
    ran = await moor("import", "nova", *addresses.arguments, *arguments, "--json", **environment)
    assert ran.code in (0, 1), ran.out + ran.err
    assert ran.out, ran.err
    told = json.loads(ran.out)
    return ran.code, {each["host"]: each for each in told["hosts"]} | {"": told["not_created"]}


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
        code, told = await import_json(addresses, "--give-back", FIRST, **environment)
        assert (code, told[FIRST]["stage"], told[FIRST]["reasons"]) == (0, "given back", [])
        assert {each["state"] for each in await moor_json("list", **environment)} == {"deleted"}
        assert (await moor("audit", "--settle", "0", **environment)).code == 0
        code, told = await import_json(addresses, **environment)
        assert (code, told[FIRST]["stage"], told[FIRST]["copied"]) == (0, "here", 3)
        assert (await moor("audit", "--settle", "0", **environment)).code == 0
    assert bytes_of(addresses) == before


@pytest.mark.timeout(300)
async def test_interrupted_ten_times_it_ends_the_same_while_both_clouds_build() -> None:
    with tempfile.TemporaryDirectory(prefix="moor-") as place:
        switched = await switch(Path(place), 12, 120)

    assert (switched.kills, switched.built_by_nova) == (10, 10)
    assert switched.boots > 10
    assert switched.audit.startswith("no faults")
