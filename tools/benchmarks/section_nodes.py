"""From a notification on Ironic's exchange to the pictures of all schedulers: duration and cost.

A notification that sets a node's maintenance is published at a steady pace. The clock stops when the last scheduler's
picture has the node reserved, or free again; placement has committed that before. The daemon has only notifications, so
that Ironic's REST API has no part in the figures. For comparison the report shows two other durations, at the same
pace and in the same minutes. One is of a durable message from its publisher to a worker, the other of a write that waits
for the disk.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct, structs

from bus.broker import Broker
from bus.message import Parcel
from bus.messages.placement import ReportInventory
from bus.topology import IRONIC, objects_of
from bus.workers.handling import Received, Said
from bus.workers.station import Station
from engine.inventories import ProviderId
from ironic_sync.store import IronicStore
from ironic_sync.store_sql import SqlIronicStore
from kit.sql import upgrade
from kit.sql.databases import PAGE_BYTES
from laboratory.ironic import SimulatedIronic, available_nodes
from placement_worker.store import PlacementStore
from placement_worker.store_sql import SqlPlacementStore
from scheduler_worker.store import SchedulerStore
from scheduler_worker.store_sql import SqlSchedulerStore
from tests.memory_stores.ironic import MemoryIronicStore
from tests.memory_stores.placement import MemoryPlacementStore
from tests.memory_stores.scheduler import MemorySchedulerStore
from tools.benchmarks.books import WrongBooksError, check, closing, database_of
from tools.benchmarks.brokers import Bus, memory_bus, rabbitmq_bus
from tools.benchmarks.compared_servers import PostgresServer, postgres_server
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
)
from tools.benchmarks.messages import CELL, HOSTS, report
from tools.benchmarks.node_roles import Seen, daemon, scheduler
from tools.benchmarks.remote_role import remote_role
from tools.benchmarks.roles import placement, running

SECTION = "events of nodes"
ROOMS = ("placement_worker", "scheduler_worker", "ironic_sync")
NODES = 1_000
EVENTS = 5_000
# Per second.
EMBEDDED_RATE, SERVERS_RATE = 100, 500
SCHEDULERS = 2
RUNS = 5
MS_PER_S = 1e3
# The promised limits, for the median run.
EMBEDDED_P99_MS_MAX = 10.0
SERVERS_P50_MS_MAX, SERVERS_P99_MS_MAX = 30.0, 150.0
# On a busy machine: or within this many times the p99 of the bus alone, or of the disk alone.
TIMES_OF_ONE = 4
# About what a commit of SQLite's appends to its log for an event: two pages.
COMMIT_BYTES = 2 * PAGE_BYTES
THE_BUS, THE_DISK = "none: the bus", "none: the disk"
PATIENCE_S = 120.0
# A picture without changes for this long has missed those that it does not have.
QUIET_S = 2.0
LOOK_S = 0.02
_ROOT = Path(__file__).parents[2]
_LINE_BYTES_MAX = 2**26
_END_S_MAX = 30.0

# The changes of a picture since the last call, once there were this many in all (0: at once).
Until = Callable[[int], Awaitable[Sequence[Seen]]]


async def nodes_section(effort: Effort) -> list[Result]:
    effort = structs.replace(effort, runs=RUNS if effort.servers else effort.runs)
    results = []
    for store in ("memory", "sqlite"):
        if store == "sqlite":
            results.append(await _disk_alone(effort))
        async with _embedded(store, effort) as events:
            what: dict[str, str | int] = {"broker": "memory", "store": store, "a second": EMBEDDED_RATE}
            results.append(await events.measured(what, EMBEDDED_RATE, effort))
    if effort.servers:
        async with rabbitmq_bus() as bus, postgres_server() as ring:
            results += await _on_servers(bus, ring, effort)
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


def waits_of(waits_s: Sequence[float]) -> Details:
    ordered = sorted(waits_s)
    return {
        "median wait ms": ordered[len(ordered) // 2] * MS_PER_S,
        "p99 wait ms": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * MS_PER_S,
        "longest wait ms": ordered[-1] * MS_PER_S,
    }


# All in this process


class Stores(Struct, frozen=True):
    placement: PlacementStore
    scheduler: SchedulerStore
    ironic: IronicStore


@asynccontextmanager
async def memory_stores() -> AsyncIterator[Stores]:
    yield Stores(MemoryPlacementStore(), MemorySchedulerStore(), MemoryIronicStore())


@asynccontextmanager
async def sql_stores(url: str) -> AsyncIterator[Stores]:
    for room in ROOMS:
        await upgrade(url, room)
    stores = SqlPlacementStore(url), SqlSchedulerStore(url), SqlIronicStore(url)
    try:
        yield Stores(*stores)
    finally:
        for store in stores:
            await store.close()


@asynccontextmanager
async def _embedded(store: str, effort: Effort) -> AsyncIterator[Events]:
    async with AsyncExitStack() as stack:
        if store == "memory":
            stores = await stack.enter_async_context(memory_stores())
        else:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="moor-"))
            stores = await stack.enter_async_context(sql_stores(f"sqlite:///{Path(directory) / 'moor.db'}"))
        bus = await stack.enter_async_context(memory_bus())
        publish = await stack.enter_async_context(publishing(bus.broker))
        await stack.enter_async_context(placement(bus.broker, stores.placement))
        picture = await stack.enter_async_context(scheduler(bus.broker, stores.scheduler, "scheduler"))
        await stack.enter_async_context(daemon(bus.broker, stores.ironic, "d1"))
        flips = Flips(NODES if effort.servers else 20)
        here = {"all in one process": OneProcess(os.getpid())}
        events = Events(flips, publish, (picture.until,), here)
        await events.begin()
        yield events
        if contradictions := await stores.placement.audit():
            raise WrongBooksError(f"contradictions in the books: {contradictions[:10]}")


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


async def _on_servers(bus: Bus, ring: PostgresServer, effort: Effort) -> list[Result]:
    what: dict[str, str | int] = {"broker": bus.name, "store": "postgresql", "a second": SERVERS_RATE}
    async with ring.database() as name, AsyncExitStack() as stack:
        url = database_of(ring.postgres, name)
        for room in ROOMS:
            await upgrade(url, room)
        alone = await _bus_alone(bus, effort)
        publish = await stack.enter_async_context(publishing(bus.broker))
        placing = await stack.enter_async_context(remote_role("placement", bus.url, url))
        schedulers = [
            await stack.enter_async_context(role_apart("scheduler", bus.url, url, f"scheduler-{number}"))
            for number in range(SCHEDULERS)
        ]
        keeping = await stack.enter_async_context(role_apart("daemon", bus.url, url, "d1"))
        spenders = {
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
        async with closing(SqlPlacementStore(url)) as store:
            await check(store)
    return [alone, result]


class ProcessGroup:
    """Processes that are counted together."""

    def __init__(self, spenders: Collection[Spender]) -> None:
        self._spenders = spenders

    def spent_s(self) -> float:
        return sum(each.spent_s() for each in self._spenders)


class RoleApart:
    """A process of node_roles.py, as the benchmark controls it."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.spender = OneProcess(process.pid)
        self._name = name

    async def until(self, count: int) -> Sequence[Seen]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n".encode())
        return msgspec.json.decode(await self.line(), type=list[Seen])

    async def line(self) -> bytes:
        assert self.process.stdout is not None
        if not (line := await self.process.stdout.readline()):
            raise RuntimeError(f"the process of {self._name} has ended")
        return line


@asynccontextmanager
async def role_apart(
    role: str, bus: str, database: str, name: str, ironic: str = ""
) -> AsyncIterator[RoleApart]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tools.benchmarks.node_roles", role, bus, database, name, ironic),
        cwd=_ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LINE_BYTES_MAX,
    )
    assert process.stdin is not None
    try:
        here = RoleApart(name, process)
        await here.line()
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


# The duration of the bus alone


class _Stamps:
    """Records when reports arrive, and nothing else."""

    def __init__(self) -> None:
        self.at_s: dict[int, float] = {}

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield

    async def on_reports(self, reports: Sequence[Received[ReportInventory]], _: None) -> Sequence[Said]:
        at_s = time.monotonic()
        self.at_s.update((each.message.sequence, at_s) for each in reports)
        return ()


async def _bus_alone(bus: Bus, effort: Effort) -> Result:
    stamps = _Stamps()
    sender = Station(bus.broker, "sender")
    taker = Station(bus.broker, "taker")
    worker = taker.worker("placement.work", {ReportInventory: stamps.on_reports}, stamps)

    def prepare(count: int) -> Work:
        async def work() -> Details:
            stamps.at_s.clear()
            actions = [partial(_send, sender, number) for number in range(1, count + 1)]
            began_at_s = await paced(actions, SERVERS_RATE)
            async with asyncio.timeout(PATIENCE_S):
                while len(stamps.at_s) < count:
                    await asyncio.sleep(0.01)
            return waits_of([stamps.at_s[number] - at_s for number, at_s in enumerate(began_at_s, start=1)])

        return work

    what: dict[str, str | int] = {"broker": bus.name, "store": THE_BUS, "a second": SERVERS_RATE}
    async with running(sender, worker, taker):
        result = await measured(
            SECTION,
            what,
            {"sender and worker": OneProcess(os.getpid()), **bus.spenders},
            operations=effort.operations(EVENTS // 2, 1),
            effort=effort,
            prepare=prepare,
        )
    await sender.close()
    await taker.close()
    return result


async def _send(sender: Station, number: int) -> None:
    await sender.publisher.send(structs.replace(report(number % HOSTS), sequence=number))


# The duration of the disk alone


async def _disk_alone(effort: Effort) -> Result:
    with tempfile.TemporaryFile(prefix="moor-") as file:

        def prepare(count: int) -> Work:
            async def work() -> Details:
                async def timed() -> None:
                    began_s = time.monotonic()
                    await asyncio.to_thread(_append, file.fileno())
                    waits_s.append(time.monotonic() - began_s)

                waits_s: list[float] = []
                await paced([timed] * count, EMBEDDED_RATE)
                return waits_of(waits_s)

            return work

        return await measured(
            SECTION,
            {"broker": "none", "store": THE_DISK, "a second": EMBEDDED_RATE},
            {"all in one process": OneProcess(os.getpid())},
            operations=effort.operations(EVENTS * EMBEDDED_RATE // SERVERS_RATE, 1),
            effort=effort,
            prepare=prepare,
        )


def _append(file: int) -> None:
    os.write(file, bytes(COMMIT_BYTES))
    os.fdatasync(file)


# Promised limits


def event_waits(results: Sequence[Result]) -> Iterator[str]:
    """The median run counts."""
    waits = {
        result.what["store"]: (result.detail("median wait ms") or 0.0, result.detail("p99 wait ms") or 0.0)
        for result in results
        if result.section == SECTION
    }
    for store, which, at, limit_ms, alone in (
        ("memory", "p99", 1, EMBEDDED_P99_MS_MAX, ""),
        ("sqlite", "p99", 1, EMBEDDED_P99_MS_MAX, THE_DISK),
        ("postgresql", "p50", 0, SERVERS_P50_MS_MAX, THE_BUS),
        ("postgresql", "p99", 1, SERVERS_P99_MS_MAX, THE_BUS),
    ):
        if store in waits:
            alone_ms = waits[alone][1] if alone else 0.0
            yield _verdict(store, which, waits[store][at], max(limit_ms, TIMES_OF_ONE * alone_ms))


def _verdict(store: str, which: str, ms: float, ms_max: float) -> str:
    verdict = "kept" if ms <= ms_max else "EXCEEDED"
    return f"{SECTION}, {store}, {which}: at most {ms_max:.0f} ms, seen {ms:.1f}: {verdict}"
