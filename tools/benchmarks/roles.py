"""The receivers at the other end of the bus: in this process, or in one of their own (see other_process.py)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from bus.broker import Broker
from bus.messages.placement import ClaimAnswered, ClaimResources, ReportInventory
from bus.workers.connections import Station
from bus.workers.consuming import Subscription
from bus.workers.handlers import Answer, ReadOnly, Received, Said
from bus.workers.worker import Worker
from engine.refusals import Claimed
from placement_worker.settings import PlacementSettings
from placement_worker.store_sql import PlacementStore
from placement_worker.wiring import placement_parts
from tests.running import closing, running
from tools.benchmarks.remote_role import Seen


class Handled:
    """Counts the messages that a worker has handled, and wakes those that wait for a number."""

    def __init__(self) -> None:
        self._count = 0
        self._enough = 0
        self._reached = asyncio.Event()

    def add(self, count: int) -> None:
        self._count += count
        if self._count >= self._enough:
            self._reached.set()

    async def until(self, count: int) -> Sequence[Seen]:
        """Wait for this many in all, since the start."""
        self._enough = count
        if self._count < count:
            self._reached.clear()
            await self._reached.wait()
        return ()


class _NoStore:
    """For workers without rows."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield


@asynccontextmanager
async def asker(broker: Broker, **settings: Any) -> AsyncIterator[Station]:
    async with closing(Station(broker, "client", asks=True, **settings)) as (client,), running((client,)):
        yield client


@asynccontextmanager
async def reader(broker: Broker) -> AsyncIterator[Handled]:
    """Takes reports from placement's queue, and ignores them."""
    handled = Handled()

    async def on_reports(reports: Sequence[Received[ReportInventory]], _: None) -> Sequence[Said]:
        handled.add(len(reports))
        return ()

    async with closing(Station(broker, "reader")) as (station,):
        taking = Subscription("placement.work", {ReportInventory: on_reports}, _NoStore())
        async with running((Worker(station, taking),)):
            yield handled


@asynccontextmanager
async def granting_placement(broker: Broker) -> AsyncIterator[Handled]:
    """Grants every claim, and writes nothing."""
    handled = Handled()

    async def on_claims(asks: Sequence[Received[ClaimResources]]) -> Sequence[Said]:
        handled.add(len(asks))
        return [
            Answer(ask, ClaimAnswered(consumer=ask.message.consumer, attempt=1, verdict=Claimed()))
            for ask in asks
        ]

    async with closing(Station(broker, "yes-sayer")) as (station,):
        taking = Subscription("placement.claims", {ClaimResources: ReadOnly(on_claims)}, _NoStore())
        async with running((Worker(station, taking),)):
            yield handled


@asynccontextmanager
async def placement(broker: Broker, store: PlacementStore) -> AsyncIterator[None]:
    """The real placement worker, with the feed of changes and all its other parts."""
    async with (
        closing(Station(broker, "placement")) as (station,),
        running(placement_parts((station,), store, PlacementSettings())),
    ):
        yield
