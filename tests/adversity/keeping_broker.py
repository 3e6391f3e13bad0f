"""A process that serves a memory broker with a journal; tests kill it. It prints when it can be reached."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bus.memory import journaled_broker
from bus.unix_socket.server import serve_unix
from tests.contracts.stage import PATIENCE_S


async def main(directory: Path) -> None:
    with journaled_broker(directory / "bus.journal") as broker:
        async with serve_unix(broker, directory / "bus.sock"):
            sys.stdout.write("serving\n")
            sys.stdout.flush()
            await asyncio.Event().wait()


class BrokerProcess:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.adversity.keeping_broker",
            self._directory,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            assert await self._process.stdout.readline() == b"serving\n"

    async def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[BrokerProcess]:
    """Run it until the block ends, and then kill it; a test may also kill it earlier."""
    process = BrokerProcess(directory)
    try:
        await process.start()
        yield process
    finally:
        await process.kill()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
