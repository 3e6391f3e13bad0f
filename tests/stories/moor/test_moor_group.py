"""`moor group`: instances of a group get hosts of their own."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stories.moor.moor_process import moor, moor_json, started

pytestmark = pytest.mark.asyncio

FIRST, SECOND = "harbour-host-00001", "harbour-host-00002"


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: the path of a socket may not be long."""
    with tempfile.TemporaryDirectory(prefix="moor-") as place:
        yield Path(place)


async def test_a_person_makes_a_group_fills_it_and_deletes_it(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    async with started("up", "--cells", "harbour", "--hosts", "2", **environment) as up:
        await up.until_printed("ready")
        group = await moor_json("group", "create", "web", "--policy", "anti-affinity", **environment)
        assert (group["name"], group["policy"], group["size"]) == ("web", "anti-affinity", 0)

        boot = ("boot", "--vcpus", "1", "--group", group["id"])
        booted = (await moor_json(*boot, "--count", "2", **environment))["instances"]
        assert {each["host"] for each in booted} == {FIRST, SECOND}
        third = await moor(*boot, **environment)
        assert third.code == 1
        assert "anti-affinity" in third.out
        assert any(each["id"] in third.out for each in booted)

        shown = await moor_json("group", "show", group["id"], **environment)
        assert {each["consumer"]: each["host"] for each in shown["members"]} == {
            each["id"]: each["host"] for each in booted
        }
        printed = await moor("group", "show", group["id"], **environment)
        assert f"{booted[0]['id']} on {booted[0]['host']}" in printed.out
        listed = await moor("group", "list", **environment)
        assert "web" in listed.out
        assert "anti-affinity" in listed.out
        again = await moor("group", "create", "x", "--policy", "affinity", "--id", group["id"], **environment)
        assert (again.code, "rejected: id is" in again.err) == (1, True)
        wrong = await moor("group", "create", "x", "--policy", "apart", **environment)
        assert (wrong.code, "--policy is 'apart', must be one of affinity" in wrong.err) == (2, True)

        deleted = await moor("group", "delete", group["id"], **environment)
        assert f"deleted group {group['id']}" in deleted.out
        gone = await moor("group", "show", group["id"], **environment)
        assert (gone.code, "there is no server group" in gone.err) == (1, True)
