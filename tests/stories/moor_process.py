"""The `moor` command as a person runs it: a process of its own."""

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

# A demo on real servers begins a dozen processes, perhaps on a busy machine.
PATIENCE_S = 120
_NO_HOME = f"{tempfile.gettempdir()}/no-home-of-{os.getpid()}"


class Ran(Struct, frozen=True):
    code: int
    out: str
    err: str


class Process:
    """A `moor` that runs beside the test."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.told: list[str] = []

    async def until_told(self, what: str) -> str:
        """The line of its output that says this; the next one, when asked again."""
        return await self._until_told(what, self._process.stdout)

    async def until_told_aside(self, what: str) -> str:
        """The same, where it speaks to the person who watches."""
        return await self._until_told(what, self._process.stderr)

    async def _until_told(self, what: str, stream: asyncio.StreamReader | None) -> str:
        assert stream is not None
        async with asyncio.timeout(PATIENCE_S):
            async for line in stream:
                self.told.append(line.decode())
                if what in self.told[-1]:
                    return self.told[-1]
        _, err = await self._process.communicate()
        raise AssertionError(f"it ended without saying {what!r}: {self.told}, {err.decode()}")

    async def ended(self) -> Ran:
        async with asyncio.timeout(PATIENCE_S):
            out, err = await self._process.communicate()
        return Ran(self._process.returncode or 0, "".join(self.told) + out.decode(), err.decode())

    def send_signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            self._process.send_signal(number)


@asynccontextmanager
async def started(*arguments: str, **environment: str) -> AsyncIterator[Process]:
    """Run it beside the test, and no longer than that."""
    process = Process(await _start(arguments, environment))
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        await process.ended()


async def moor(*arguments: str, **environment: str) -> Ran:
    """Run it to its end."""
    return await Process(await _start(arguments, environment)).ended()


async def moor_json(*arguments: str, **environment: str) -> Any:
    """What it says to programs, if it did as told."""
    ran = await moor(*arguments, "--json", **environment)
    assert ran.code == 0, ran.out + ran.err
    return json.loads(ran.out)


async def _start(arguments: tuple[str, ...], environment: dict[str, str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "moor",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # Any port that is free, so that no two tests want the same; and no home, in which somebody's own cloud may be kept.
        env={
            "XDG_STATE_HOME": _NO_HOME,
            "XDG_CONFIG_HOME": _NO_HOME,
            "PATH": "/usr/bin:/bin",
            "COLUMNS": "200",
            "TERM": "dumb",
            "MOOR_LISTEN": "127.0.0.1:0",
            "MOOR_IRONIC_SIM_LISTEN": "127.0.0.1:0",
            **environment,
        },
    )
