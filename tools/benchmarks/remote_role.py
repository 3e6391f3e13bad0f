"""One role in a process of its own, as the benchmark controls it."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tools.benchmarks.cpu import OneProcess, Spender

_ROOT = Path(__file__).parents[2]
_END_S_MAX = 30.0


class RemoteRole:
    """Counts handled messages like `Handled`, but in another process."""

    def __init__(self, role: str, process: asyncio.subprocess.Process) -> None:
        self._role = role
        self._process = process

    @property
    def spender(self) -> Spender:
        return OneProcess(self._process.pid)

    async def until(self, count: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n".encode())
        await self.hear("reached")

    async def hear(self, word: str) -> None:
        assert self._process.stdout is not None
        heard = (await self._process.stdout.readline()).decode().strip()
        if heard != word:
            raise RuntimeError(
                f"the {self._role} process printed {heard!r} instead of {word!r}: has it ended?"
            )


@asynccontextmanager
async def remote_role(role: str, bus: str, database: str = "") -> AsyncIterator[RemoteRole]:
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "tools.benchmarks.other_process",
            role,
            bus,
            *([database] if database else []),
        ),
        cwd=_ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    try:
        here = RemoteRole(role, process)
        await here.hear("ready")
        yield here
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(_END_S_MAX):
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
