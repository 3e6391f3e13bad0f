"""Real processes that get a SIGHUP: a `moor up` with a settings file, and a worker that has only variables."""

import signal
from pathlib import Path

import pytest

from tests.stories.moor.moor_process import Process, moor, started

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(240)]

ONE_EACH = """
[scheduler]
instances_per_host_max = 1
request_timeout_s = 250
"""
BOOT = ("boot", "--vcpus", "1", "--ram", "64", "--disk", "1")


async def after_hangup(process: Process, what: str) -> list[str]:
    """The log from now on until a line that contains this text, which is the last."""
    process.told.clear()
    process.send_signal(signal.SIGHUP)
    await process.until_printed_to_stderr(what)
    return list(process.told)


async def test_moor_up_takes_a_new_limit_without_a_restart_and_refuses_a_wrong_file(home: Path) -> None:
    file = home / "moorage.toml"
    file.write_text(ONE_EACH)
    environment = {"XDG_STATE_HOME": str(home), "MOOR_CONFIG": str(file)}
    async with started("up", "--cells", "harbour", "--hosts", "1", **environment) as up:
        await up.until_printed("ready")
        codes = [(await moor(*BOOT, **environment)).code for _ in range(2)]
        assert codes == [0, 1]

        file.write_text("[scheduler]\ninstances_per_host_max = 2\nmove_timeout_s = 0\n")
        (line,) = await after_hangup(up, "the settings stay as they are")
        assert "scheduler.move_timeout_s is 0" in line
        file.write_text(ONE_EACH)
        assert (await moor(*BOOT, **environment)).code == 1

        file.write_text(ONE_EACH.replace("max = 1", "max = 2").replace("250", "300"))
        told = await after_hangup(up, "was read again")
        assert [line.partition(" WARNING ")[2].strip() for line in told] == [
            f"reloaded: scheduler.instances_per_host_max: 1 -> 2 ({file})",
            f"needs a restart: scheduler.request_timeout_s: 250 -> 300 ({file})",
            f"{file} was read again: 1 settings changed, 1 need a restart",
        ]
        codes = [(await moor(*BOOT, **environment)).code for _ in range(2)]
        assert codes == [0, 1]
