"""The parts that an event of a bare-metal node passes: a daemon, and schedulers that record when their pictures change."""

import secrets
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from bus.broker import Broker
from bus.workers.connections import Station
from bus.workers.sending import Link
from engine.inventories import ProviderId, ProviderState
from engine.picture.picture import Picture
from ironic_sync.core.offers import CellMap
from ironic_sync.rest import HttpIronicApi
from ironic_sync.settings import DaemonRules, Inbox
from ironic_sync.store_sql import IronicStore
from ironic_sync.wiring import ironic_parts
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store_sql import SchedulerStore
from scheduler_worker.wiring import scheduler_parts
from tests.running import closing, running
from tools.benchmarks.messages import CELL
from tools.benchmarks.remote_role import Seen
from tools.benchmarks.roles import Handled

CLASS = "CUSTOM_BAREMETAL"
INBOX = Inbox(creates_exchange=True)


class Changes(Handled):
    """Of a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Seen] = []

    async def until(self, count: int) -> Sequence[Seen]:
        """The changes since the last call, once there were this many in all."""
        await super().until(count)
        seen, self.seen = self.seen, []
        return seen


class WatchedPicture(Picture):
    """Records each change of a node's offer."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = Changes()
        self._reserved: dict[ProviderId, int] = {}

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
        self._reserved.update((ProviderId(each.node), each.reserved) for each in fresh)
        self.changes.seen += fresh
        self.changes.add(len(fresh))


@asynccontextmanager
async def scheduler(broker: Broker, store: SchedulerStore, name: str) -> AsyncIterator[Changes]:
    picture = WatchedPicture()
    async with closing(Station(broker, name, asks=True)) as (station,):
        parts = scheduler_parts(
            station, store, SchedulerSettings(), lambda: datetime.now(UTC), picture=picture
        )
        async with running(parts):
            yield picture.changes


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
    async with closing(Daemon(broker, store, name, api=api)) as (here,), running(here.parts):
        yield
