"""One role in a process of its own: `python -m tools.benchmarks.other_process ROLE BUS [DATABASE [NAME [IRONIC]]]`

It prints a line when it is ready. Each line of its stdin is a number: once it has handled that many messages in all, it prints
what its picture saw since the last one, as JSON; only a scheduler has a picture. It ends when stdin is closed.
"""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from bus.addresses import broker_at
from bus.memory import MemoryBroker
from bus.unix_socket.server import serve_unix
from kit.process import run_process
from tests.running import closing
from tools.benchmarks.remote_role import Seen
from tools.benchmarks.roles import Handled, granting_placement, placement, reader


async def main(role: str, bus: str, database: str = "", name: str = "", ironic: str = "") -> None:
    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    playing = _playing(role, bus) if not database else _playing_with(role, bus, database, name, ironic)
    async with playing as played:
        # As kit/process.py does it.
        gc.freeze()
        _say(())
        async for line in stdin:
            _say(await played.until(int(line)))


@asynccontextmanager
async def _playing(role: str, bus: str) -> AsyncIterator[Handled]:
    match role:
        case "reader":
            async with reader(broker_at(bus)) as handled:
                yield handled
        case "yes-sayer":
            async with granting_placement(broker_at(bus)) as handled:
                yield handled
        case "broker":
            async with serve_unix(MemoryBroker(), bus):
                yield Handled()
        case _:
            raise ValueError(f"no role is called {role!r}")


@asynccontextmanager
async def _playing_with(role: str, bus: str, database: str, name: str, ironic: str) -> AsyncIterator[Handled]:
    """Its imports are here: the other roles need no database drivers, which take longer to load than everything else."""
    match role:
        case "placement":
            from placement_worker.store_sql import PlacementStore  # noqa: PLC0415

            async with closing(PlacementStore(database)) as (books,), placement(broker_at(bus), books):
                yield Handled()
        case "scheduler":
            from scheduler_worker.store_sql import SchedulerStore  # noqa: PLC0415
            from tools.benchmarks.node_roles import scheduler  # noqa: PLC0415

            async with (
                closing(SchedulerStore(database)) as (rows,),
                scheduler(broker_at(bus), rows, name) as seen,
            ):
                yield seen
        case "daemon":
            from ironic_sync.rest import HttpIronicApi  # noqa: PLC0415
            from ironic_sync.store_sql import IronicStore  # noqa: PLC0415
            from tools.benchmarks.node_roles import daemon  # noqa: PLC0415

            api = HttpIronicApi(ironic) if ironic else None
            async with (
                closing(IronicStore(database)) as (nodes,),
                daemon(broker_at(bus), nodes, name, api=api),
            ):
                yield Handled()
        case _:
            raise ValueError(f"no role with a database is called {role!r}")


def _say(seen: Sequence[Seen]) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(seen) + b"\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run_process(main(*sys.argv[1:]))
