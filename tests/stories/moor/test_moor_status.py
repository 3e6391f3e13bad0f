"""`moor status`: the whole cloud on one screen, and an exit code that says whether it is healthy."""

import json
from pathlib import Path

import pytest

from tests.stories.moor.moor_process import Result, moor, moor_json, started

pytestmark = pytest.mark.asyncio


async def until_all_are_heard(environment: dict[str, str], workers: int) -> Result:
    """The first status in which so many workers are known."""
    while True:
        status = await moor("status", "-o", "json", **environment)
        if len(json.loads(status.out)["overview"]["workers"]) >= workers:
            return status


async def test_a_healthy_cloud_says_what_it_has(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    async with started("up", "--cells", "harbour,island", "--hosts", "2", **environment) as up:
        await up.until_printed("ready")
        await moor_json("boot", "--vcpus", "64", "--count", "2", "--host", "island-host-00001", **environment)
        await moor_json("host", "set", "harbour-host-00002", "draining", **environment)

        status = await until_all_are_heard(environment, 6)
        told = json.loads(status.out)
        assert (status.code, told["healthy"], told["troubles"]) == (0, True, [])
        assert "hosts draining: 1" in told["notes"]
        overview = told["overview"]
        assert overview["instances"] == [{"state": "active", "cell": "island", "count": 2}]
        roles = [(each["beat"]["role"], each["beat"]["cell"]) for each in overview["workers"]]
        assert roles == [
            ("compute", "harbour"),
            ("compute", "island"),
            ("conductor", "harbour"),
            ("conductor", "island"),
            ("placement", "cell0"),
            ("scheduler", "cell0"),
        ]
        while len(stages := overview["stages"]) < 6:
            overview = (await moor_json("status", **environment))["overview"]
        counts = {each["stage"]: (each["minute"]["count"], each["hour"]["count"]) for each in stages}
        names = ["accept", "choose", "claim", "place", "spawn", "boot"]
        assert counts == dict.fromkeys(names, (2, 2))
        used = {(each["cell"], each["resource_class"]): each["used"] for each in overview["uses"]}
        assert (used["island", "VCPU"], used["harbour", "VCPU"]) == (128, 0)

        shown = await moor("status", **environment | {"COLUMNS": "80"})
        assert shown.code == 0
        assert "Moorage  healthy" in shown.out
        assert "2 instances   2 active" in shown.out
        assert max(map(len, shown.out.splitlines())) <= 80
