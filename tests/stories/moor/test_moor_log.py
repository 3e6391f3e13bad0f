"""A boot can be followed through the log of all workers by its id, as text and as JSON."""

import json
import tempfile
from pathlib import Path

import pytest

from tests.stories.moor.moor_process import moor, started

pytestmark = pytest.mark.asyncio

FAULTS = """
spawn_ms = 5.0

[[faults]]
is = "fails_to_build"
hosts = ["harbour-host-00001"]
"""


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
