"""Starts a module of the project as a process, as `python -m` does, but without its imports.

A process that imports `moor` or a worker anew needs 0.5 to 1.5 s of CPU for that alone, and the tests start hundreds. So
one process per test process, the fork server, imports everything once, and forks for each request. A forked process is a
process like any other: it has its own id, environment and output, takes signals, and dies alone.

Tests of the imports at start, and of what depends on Python's own variables, start new processes.
"""

import asyncio
import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.planting import asked

ROOT = Path(__file__).parents[2]
# Only Python itself reads these, when it starts.
OF_PYTHON = "PYTHON"
# Libraries read these when they are imported. A test process of several has some of its own.
OF_THE_TERMINAL = ("COLUMNS", "LINES")
LINE_BYTES_MAX = 2**20


class ForkServerLostError(RuntimeError):
    """The fork server ended, so nobody knows how the process ended."""


class ForkedProcess:
    """The part of `asyncio.subprocess.Process` that tests use."""

    def __init__(
        self,
        report: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        pid: int,
        stdout: asyncio.StreamReader | None,
        stderr: asyncio.StreamReader | None,
    ) -> None:
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | None = None
        self._ending = asyncio.create_task(self._end(report))

    async def wait(self) -> int:
        return await asyncio.shield(self._ending)

    async def communicate(self) -> tuple[bytes, bytes]:
        """The rest of its output, when it has ended."""
        out, err, _ = await asyncio.gather(_rest(self.stdout), _rest(self.stderr), self.wait())
        return out, err

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def _end(self, report: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> int:
        reader, writer = report
        try:
            self.returncode = await _number(reader)
            return self.returncode
        finally:
            writer.close()


async def start_module(
    module: str, *arguments: str, env: Mapping[str, str], stdout: Any = None, stderr: Any = None
) -> ForkedProcess:
    """Start `python -m module`. As in `subprocess`, an output is a file, PIPE, DEVNULL, or this process's own."""
    assert not any(name.startswith(OF_PYTHON) for name in env), f"{module} must be a new process for {env}"
    ours, theirs = socket.socketpair()
    out, err = _Output(stdout, 1), _Output(stderr, 2)
    with theirs, open(os.devnull) as nothing:  # noqa: ASYNC230, PTH123 - opened in no time
        request = json.dumps({"module": module, "arguments": arguments, "env": {**asked(), **env}}).encode()
        handed = [nothing.fileno(), out.written, err.written, theirs.fileno()]
        socket.send_fds(_fork_server(), [request], handed)
    report = await asyncio.open_connection(sock=ours)
    pid = await _number(report[0])
    return ForkedProcess(report, pid, await out.reader(), await err.reader())


class _Output:
    """One of the outputs of the new process, and our end of it if it is a pipe."""

    def __init__(self, wanted: Any, ours: int) -> None:
        self._read: int | None = None
        self._ours: tuple[int, ...] = ()
        match wanted:
            case None:
                self.written = ours
            case subprocess.PIPE:
                self._read, self.written = os.pipe()
                self._ours = (self.written,)
            case subprocess.DEVNULL:
                self.written = os.open(os.devnull, os.O_WRONLY)
                self._ours = (self.written,)
            case file:
                self.written = file.fileno()

    async def reader(self) -> asyncio.StreamReader | None:
        """Call it when the process has its copy: otherwise the pipe would never end."""
        for each in self._ours:
            os.close(each)
        if self._read is None:
            return None
        reader = asyncio.StreamReader(LINE_BYTES_MAX)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(self._read, "rb", 0)
        )
        return reader


_servers: list[socket.socket] = []


def _fork_server() -> socket.socket:
    """The way to this test process's own; it starts with the first request, and ends with the test process."""
    if not _servers:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("MOOR_") and name not in OF_THE_TERMINAL
        }
        process = subprocess.Popen(
            (sys.executable, "-m", "tests.fork_server"),
            env={**environment, **asked(), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "", "TERM": "dumb"},
            cwd=ROOT,
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
        )
        theirs.close()
        _servers.append(ours)
        atexit.register(_end, ours, process)
    return _servers[0]


def _end(ours: socket.socket, process: "subprocess.Popen[bytes]") -> None:
    ours.close()
    process.wait()


async def _number(report: asyncio.StreamReader) -> int:
    line = await report.readline()
    if not line:
        raise ForkServerLostError("the fork server ended before it reported on a process")
    return int(line)


async def _rest(stream: asyncio.StreamReader | None) -> bytes:
    return b"" if stream is None else await stream.read()
