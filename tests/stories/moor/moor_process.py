"""Runs the `moor` command as a process of its own, as a person does.

The processes are forked from one that has imported everything. `moor_anew` and `started_anew` start a new Python, as the
shell does: it imports what it needs, and reads Python's own variables.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

from msgspec import Struct

from tests.fork_server import ForkedProcess, start_module

# A demo on real servers starts a dozen processes, on a machine that may be busy.
PATIENCE_S = 120
_NO_HOME = f"{tempfile.gettempdir()}/no-home-of-{os.getpid()}"
# Any free port, so that no two tests conflict; and no home directory, which might belong to a running cloud.
_DEFAULTS = {
    "XDG_STATE_HOME": _NO_HOME,
    "XDG_CONFIG_HOME": _NO_HOME,
    "PATH": "/usr/bin:/bin",
    "COLUMNS": "200",
    "TERM": "dumb",
    "MOOR_LISTEN": "127.0.0.1:0",
    "MOOR_DASHBOARD_LISTEN": "127.0.0.1:0",
}


AnyProcess = asyncio.subprocess.Process | ForkedProcess
# A text, or several.
Said = str | tuple[str, ...]


class Result(Struct, frozen=True):
    code: int
    out: str
    err: str


class Process:
    """A `moor` process that runs during the test."""

    def __init__(self, process: AnyProcess) -> None:
        self._process = process
        self.told: list[str] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    async def until_printed(self, what: str) -> str:
        """The next line of its standard output that contains `what`."""
        return await self._until_printed(what, self._process.stdout)

    async def until_printed_to_stderr(self, what: str) -> str:
        """The next line of its standard error that contains `what`."""
        return await self._until_printed(what, self._process.stderr)

    async def _until_printed(self, what: str, stream: asyncio.StreamReader | None) -> str:
        assert stream is not None
        async with asyncio.timeout(PATIENCE_S):
            async for line in stream:
                self.told.append(line.decode())
                if what in self.told[-1]:
                    return self.told[-1]
        _, err = await self._process.communicate()
        raise AssertionError(f"it ended without saying {what!r}: {self.told}, {err.decode()}")

    async def ended(self, within_s: float = PATIENCE_S) -> Result:
        async with asyncio.timeout(within_s):
            out, err = await self._process.communicate()
        return Result(self._process.returncode or 0, "".join(self.told) + out.decode(), err.decode())

    def send_signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            self._process.send_signal(number)


@asynccontextmanager
async def started(*arguments: str, **environment: str) -> AsyncIterator[Process]:
    """Run it until the end of the block, then kill it."""
    run = await start_module(
        "moor", *_on_any_port(arguments), stdout=PIPE, stderr=PIPE, env=_DEFAULTS | environment
    )
    async with _killed_at_the_end(run) as process:
        yield process


def started_anew(*arguments: str, **environment: str) -> AbstractAsyncContextManager[Process]:
    return started_at(DEVNULL, *arguments, **environment)


@asynccontextmanager
async def started_at(terminal: int, *arguments: str, **environment: str) -> AsyncIterator[Process]:
    """As `started_anew`, with this descriptor as its standard input."""
    run = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "moor", *_on_any_port(arguments)),
        stdin=terminal,
        stdout=PIPE,
        stderr=PIPE,
        env=_DEFAULTS | environment,
    )
    async with _killed_at_the_end(run) as process:
        yield process


@asynccontextmanager
async def _killed_at_the_end(started: AnyProcess) -> AsyncIterator[Process]:
    process = Process(started)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        await process.ended()


async def moor(*arguments: str, **environment: str) -> Result:
    """Run it to its end, or kill it if that does not come in time."""
    async with started(*arguments, **environment) as process:
        return await process.ended()


async def moor_json(*arguments: str, **environment: str) -> Any:
    """The JSON that it prints, if it succeeds."""
    ran = await moor(*arguments, "-o", "json", **environment)
    assert ran.code == 0, ran.out + ran.err
    return json.loads(ran.out)


async def moor_says(code: int, said: Said, *arguments: str, **environment: str) -> Result:
    """Run it; it ends with this code and without a traceback, and all this is in what it prints, wherever the lines break."""
    ran = await moor(*arguments, **environment)
    printed = " ".join((ran.out + ran.err).replace("│", " ").split())
    texts = (said,) if isinstance(said, str) else said
    assert (ran.code, [each for each in texts if " ".join(each.split()) not in printed]) == (code, []), ran
    assert "Traceback" not in ran.err, ran
    return ran


class Up:
    """A `moor up` that runs, and commands in its environment: they find it."""

    def __init__(self, process: Process, environment: dict[str, str]) -> None:
        self.process, self.environment = process, environment
        self.url = f"unix://{environment['XDG_STATE_HOME']}/moorage/bus.sock"

    def address_of(self, service: str) -> str:
        """Where it is served, as was printed at the start."""
        return next(line.split()[-1] for line in self.process.told if f"{service} is served at" in line)

    async def run(self, *arguments: str, **more: str) -> Result:
        return await moor(*arguments, **self.environment | more)

    async def json(self, *arguments: str) -> Any:
        return await moor_json(*arguments, **self.environment)

    async def says(self, code: int, said: Said, *arguments: str) -> Result:
        return await moor_says(code, said, *arguments, **self.environment)


@asynccontextmanager
async def up(home: object, *arguments: str, **environment: str) -> AsyncIterator[Up]:
    """Run a cloud until the end of the block; its files are below this directory."""
    environment["XDG_STATE_HOME"] = str(home)
    async with started("up", *arguments, **environment) as process:
        await process.until_printed("ready")
        yield Up(process, environment)


@contextmanager
def a_terminal() -> Iterator[tuple[int, int]]:
    """A keyboard to write on, and the standard input of a command that is run there."""
    keyboard, terminal = os.openpty()
    try:
        yield keyboard, terminal
    finally:
        os.close(keyboard)
        os.close(terminal)


async def moor_anew(*arguments: str, **environment: str) -> Result:
    async with started_anew(*arguments, **environment) as process:
        return await process.ended()


def _on_any_port(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """The address of a simulated Ironic is no variable."""
    has_ironic = {"up", "--nodes"} <= {*arguments} or "simulated-ironic" in arguments
    is_named = "--ironic-listen" in arguments or not has_ironic
    return arguments if is_named else (*arguments, "--ironic-listen", "127.0.0.1:0")
