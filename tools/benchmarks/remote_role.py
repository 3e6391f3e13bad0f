"""One role in a process of its own, as the benchmark controls it."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import msgspec
from msgspec import Struct

from tools.benchmarks.cpu import OneProcess

_ROOT = Path(__file__).parents[2]
_LINE_BYTES_MAX = 2**26
_END_S_MAX = 30.0


class Seen(Struct, frozen=True, array_like=True):
    """The state of a node in a picture and its time, by the clock that all processes of the machine share."""

    node: UUID
    reserved: int
    at_s: float


class RemoteRole:
    """Counts handled messages like `Handled`, but in another process. A scheduler tells what its picture saw meanwhile."""

    def __init__(self, role: str, process: asyncio.subprocess.Process) -> None:
        self._role = role
        self.process = process
        self.spender = OneProcess(process.pid)

    async def until(self, count: int) -> Sequence[Seen]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n".encode())
        return msgspec.json.decode(await self.line(), type=list[Seen])

    async def line(self) -> bytes:
        assert self.process.stdout is not None
        if not (line := await self.process.stdout.readline()):
            raise RuntimeError(f"the {self._role} process has ended")
        return line


@asynccontextmanager
async def remote_role(role: str, bus: str, *arguments: str) -> AsyncIterator[RemoteRole]:
    """The arguments are those of other_process.py: a database, a name, and the address of an Ironic."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tools.benchmarks.other_process", role, bus, *arguments),
        cwd=_ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LINE_BYTES_MAX,
    )
    assert process.stdin is not None
    try:
        here = RemoteRole(role, process)
        await here.line()
        yield here
    finally:
        process.stdin.close()
        await ended(process)


async def ended(process: asyncio.subprocess.Process) -> None:
    """Wait for its end, and kill it if that does not come."""
    try:
        async with asyncio.timeout(_END_S_MAX):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
