"""One role in a process of its own: `python -m tools.benchmarks.other_process ROLE BUS [DATABASE]`

It prints `ready` when it is. Each line of its stdin is a number: it prints `reached` once it has handled that many
messages in all. It ends when stdin is closed.
"""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bus.addresses import broker_at
from kit.process import run_process
from tools.benchmarks.roles import Handled, broker_at_socket, granting_placement, placement, reader


async def main(role: str, bus: str, database: str = "") -> None:
    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    async with _playing(role, bus, database) as handled:
        # As kit/process.py does it.
        gc.freeze()
        _say("ready")
        async for line in stdin:
            await handled.until(int(line))
            _say("reached")


@asynccontextmanager
async def _playing(role: str, bus: str, database: str) -> AsyncIterator[Handled]:
    match role:
        case "reader":
            async with reader(broker_at(bus)) as handled:
                yield handled
        case "yes-sayer":
            async with granting_placement(broker_at(bus)) as handled:
                yield handled
        case "placement":
            # Imported here: the other roles need no database drivers, which take longer to load than everything else.
            from placement_worker.store_sql import PlacementStore  # noqa: PLC0415

            store = PlacementStore(database)
            try:
                async with placement(broker_at(bus), store):
                    yield Handled()
            finally:
                await store.close()
        case "broker":
            async with broker_at_socket(bus):
                yield Handled()
        case _:
            raise ValueError(f"no role is called {role!r}")


def _say(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run_process(main(*sys.argv[1:]))
