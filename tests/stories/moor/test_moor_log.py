"""A boot can be followed through the log of all workers by its id, as text and as JSON."""

import json
import tempfile
from pathlib import Path

import pytest

from tests.stories.moor.moor_process import Process, moor, moor_json, started

pytestmark = pytest.mark.asyncio

FAULTS = """
spawn_ms = 5.0

[[faults]]
is = "fails_to_build"
hosts = ["harbour-host-00001"]
"""


async def lines_about(up: Process, id_: str, *words: str) -> list[str]:
    """What `grep ID` finds, until there is a line with each of these words, in their order."""
    lines = [await up.until_printed_to_stderr(word) for word in words]
    assert [line for line in lines if id_ not in line] == []
    return lines


async def test_a_boot_is_followed_by_its_id_as_text() -> None:
    with tempfile.TemporaryDirectory(prefix="moor-") as home:
        environment = {"XDG_STATE_HOME": home, "MOOR_LOG_LEVEL": "INFO"}
        async with started("up", "--cells", "harbour", "--hosts", "2", **environment) as up:
            await up.until_printed("ready")
            booted = await moor_json(
                "boot", "--vcpus", "1", "--name", "web", "--project", "shop", **environment
            )
            (instance,) = booted["instances"]
            id_, request, host = instance["id"], booted["request_id"], instance["host"]
            placed, active = await lines_about(up, id_, "INFO placed", "INFO active")
            named = f"instance={id_} request={request} host={host} cell=harbour"
            assert placed.rstrip().split(" moor.instances INFO ")[1].startswith(f"placed {named} ")
            assert " project=shop name=web by=" in placed
            assert active.rstrip().split(" moor.instances INFO ")[1].startswith(f"active {named}")

            await moor("delete", id_, **environment)
            await lines_about(up, id_, "INFO deleting", "INFO deleted")


async def test_a_boot_that_fails_is_followed_by_its_id_as_json() -> None:
    with tempfile.TemporaryDirectory(prefix="moor-") as home:
        faults = Path(home) / "faults.toml"
        faults.write_text(FAULTS)
        environment = {"XDG_STATE_HOME": home, "MOOR_LOG_LEVEL": "INFO", "MOOR_LOG_FORMAT": "json"}
        options = ("up", "--cells", "harbour", "--hosts", "1", "--faults", str(faults))
        async with started(*options, **environment) as up:
            await up.until_printed("ready")
            ran = await moor("boot", "--vcpus", "1", "--count", "2", "-o", "json", **environment)
            booted = json.loads(ran.out)
            accepted = json.loads(await up.until_printed_to_stderr('"accepted"'))
            assert (accepted["request"], accepted["count"]) == (booted["request_id"], "2")
            failed = json.loads(await up.until_printed_to_stderr('"attempt failed"'))
            ids = {each["id"] for each in booted["instances"]}
            assert failed["instance"] in ids
            assert (failed["host"], failed["attempt"]) == ("harbour-host-00001", "1")
            assert failed["reason"]
            ended = json.loads(await up.until_printed_to_stderr('"error"'))
            assert ended["instance"] in ids

            giant = await moor("boot", "--vcpus", "500", "-o", "json", **environment)
            (nowhere,) = json.loads(giant.out)["instances"]
            request = json.loads(await up.until_printed_to_stderr(nowhere["request_id"]))
            assert request["message"] == "accepted"
            refused = json.loads(await up.until_printed_to_stderr(nowhere["id"]))
            assert (refused["message"], refused["cell"]) == ("error", "cell0")
            assert "500" in refused["reason"]
            await moor("boot", "--vcpus", "1", "--trait", "HW_CPU_NONE", **environment)
            rejected = json.loads(await up.until_printed_to_stderr('"rejected"'))
            assert "HW_CPU_NONE" in rejected["reason"]
