"""From a notification on Ironic's exchange to the pictures of all schedulers: duration and cost.

A notification that sets a node's maintenance is published at a steady pace. The clock stops when the last scheduler's
picture has the node reserved, or free again; placement has committed that before. The daemon has only notifications, so
that Ironic's REST API has no part in the figures.
"""

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any
from uuid import UUID

from msgspec import Struct, structs

from bus.broker import Broker
from bus.message import Parcel
from bus.topology import IRONIC, objects_of
from engine.inventories import ProviderId
from ironic_sync.store_sql import IronicStore
from kit.sql import upgrade
from laboratory.ironic import SimulatedIronic, available_nodes
from placement_worker.store_sql import PlacementStore
from scheduler_worker.store_sql import SchedulerStore
from tests.running import closing
from tools.benchmarks.books import PostgresServer, WrongBooksError, check, new_database, postgres_server
from tools.benchmarks.brokers import Bus, memory_bus, rabbitmq_bus
from tools.benchmarks.cpu import OneProcess, Spender
from tools.benchmarks.measuring import (
    DATABASE,
    GENERATOR,
    Details,
    Effort,
    Result,
    Settle,
    Work,
    at_once,
    measured,
    waits_of,
)
from tools.benchmarks.messages import CELL
from tools.benchmarks.node_roles import daemon, scheduler
from tools.benchmarks.remote_role import Seen, remote_role
from tools.benchmarks.roles import placement

SECTION = "events of nodes"
ROOMS = ("placement_worker", "scheduler_worker", "ironic_sync")
NODES = 1_000
EVENTS = 5_000
# Per second.
EMBEDDED_RATE, SERVERS_RATE = 100, 500
SCHEDULERS = 2
RUNS = 5
PATIENCE_S = 120.0
# A picture without changes for this long has missed those that it does not have.
QUIET_S = 2.0
LOOK_S = 0.02

# The changes of a picture since the last call, once there were this many in all (0: at once).
Until = Callable[[int], Awaitable[Sequence[Seen]]]


async def nodes_section(effort: Effort) -> list[Result]:
    effort = structs.replace(effort, runs=RUNS if effort.servers else effort.runs)
    async with _embedded(effort) as events:
        what: dict[str, str | int] = {"broker": "memory", "store": "sqlite", "a second": EMBEDDED_RATE}
        results = [await events.measured(what, EMBEDDED_RATE, effort)]
    if effort.servers:
        async with rabbitmq_bus() as bus, postgres_server() as ring:
            results.append(await _on_servers(bus, ring, effort))
    return results


# The changes


class Flip(Struct, frozen=True):
    """A node enters maintenance, or leaves it."""

    node: ProviderId
    reserved: int
    body: bytes


class Flips:
    """The nodes of a simulated Ironic, which change one after the other."""

    def __init__(self, count: int) -> None:
        self._said: list[bytes] = []
        self._at_s = time.time()
        self._ironic = SimulatedIronic(available_nodes(count), lambda: self._at_s, self._hear)
        self.nodes = tuple(self._ironic.nodes)
        self._turn = 0

    def first(self) -> list[Flip]:
        """Each node sends one notification first, so that the daemon knows it."""
        return [self._flip(node, is_on=False) for node in self.nodes]

    def some(self, count: int, rate: int) -> list[Flip]:
        """Their timestamps are those of their later publication."""
        began_s = time.time()
        flips = []
        for number in range(count):
            self._at_s = began_s + number / rate
            turn, at = divmod(self._turn, len(self.nodes))
            flips.append(self._flip(self.nodes[at], is_on=turn % 2 == 0))
            self._turn += 1
        return flips

    def _flip(self, node: str, *, is_on: bool) -> Flip:
        self._said.clear()
        self._ironic.set_maintenance(node, is_on=is_on)
        # The notification that a change starts does not count.
        return Flip(ProviderId(UUID(node)), int(is_on), self._said[-1])

    def _hear(self, key: str, properties: Mapping[str, Any], body: bytes) -> None:  # noqa: ARG002 - Ironic's form
        self._said.append(body)


class Events(Struct, frozen=True):
    """Publishes notifications, and collects their arrival."""

    flips: Flips
    publish: Callable[[bytes], Awaitable[None]]
    pictures: Sequence[Until]
    spenders: Mapping[str, Spender]

    async def begin(self) -> None:
        await self._told(self.flips.first())

    async def measured(
        self, what: dict[str, str | int], rate: int, effort: Effort, settle: Settle = at_once
    ) -> Result:
        return await measured(
            SECTION,
            what,
            self.spenders,
            operations=effort.operations(EVENTS * rate // SERVERS_RATE, 1),
            effort=effort,
            prepare=partial(self._prepare, rate),
            settle=settle,
        )

    def _prepare(self, rate: int, count: int) -> Work:
        return partial(self._work, self.flips.some(count, rate), rate)

    async def _work(self, flips: Sequence[Flip], rate: int) -> Details:
        return waits_of(await self._told(flips, rate))

    async def _told(self, flips: Sequence[Flip], rate: int = 0) -> list[float]:
        """The duration of each change until the last picture had it, in seconds."""
        sent_at_s = await paced([partial(self.publish, flip.body) for flip in flips], rate)
        async with asyncio.timeout(PATIENCE_S):
            seen = [await _all_seen(picture, flips) for picture in self.pictures]
        return [max(waits) for waits in zip(*(_waits(flips, sent_at_s, each) for each in seen), strict=True)]


async def paced(actions: Sequence[Callable[[], Awaitable[None]]], rate: int) -> list[float]:
    """Start this many a second, or all at once, without waiting for earlier ones; returns the start times."""
    began_s = time.monotonic()
    began_at_s = []
    async with asyncio.TaskGroup() as doing:
        for number, action in enumerate(actions):
            if rate and (pause_s := began_s + number / rate - time.monotonic()) > 0:
                await asyncio.sleep(pause_s)
            began_at_s.append(time.monotonic())
            doing.create_task(_done(action))
    return began_at_s


async def _done(action: Callable[[], Awaitable[None]]) -> None:
    await action()


async def _all_seen(picture: Until, flips: Sequence[Flip]) -> list[Seen]:
    """All changes of a picture, once it has the last one of every node and there are no more. A picture that lags may
    skip intermediate ones: placement publishes the state of a node, not each change.
    """
    last: dict[UUID, int] = {flip.node: flip.reserved for flip in flips}
    noted: list[Seen] = []
    quiet_since_s = time.monotonic()
    while True:
        fresh = await picture(0)
        noted += fresh
        now_s = time.monotonic()
        quiet_since_s = now_s if fresh else quiet_since_s
        has_last = last | {each.node: each.reserved for each in noted} == last
        if has_last and (len(noted) >= len(flips) or now_s - quiet_since_s > QUIET_S):
            return noted
        await asyncio.sleep(LOOK_S)


def _waits(flips: Sequence[Flip], sent_at_s: Sequence[float], seen: Sequence[Seen]) -> list[float]:
    """The waits in one picture, from the last changes of each node backwards: a skipped change waited until the next
    one arrived.
    """
    noted: dict[UUID, list[Seen]] = defaultdict(list)
    for each in seen:
        noted[each.node].append(each)
    arrived: dict[UUID, float] = {}
    waits_s = []
    for flip, at_s in zip(reversed(flips), reversed(sent_at_s), strict=True):
        left = noted[flip.node]
        if left and left[-1].reserved == flip.reserved and left[-1].at_s >= at_s:
            arrived[flip.node] = left.pop().at_s
        if flip.node not in arrived:
            raise WrongBooksError(f"no picture shows node {flip.node} with reserved {flip.reserved}")
        waits_s.append(arrived[flip.node] - at_s)
    return waits_s[::-1]


# All in this process


class Stores(Struct, frozen=True):
    placement: PlacementStore
    scheduler: SchedulerStore
    ironic: IronicStore


@asynccontextmanager
async def sqlite_stores() -> AsyncIterator[Stores]:
    async with new_database() as url:
        for room in ROOMS:
            await upgrade(url, room)
        async with (
            closing(PlacementStore(url)) as (books,),
            closing(SchedulerStore(url)) as (rows,),
            closing(IronicStore(url)) as (nodes,),
        ):
            yield Stores(books, rows, nodes)
            await check(books)


@asynccontextmanager
async def _embedded(effort: Effort) -> AsyncIterator[Events]:
    async with AsyncExitStack() as stack:
        stores = await stack.enter_async_context(sqlite_stores())
        bus = await stack.enter_async_context(memory_bus())
        publish = await stack.enter_async_context(publishing(bus.broker))
        await stack.enter_async_context(placement(bus.broker, stores.placement))
        changes = await stack.enter_async_context(scheduler(bus.broker, stores.scheduler, "scheduler"))
        await stack.enter_async_context(daemon(bus.broker, stores.ironic, "d1"))
        flips = Flips(NODES if effort.servers else 20)
        here = {"all in one process": OneProcess(os.getpid())}
        events = Events(flips, publish, (changes.until,), here)
        await events.begin()
        yield events


@asynccontextmanager
async def publishing(broker: Broker) -> AsyncIterator[Callable[[bytes], Awaitable[None]]]:
    """Publish as Ironic does: to its exchange, durable, and confirmed."""
    connection = await broker.connect()
    try:
        await connection.declare(objects_of((CELL,), create_foreign=True))
        channel = await connection.open_publishing()

        async def publish(body: bytes) -> None:
            await channel.publish(Parcel(IRONIC, "ironic_versioned_notifications.info", body))

        yield publish
    finally:
        await connection.close()


# On servers, each part in a process of its own


async def _on_servers(bus: Bus, ring: PostgresServer, effort: Effort) -> Result:
    what: dict[str, str | int] = {"broker": bus.name, "store": "postgresql", "a second": SERVERS_RATE}
    async with ring.database() as url, AsyncExitStack() as stack:
        for room in ROOMS:
            await upgrade(url, room)
        publish = await stack.enter_async_context(publishing(bus.broker))
        placing = await stack.enter_async_context(remote_role("placement", bus.url, url))
        schedulers = [
            await stack.enter_async_context(remote_role("scheduler", bus.url, url, f"scheduler-{number}"))
            for number in range(SCHEDULERS)
        ]
        keeping = await stack.enter_async_context(remote_role("daemon", bus.url, url, "d1"))
        spenders: dict[str, Spender] = {
            GENERATOR: OneProcess(os.getpid()),
            "daemon": keeping.spender,
            "placement": placing.spender,
            "schedulers": ProcessGroup([each.spender for each in schedulers]),
            **bus.spenders,
            DATABASE: ring.spender,
        }
        pictures = [each.until for each in schedulers]
        events = Events(Flips(NODES), publish, pictures, spenders)
        await events.begin()
        result = await events.measured(what, SERVERS_RATE, effort, ring.settle)
        async with closing(PlacementStore(url)) as (store,):
            await check(store)
    return result


class ProcessGroup:
    """Processes that are counted together."""

    def __init__(self, spenders: Collection[Spender]) -> None:
        self._spenders = spenders

    def spent_s(self) -> float:
        return sum(each.spent_s() for each in self._spenders)
