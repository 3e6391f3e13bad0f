"""Four daemons that share nodes: the first sync, a storm of notifications, and one daemon killed.

At the end of each, placement must have every node's state at Ironic, and every node must have one live owner; otherwise
the section fails. Times are of the wall clock. The simulated Ironic and its REST API run in this process, which is not
counted.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from uuid import UUID

from msgspec import Struct

from bus.messages.placement import AskSnapshot, SnapshotPage
from bus.topology import objects_of
from bus.workers.connections import Station
from engine.inventories import ProviderId
from ironic_sync.rest import HttpIronicApi
from ironic_sync.settings import DaemonRules
from ironic_sync.store_sql import IronicStore
from kit.process import run_until
from kit.sql import upgrade
from laboratory.ironic import IronicSimulation, IronicTransport, available_nodes, simulated_ironic
from placement_worker.store_sql import PlacementStore
from tests.running import closing, running
from tools.benchmarks.books import WrongBooksError, check, postgres_server
from tools.benchmarks.brokers import Bus, memory_bus, rabbitmq_bus
from tools.benchmarks.cpu import OneProcess, Spender
from tools.benchmarks.measuring import DATABASE, GENERATOR, Details, Effort, Result, measured_once
from tools.benchmarks.messages import CELL
from tools.benchmarks.node_roles import CLASS, Daemon
from tools.benchmarks.remote_role import remote_role
from tools.benchmarks.roles import asker, placement
from tools.benchmarks.section_nodes import ROOMS, ProcessGroup, sqlite_stores

SECTION = "a ring of daemons"
NAMES = ("d1", "d2", "d3", "d4")
NODES, EVENTS = 10_000, 20_000
NODES_QUICK, EVENTS_QUICK = 60, 200
# A part of the storm is repeated just before a daemon is killed.
FLIPS_BEFORE_DEATH = 10
# At most this many are unsent: beyond it the sender drops notifications.
UNSENT_MAX = 500
PATIENCE_S = 900.0
LOOK_S = 0.05
DRAIN_S = 10.0
# The promised limits.
OWNERS_S_MAX, REPORTED_S_MAX = 2.0, 30.0
QUICK = DaemonRules(
    lease_s=2.0,
    look_s=0.05,
    doubts_s=0.2,
    report_again_s=0.2,
)


async def ring_section(effort: Effort) -> list[Result]:
    async with AsyncExitStack() as stack:
        ring = await stack.enter_async_context(_on_servers() if effort.servers else _embedded())
        return await ring.results()


class Ring(Struct, frozen=True):
    """The daemons, and everything that is checked from outside."""

    bus: str
    simulation: IronicSimulation
    rows: IronicStore
    client: Station
    spenders: Mapping[str, Spender]
    start: Callable[[], Awaitable[None]]
    kill: Callable[[], Awaitable[None]]
    events: int

    async def results(self) -> list[Result]:
        nodes = len(self.simulation.ironic.nodes)
        return [
            await self._measured("first sync", nodes, self._sync),
            await self._measured(f"{self.events:,} notifications", self.events, self._storm),
            await self._measured(f"{NAMES[0]} killed", nodes // len(NAMES), self._lose_one),
        ]

    async def _measured(self, what: str, operations: int, work: Callable[[], Awaitable[Details]]) -> Result:
        columns: dict[str, str | int] = {
            "broker": self.bus,
            "nodes": len(self.simulation.ironic.nodes),
            "daemons": len(NAMES),
            "what": what,
        }
        result = await measured_once(SECTION, columns, self.spenders, operations=operations, work=work)
        await self._check()
        return result

    async def _sync(self) -> Details:
        began_s = time.monotonic()
        await self.start()
        await self.until_reported()
        return {"seconds": time.monotonic() - began_s}

    async def _storm(self) -> Details:
        began_s = time.monotonic()
        await self._flip(self.events)
        await self._until(self._is_as_ironic_says, "placement has what Ironic says")
        return {"seconds": time.monotonic() - began_s}

    async def _flip(self, count: int) -> None:
        """Set or clear the maintenance of this many nodes."""
        ironic, sender = self.simulation.ironic, self.simulation.sender
        nodes = list(ironic.nodes)
        for number in range(count):
            turn, at = divmod(number, len(nodes))
            ironic.set_maintenance(nodes[at], is_on=turn % 2 == 0)
            while sender.unsent > UNSENT_MAX:
                await asyncio.sleep(0.001)
        if sender.lost:
            raise WrongBooksError(f"{sender.lost} notifications were lost before they were sent")

    async def _lose_one(self) -> Details:
        """Kill one in the middle of its work: the other daemons get its unacknowledged messages."""
        await self._flip(self.events // FLIPS_BEFORE_DEATH)
        await self.kill()
        await self._until(self._is_lease_over, f"the lease of {NAMES[0]} is over")
        noticed_s = time.monotonic()
        await self._until(self._are_taken, f"no node is {NAMES[0]}'s")
        taken_s = time.monotonic()
        await self.until_reported()
        await self._until(self._is_as_ironic_says, "placement has what Ironic says")
        return {"new owners s": taken_s - noticed_s, "seconds": time.monotonic() - noticed_s}

    # Conditions to wait for

    async def until_reported(self) -> None:
        await self._until(self._are_reported, "all nodes are owned, read and reported")

    async def _until(self, is_so: Callable[[], Awaitable[bool]], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not await is_so():
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise WrongBooksError(f"not within {PATIENCE_S:g} s: {what}") from None

    async def _are_reported(self) -> bool:
        owned = await self.rows.owners()
        names = {each.owner for each in owned}
        if len(owned) < len(self.simulation.ironic.nodes) or "" in names:
            return False
        for name in names:
            if await self.rows.page_of(name, 1, needs="read") or await self.rows.page_of(
                name, 1, needs="report"
            ):
                return False
        return True

    async def _is_lease_over(self) -> bool:
        return all(each.lease_left_s <= 0 for each in await self.rows.members() if each.name == NAMES[0])

    async def _are_taken(self) -> bool:
        return not await self.rows.owners((NAMES[0],))

    async def _is_as_ironic_says(self) -> bool:
        return await self._differences() == 0

    async def _differences(self) -> int:
        said = {
            ProviderId(UUID(uuid)): int(bool(node.maintenance))
            for uuid, node in self.simulation.ironic.nodes.items()
        }
        after: int | None = 0
        while after is not None:
            page = await self.client.ask(AskSnapshot(after=after))
            assert isinstance(page, SnapshotPage)
            for provider in page.providers:
                stock = provider.inventories.get(CLASS)
                if stock is not None and said.get(provider.id) == stock.reserved:
                    del said[provider.id]
            after = page.next
        return len(said)

    async def _check(self) -> None:
        """Nothing is lost, and no node has two owners or a dead one."""
        if wrong := await self._differences():
            raise WrongBooksError(f"placement and Ironic differ in {wrong} nodes")
        alive = {each.name for each in await self.rows.members() if each.is_alive}
        owned = await self.rows.owners()
        if len({each.id for each in owned}) != len(owned) or {each.owner for each in owned} - alive:
            raise WrongBooksError(f"nodes with two owners, or with one that is not in {sorted(alive)}")


class _Ended(Struct, frozen=True):
    """A killed process: its CPU time can no longer be read."""

    until_then_s: float

    def spent_s(self) -> float:
        return self.until_then_s


# All in this process


@asynccontextmanager
async def _embedded() -> AsyncIterator[Ring]:
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(memory_bus())
        stores = await stack.enter_async_context(sqlite_stores())
        rows = stores.ironic
        await stack.enter_async_context(placement(bus.broker, stores.placement))
        simulation = await stack.enter_async_context(_simulation(bus, NODES_QUICK, listen=None))
        client = await stack.enter_async_context(asker(bus.broker))
        tasks: dict[str, asyncio.Task[None]] = {}

        async def start() -> None:
            for name in NAMES:
                api = HttpIronicApi("http://ironic", transport=IronicTransport(simulation.ironic))
                daemon = Daemon(bus.broker, rows, name, api=api, settings=QUICK)
                stack.push_async_callback(daemon.close)
                tasks[name] = asyncio.create_task(run_until(asyncio.Event(), daemon.parts, DRAIN_S))
                stack.push_async_callback(_end, tasks[name])

        async def kill() -> None:
            await _end(tasks[NAMES[0]])

        yield Ring(
            bus.name,
            simulation,
            rows,
            client,
            {"all in one process": OneProcess(os.getpid())},
            start,
            kill,
            EVENTS_QUICK,
        )


async def _end(task: asyncio.Task[None]) -> None:
    """End at once, without handing anything over."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@asynccontextmanager
async def _simulation(
    bus: Bus, nodes: int, listen: tuple[str, int] | None = ("127.0.0.1", 0)
) -> AsyncIterator[IronicSimulation]:
    connection = await bus.broker.connect()
    await connection.declare(objects_of((CELL,), create_foreign=True))
    await connection.close()
    simulation = simulated_ironic(bus.broker, available_nodes(nodes), listen=listen)
    async with running(simulation.parts):
        yield simulation


# On servers, each part in a process of its own


@asynccontextmanager
async def _on_servers() -> AsyncIterator[Ring]:
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(rabbitmq_bus())
        servers = await stack.enter_async_context(postgres_server())
        url = await stack.enter_async_context(servers.database())
        for room in ROOMS:
            await upgrade(url, room)
        simulation = await stack.enter_async_context(_simulation(bus, NODES))
        client = await stack.enter_async_context(asker(bus.broker))
        placing = await stack.enter_async_context(remote_role("placement", bus.url, url))
        (rows,) = await stack.enter_async_context(closing(IronicStore(url)))
        daemons = dict[str, Spender]()
        processes = dict[str, asyncio.subprocess.Process]()

        async def start_one(name: str) -> None:
            apart = remote_role("daemon", bus.url, url, name, simulation.url)
            apart_ = await stack.enter_async_context(apart)
            daemons[name], processes[name] = apart_.spender, apart_.process

        async def start() -> None:
            await asyncio.gather(*map(start_one, NAMES))

        async def kill() -> None:
            daemons[NAMES[0]] = _Ended(daemons[NAMES[0]].spent_s())
            processes[NAMES[0]].kill()
            await processes[NAMES[0]].wait()

        spenders: dict[str, Spender] = {
            GENERATOR: OneProcess(os.getpid()),
            "daemons": ProcessGroup(daemons.values()),
            "placement": placing.spender,
            **bus.spenders,
            DATABASE: servers.spender,
        }
        yield Ring(bus.name, simulation, rows, client, spenders, start, kill, EVENTS)
        async with closing(PlacementStore(url)) as (store,):
            await check(store)


# Promised limits


def ring_times(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        if result.section == SECTION and result.detail("new owners s") is not None:
            for what, name, seconds_max in (
                ("a new owner", "new owners s", OWNERS_S_MAX),
                ("read and reported", "seconds", REPORTED_S_MAX),
            ):
                seconds = result.detail(name) or 0.0
                verdict = "kept" if seconds <= seconds_max else "EXCEEDED"
                yield (
                    f"{SECTION}, {result.what['broker']}, the nodes of the dead, {what}: at most {seconds_max:g} s after its "
                    f"lease, seen {seconds:.1f}: {verdict}"
                )
