"""`moor cell`, and when `moor list` and `moor show` heard the cells."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stories.moor.moor_process import moor, moor_json, started

pytestmark = pytest.mark.asyncio


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: the path of a socket may not be long."""
    with tempfile.TemporaryDirectory(prefix="moor-") as place:
        yield Path(place)


async def test_cells_are_listed_and_lists_say_when_each_was_heard(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    async with started("up", "--cells", "harbour,island", "--hosts", "1", **environment) as up:
        await up.until_printed("ready")
        booted = await moor_json("boot", "--vcpus", "1", "--host", "island-host-00001", **environment)
        (instance,) = booted["instances"]
        assert (instance["state"], instance["cell"]) == ("active", "island")

        # A conductor is heard at its next heartbeat, if the schedulers did not listen yet at its first.
        cells: list[dict[str, Any]] = []
        while [each["life"] for each in cells] != ["up", "up"]:
            cells = await moor_json("cell", "list", **environment)
        harbour, island = cells
        assert [harbour["cell"], island["cell"]] == ["harbour", "island"]
        assert [each["life"] for each in island["conductors"]] == ["up"]
        assert (island["hosts"], island["hosts_up"]) == (1, 1)
        assert (harbour["instances"], island["instances"], island["waiting"]) == (0, 1, 0)

        (listed,) = await moor_json("list", **environment)
        assert (listed["id"], listed["cell_life"]) == (instance["id"], "up")
        assert listed["cell_heard_at"]
        shown = await moor("show", instance["id"], **environment)
        assert (shown.code, "island was last heard" in shown.out) == (0, True)
