"""The processes that an event of a bare-metal node passes: a daemon, and schedulers that record when their pictures
change.

`python -m tools.benchmarks.node_roles scheduler|daemon BUS DATABASE [NAME [IRONIC]]` runs one of them in a process of
its own. It prints `ready`. For each number that a scheduler reads from stdin, it waits for that many changes in all,
and prints those recorded since as JSON.
"""

import asyncio
import gc
import secrets
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from uuid import UUID

import msgspec
from msgspec import Struct

from bus.addresses import broker_at
from bus.broker import Broker
from bus.workers.sending import Link
from bus.workers.station import Station
from engine.inventories import ProviderState
from engine.picture.picture import Picture
from ironic_sync.core.offers import CellMap
from ironic_sync.rest import HttpIronicApi
from ironic_sync.settings import DaemonRules, Inbox
from ironic_sync.store_sql import IronicStore
from ironic_sync.wiring import ironic_parts
from kit.process import run_process
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store_sql import SchedulerStore
from scheduler_worker.wiring import scheduler_parts
from tools.benchmarks.messages import CELL
from tools.benchmarks.roles import Handled, running

CLASS = "CUSTOM_BAREMETAL"
INBOX = Inbox(creates_exchange=True)


class Seen(Struct, frozen=True, array_like=True):
    """The state of a node in a picture and its time, by the clock that all processes of the machine share."""

    node: UUID
    reserved: int
    at_s: float


class WatchedPicture(Picture):
    """Records each change of a node's offer."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Seen] = []
        self.changes = Handled()
        self._reserved: dict[UUID, int] = {}

    def apply(self, states: Iterable[ProviderState]) -> None:
        known = list(states)
        super().apply(known)
        at_s = time.monotonic()
        fresh = [
            Seen(state.id, stock.reserved, at_s)
            for state in known
            if (stock := state.inventories.get(CLASS)) is not None
            and self._reserved.get(state.id) != stock.reserved
        ]
        self._reserved.update((each.node, each.reserved) for each in fresh)
        self.seen += fresh
        self.changes.add(len(fresh))

    async def until(self, count: int) -> list[Seen]:
        """The changes since the last call, once there were this many in all."""
        await self.changes.until(count)
        seen, self.seen = self.seen, []
        return seen


@asynccontextmanager
async def scheduler(broker: Broker, store: SchedulerStore, name: str) -> AsyncIterator[WatchedPicture]:
    picture = WatchedPicture()
    station = Station(broker, name, asks=True)
    parts = scheduler_parts(station, store, SchedulerSettings(), lambda: datetime.now(UTC), picture=picture)
    try:
        async with running(*parts):
            yield picture
    finally:
        await station.close()


class Daemon:
    """A daemon with Ironic's exchange on the same broker. Without `api` it has only notifications."""

    def __init__(
        self,
        broker: Broker,
        store: IronicStore,
        name: str,
        *,
        api: HttpIronicApi | None = None,
        settings: DaemonRules | None = None,
    ) -> None:
        self._station = Station(broker, f"ironic-{name}", asks=True)
        self._link = Link(broker, self._station.settings, name="connection to Ironic")
        self._api = api
        self.parts = ironic_parts(
            self._station,
            self._link,
            store,
            settings or DaemonRules(),
            name=name,
            incarnation=secrets.token_hex(8),
            cells=CellMap(default=CELL),
            inbox=INBOX,
            api=api,
        )

    async def close(self) -> None:
        await self._station.close()
        await self._link.close()
        if self._api is not None:
            await self._api.close()


@asynccontextmanager
async def daemon(
    broker: Broker, store: IronicStore, name: str, *, api: HttpIronicApi | None = None
) -> AsyncIterator[None]:
    here = Daemon(broker, store, name, api=api)
    try:
        async with running(*here.parts):
            yield
    finally:
        await here.close()


async def main(role: str, bus: str, database: str, name: str = "d1", ironic: str = "") -> None:
    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    async with _playing(role, bus, database, name, ironic) as picture:
        # As kit/process.py does it.
        gc.freeze()
        _say(b"ready")
        async for line in stdin:
            seen = [] if picture is None else await picture.until(int(line))
            _say(msgspec.json.encode(seen))


@asynccontextmanager
async def _playing(
    role: str, bus: str, database: str, name: str, ironic: str
) -> AsyncIterator[WatchedPicture | None]:
    # Imported here: each role needs other drivers and tables.
    if role == "scheduler":
        from scheduler_worker.store_sql import SchedulerStore  # noqa: PLC0415

        rows = SchedulerStore(database)
        try:
            async with scheduler(broker_at(bus), rows, name) as picture:
                yield picture
        finally:
            await rows.close()
    else:
        from ironic_sync.store_sql import IronicStore  # noqa: PLC0415

        store = IronicStore(database)
        api = HttpIronicApi(ironic) if ironic else None
        try:
            async with daemon(broker_at(bus), store, name, api=api):
                yield None
        finally:
            await store.close()


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run_process(main(*sys.argv[1:]))
