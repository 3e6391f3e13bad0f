"""`moor aggregate`: an operator puts hosts into zones, and boots follow."""

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


async def test_an_operator_makes_zones_fills_them_and_takes_them_away(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    async with started("up", "--cells", "harbour", "--hosts", "2", **environment) as up:
        await up.until_printed("ready")
        made = await moor_json("aggregate", "create", "north", "availability_zone=n", **environment)
        again = await moor_json("aggregate", "create", "north", **environment)
        assert again == made
        await moor_json("aggregate", "create", "south", "availability_zone=s", "rack=r1", **environment)

        added = await moor("aggregate", "add", "north", FIRST, **environment)
        assert (added.code, added.err) == (0, "")
        assert "availability_zone  n" in added.out
        assert f"hosts              {FIRST}" in added.out
        changed = await moor_json("aggregate", "set", "south", "rack=", "row=7", **environment)
        assert changed["metadata"] == {"availability_zone": "s", "row": "7"}
        refused = await moor("aggregate", "add", "south", SECOND, FIRST, **environment)
        assert refused.code == 1
        assert f"rejected: add_hosts is '{FIRST}': is in zone 'n' by aggregate 'north'" in refused.err
        (web,) = (await moor_json("boot", "--vcpus", "1", "--az", "n", "--name", "web", **environment))[
            "instances"
        ]
        assert web["host"] == FIRST

        listed = await moor("aggregate", "list", **environment)
        assert "north" in listed.out
        assert "availability_zone=s, row=7" in listed.out
        kept = await moor("aggregate", "delete", "north", **environment)
        assert (kept.code, f"it has {FIRST}: remove its hosts first" in kept.err) == (1, True)
        emptied = await moor_json("aggregate", "remove", "north", FIRST, **environment)
        assert emptied["hosts"] == []
        assert (await moor("aggregate", "delete", "north", **environment)).out == "north is deleted\n"
        nothing = await moor("aggregate", "show", "north", **environment)
        assert (nothing.code, "there is no aggregate 'north'" in nothing.err) == (1, True)
        wrong = await moor("aggregate", "set", "south", "rack", **environment)
        assert (wrong.code, "metadata is 'rack', must be KEY=VALUE" in wrong.err) == (2, True)
