"""Runs the parts of a process, connects them to the bus, and hears its events."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any, TypeVar

from bus.broker import Broker
from bus.codec import CODEC
from bus.configuration.settings import BusSettings
from bus.message import Message
from bus.process import Part, run_until
from bus.topology import EVENTS, Grant
from bus.workers.handling import Received
from bus.workers.link import Link
from bus.workers.listening import listen
from bus.workers.station import Station, process_name

T = TypeVar("T")

DRAIN_S_MAX = 5.0

Feed = AsyncGenerator[Sequence[Received[Message]], None]


async def during(work: Coroutine[Any, Any, T], *watches: Coroutine[Any, Any, object]) -> T:
    """Return the result of the coroutine `work`, while the coroutines `watches` run beside it.

    If one of `watches` fails first, cancel `work` and raise that failure.
    """
    working = asyncio.create_task(work)
    watching = [asyncio.create_task(each) for each in watches]
    try:
        await asyncio.wait((working, *watching), return_when=asyncio.FIRST_COMPLETED)
        for task in watching:
            if task.done():
                task.result()
        return await working
    finally:
        for task in (working, *watching):
            task.cancel()
        await asyncio.gather(working, *watching, return_exceptions=True)


@asynccontextmanager
async def running(
    parts: Sequence[Part], drain_s_max: float = DRAIN_S_MAX
) -> AsyncIterator[asyncio.Task[None]]:
    """Run the parts of a process while this context is open, then drain them.

    Yields the task that runs the parts. If a part fails, this task ends before the context does.
    """
    stop = asyncio.Event()
    task = asyncio.create_task(run_until(stop, parts, drain_s_max))
    try:
        yield task
    finally:
        stop.set()
        await task


@asynccontextmanager
async def station_on(
    broker: Broker, role: str, settings: BusSettings | None = None
) -> AsyncIterator[tuple[Station, asyncio.Task[None]]]:
    """Connect to the bus to ask questions. Yields the connection (a `Station`), and the task that receives the answers."""
    async with AsyncExitStack() as stack:
        station = Station(broker, process_name(role), settings=settings, asks=True)
        stack.push_async_callback(station.close)
        yield station, await stack.enter_async_context(running((station,)))


@asynccontextmanager
async def feed_of(station: Station, grant: Grant) -> AsyncIterator[Feed]:
    """Subscribe to the exchange and the routing keys that `grant` names, and yield the feed of batches.

    The first batch is empty: it says that the subscription is active.
    """
    link = Link(station.consuming.broker, station.settings)
    feed = listen(link, (grant,), process=station.name, settings=station.settings, codec=CODEC)
    try:
        async with aclosing(feed):
            yield feed
    finally:
        await link.close()


@asynccontextmanager
async def hearing(station: Station, *keys: str) -> AsyncIterator[Feed]:
    """Listen to the events with these routing keys, from now on."""
    async with feed_of(station, Grant(EVENTS, keys)) as feed:
        await anext(feed)
        yield feed
