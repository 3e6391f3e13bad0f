"""Commands that act on many things at once: on what is named or on what filters choose, never on more; and they say what was not done."""

import json
from collections import Counter
from pathlib import Path

import pytest

from bus import message
from bus.addresses import broker_at
from bus.message import Parcel
from bus.topology import DEAD
from tests.contracts.stage import send
from tests.stories.moor.moor_process import moor, moor_json, started

pytestmark = pytest.mark.asyncio


async def test_names_and_filters_are_not_mixed_and_one_refusal_stops_nothing(tmp_path: Path) -> None:
    here = {"XDG_STATE_HOME": str(tmp_path)}
    async with started("up", "--cells", "a,b", "--hosts", "2", "--nodes", "1", **here) as process:
        await process.until_printed("ready")
        for both in (
            ("host", "set", "a-host-00001", "--cell", "b", "draining"),
            ("host", "delete", "a-host-00001", "--cell", "b"),
            ("host", "set", "a-host-00001", "--down", "draining"),
            ("delete", "web", "--part", "web"),
            ("dead", "delete", "0123", "--all"),
        ):
            mixed = await moor(*both, **here)
            assert (mixed.code, "give one or the other" in mixed.err) == (2, True), both

        # A host that is heard is not set dead without a word; the others are.
        draining = await moor("host", "set", "a-host-00001", "draining", "-o", "json", **here)
        assert "uses" not in json.loads(draining.out)
        some = await moor(
            "host", "set", "a-host-00002", "nowhere", "b-host-00001", "dead", "-o", "json", **here
        )
        assert (some.code, json.loads(some.out)) == (1, [])
        assert all(
            each in some.err for each in ("a-host-00002 was heard", "no host", "b-host-00001 was heard")
        )
        others = await moor(
            "host", "set", "a-host-00002", "nowhere", "b-host-00001", "down", "-o", "json", **here
        )
        assert [each["name"] for each in json.loads(others.out)] == ["a-host-00002", "b-host-00001"]
        assert (others.code, "no host" in others.err) == (1, True)
        by_id = json.loads(others.out)[0]["id"]
        assert (await moor_json("host", "show", by_id, **here))["name"] == "a-host-00002"
        assert (await moor_json("host", "set", by_id, "up", **here))["setting"]["mode"] == "up"

        # No text is no name.
        unnamed = await moor("node", "power", "off", "", **here)
        assert (unnamed.code, "there is no node ''" in unnamed.err) == (1, True)

        await moor("group", "create", "web", "--policy", "affinity", **here)
        gone = await moor("group", "delete", "web", "-o", "name", **here)
        assert len(gone.out.split()) == 1

        letters = [
            Parcel(DEAD, "compute.a.work", b"{}", headers={message.REASON: str(each)}) for each in range(5)
        ]
        await send(broker_at(f"unix://{tmp_path}/moorage/bus.sock"), *letters)
        deleted = await moor("dead", "delete", "--all", "--limit", "3", **here)
        assert (deleted.out.strip(), "2 dead letters are left" in deleted.err) == ("deleted 3", True)


async def test_a_host_with_a_larger_affinity_group_than_one_order_moves_is_emptied(home: Path) -> None:
    """All come to one host, which has room for all; what the scheduler would choose for the first hundred has not."""
    environment = {"XDG_STATE_HOME": str(home)}
    size = ("--host-size", "vcpus=64", "--scheduler", "instances_per_host_max=1000")
    first, narrow, wide = (f"c1-host-0000{number}" for number in (1, 2, 3))
    async with started("up", "--cells", "c1", "--hosts", "3", *size, **environment) as up:
        await up.until_printed("ready")
        await moor("group", "create", "all", "--policy", "affinity", **environment)
        for host, *sizes in (
            (narrow, "--vcpus", "140"),
            (wide, "--vcpus", "1", "--ram", "100000", "--disk", "1500"),
            (first, "--vcpus", "1", "--ram", "1", "--count", "130", "--group", "all"),
        ):
            done = await moor("boot", "--host", host, *sizes, **environment)
            assert done.code == 0, done.err
        planned = await moor_json("plan", "--drain", first, **environment)
        assert {each["to"] for each in planned["instances"]} == {wide}

        drained = await moor("host", "drain", first, **environment)

        assert (drained.code, "130 of 130 instances have left" in drained.err + drained.out) == (0, True), (
            drained
        )
        hosts = await moor_json("list", "--limit", "200", **environment)
        assert Counter(each["host"] for each in hosts) == {narrow: 1, wide: 131}
