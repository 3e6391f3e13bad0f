"""`moor stop`, `start` and `reboot` as a person types them, also over a restart of the cloud."""

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stories.moor.moor_process import moor, moor_json, started

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(180)]


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="moor-") as place:
        yield Path(place)


async def test_a_stopped_instance_is_stopped_after_a_restart_and_starts_again(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    words = ("up", "--cells", "harbour", "--hosts", "2", "--nodes", "1")
    async with started(*words, **environment) as up:
        await up.until_printed("ready")
        await moor_json("boot", "--vcpus", "1", "--name", "web", **environment)
        off = await moor_json("stop", "web", **environment)
        assert (off["state"], off["move"]["outcome"]) == ("stopped", "done")
        assert "stopped" in (await moor("list", "--state", "stopped", **environment)).out
        up.send_signal(signal.SIGINT)
        await up.ended()
    async with started(*words, **environment) as up:
        await up.until_printed("ready")
        (shown,) = await moor_json("show", "web", **environment)
        assert (shown["state"], shown["host"]) == ("stopped", off["host"])
        again = await moor("stop", "web", **environment)
        assert (again.code, "stopped" in again.out) == (0, True)
        refused = await moor("reboot", "web", **environment)
        assert (refused.code, "it is stopped: to reboot, it must be active" in refused.err) == (1, True)
        assert (await moor_json("start", "web", **environment))["state"] == "active"
        assert (await moor("start", "web", **environment)).code == 0
        assert (await moor_json("reboot", "web", **environment))["state"] == "active"
        unknown = await moor("stop", "nobody", **environment)
        assert (unknown.code, "there is no instance 'nobody'" in unknown.err) == (1, True)

        (booted,) = (await moor_json("boot", "--flavor", "metal", "--name", "metal", **environment))[
            "instances"
        ]
        of_ironic = await moor("stop", "metal", **environment)
        assert of_ironic.code == 1
        assert f"`moor node power on|off|reboot {booted['host']}`" in of_ironic.err.replace("\n", " ")
        audited = await moor("audit", **environment)
        assert (audited.code, "no faults" in audited.out) == (0, True)
