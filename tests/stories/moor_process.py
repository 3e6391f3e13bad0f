"""The `moor` command as a person runs it: a process of its own."""

import asyncio
import sys

from msgspec import Struct

PATIENCE_S = 60


class Ran(Struct, frozen=True):
    code: int
    out: str
    err: str


async def moor(*arguments: str, **environment: str) -> Ran:
    """Run it to its end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "moor",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "200", "TERM": "dumb", **environment},
    )
    async with asyncio.timeout(PATIENCE_S):
        out, err = await process.communicate()
    return Ran(process.returncode or 0, out.decode(), err.decode())
