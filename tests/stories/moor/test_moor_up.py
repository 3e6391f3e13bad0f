"""`moor up` and the commands, each as a process of its own, as a person has them in several terminals."""

import os
import resource
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.stories.moor.moor_process import (
    Process,
    Result,
    moor,
    moor_json,
    started_anew,
    started_at,
)

pytestmark = pytest.mark.asyncio


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: the path of a socket may not be long."""
    with tempfile.TemporaryDirectory(prefix="moor-") as place:
        yield Path(place)


@asynccontextmanager
async def up(home: Path, *arguments: str) -> AsyncIterator[Process]:
    async with started_anew("up", *arguments, XDG_STATE_HOME=str(home)) as process:
        await process.until_printed("ready")
        yield process


async def test_a_host_that_is_heard_is_set_dead_only_after_a_confirmation(home: Path) -> None:
    host = "harbour-host-00001"
    async with up(home, "--cells", "harbour", "--hosts", "1"):
        at_home = {"XDG_STATE_HOME": str(home)}

        async def mode() -> str:
            return str((await moor_json("host", "show", host, **at_home))["setting"]["mode"])

        async def answered(answer: bytes) -> Result:
            """Set it dead at a terminal, on which this answer was typed."""
            keyboard, terminal = os.openpty()
            try:
                os.write(keyboard, answer)
                async with started_at(terminal, "host", "set", host, "dead", **at_home) as process:
                    return await process.ended()
            finally:
                os.close(keyboard)
                os.close(terminal)

        for refused in (await moor("host", "set", host, "dead", **at_home), await answered(b"n\n")):
            assert (refused.code, "nothing was done" in refused.err) == (1, True)
            assert f"{host} was heard" in refused.err
            assert await mode() == "up"
        sure = await answered(b"y\n")
        assert (sure.code, await mode()) == (0, "dead")

        await moor_json("host", "set", host, "up", **at_home)
        yes = await moor_json("host", "set", host, "dead", "--yes", "--reason", "it burnt", **at_home)
        assert (yes["setting"]["mode"], yes["setting"]["reason"]) == ("dead", "it burnt")


async def test_without_a_cloud_the_commands_say_so(home: Path) -> None:
    ran = await moor("list", XDG_STATE_HOME=str(home))

    assert ran.code == 1
    assert f"no process serves a bus at {home}/moorage/bus.sock" in ran.err
    assert "moor up" in ran.err


async def test_a_disk_that_is_full_when_it_stops_is_told_in_a_line_and_nothing_confirmed_is_lost(
    home: Path,
) -> None:
    at_home = {"XDG_STATE_HOME": str(home)}
    async with up(home, "--cells", "harbour", "--hosts", "1", "--dashboard-listen", "off") as process:
        assert (await moor("boot", "--vcpus", "1", **at_home)).code == 0
        # As on a full disk, no file of the process grows.
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        await process.until_printed_to_stderr("bus.journal cannot be written")
        process.send_signal(signal.SIGTERM)
        stopped = await process.ended()

    assert stopped.code == 1
    last = stopped.err.splitlines()[-1]
    assert last.startswith(f"not stopped in order: {home}/moorage/bus.journal cannot be written: ")
    assert last.endswith("confirmed messages are kept, and the last ones may be handled again")
    async with up(home, "--cells", "harbour", "--hosts", "1"):
        assert [each["state"] for each in await moor_json("list", **at_home)] == ["active"]
