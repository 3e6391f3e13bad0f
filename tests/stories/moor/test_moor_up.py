"""`moor up` and the commands, each as a process of its own, as a person has them in several terminals."""

import asyncio
import os
import resource
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import bcrypt
import httpx
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


async def test_who_may_use_its_services_is_said_by_the_settings_file(home: Path) -> None:
    users, file = home / "users", home / "moorage.toml"
    users.write_text(f"anna:{bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode()}\n")
    file.write_text(
        f'auth = "basic"\nusers = "{users}"\nprefix = "/placement"\ndashboard_names = "moor.example"\n'
    )
    cloud = ("--config", str(file), "up", "--cells", "harbour", "--hosts", "1")
    async with started_anew(*cloud, XDG_STATE_HOME=str(home)) as process, httpx.AsyncClient() as http:
        pages = (await process.until_printed("the dashboard is served at")).split()[-1]
        placement = f"{(await process.until_printed('placement is served at')).split()[-1]}/placement/resource_providers"
        await process.until_printed("ready")

        anna = ("anna", "secret")
        assert [(await http.get(placement, auth=who)).status_code for who in (None, anna)] == [401, 200]
        assert [
            (await http.get(pages, headers={"host": name}, auth=anna)).status_code
            for name in ("moor.example", "elsewhere.example")
        ] == [200, 400]


async def test_a_cloud_that_cannot_start_leaves_no_address_of_an_ironic_that_does_not_run(home: Path) -> None:
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as taken:
        port = taken.sockets[0].getsockname()[1]
        at = {"XDG_STATE_HOME": str(home), "MOOR_LISTEN": f"127.0.0.1:{port}"}
        ended = await moor("up", "--hosts", "1", "--nodes", "1", "--ironic-listen", "127.0.0.1:0", **at)

    assert (ended.code, f"no HTTP service: listen is 127.0.0.1:{port}" in ended.err) == (1, True)
    left = {name for _, _, names in os.walk(home) for name in names}
    assert not left & {"ironic.url", "bus.sock"}


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
