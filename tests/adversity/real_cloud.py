"""A whole cloud on the real broker and PostgreSQL: one process per worker, which tests kill, restart and query."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from operator import not_
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from msgspec import structs
from sqlalchemy.engine import make_url

from bus.broker import Broker
from bus.message import Message
from bus.messages.build import BuildInstance, InstanceState
from bus.queues import DEAD_QUEUE
from bus.topology import Limits, Objects, objects_of, user_of
from bus.workers.connections import Station
from engine.flavors import Flavor, InstanceId, RequestId, instance_id_of
from engine.hosts import HostState
from kit.errors import Transient
from laboratory.at_rest import Asked, problems_of
from laboratory.ironic import (
    IronicScript,
    IronicServer,
    IronicSimSettings,
    NotificationSender,
    SimulatedIronic,
    available_nodes,
)
from moor.client.bus_client import hosts_of
from placement_worker.store_sql import PlacementStore
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.store_sql import READ_MAX, InstanceQuery, SchedulerStore
from tests.adversity.worker_process import BUS
from tests.asking import until_state
from tests.contracts.broker_under_test import ADMIN
from tests.contracts.rabbitmq_under_test import RabbitMQUnderTest
from tests.contracts.sql_stores import a_session, migrated_database, rows_of
from tests.fork_server import ForkedProcess, start_module
from tests.last_release import Release
from tests.running import closing, running
from tests.waiting import PATIENCE_S, until

# The broker role of each kind of worker.
OF_CELLS = ("conductor", "compute")
DATABASE_AWAY_S = 2.0


SMALL = Flavor(name="small", vcpus=1, ram_mb=64, root_gb=1)
METAL = Flavor(name="metal", extra_specs={"resources:CUSTOM_BAREMETAL": "1"})


def a_build(number: int, **fields: Any) -> BuildInstance:
    usual = {"flavor": SMALL, "name": f"vm-{number}", "deadline_s": 200}
    return BuildInstance(request_id=RequestId(UUID(int=number)), **{**usual, **fields})


def instance_of(build: BuildInstance) -> InstanceId:
    assert build.request_id is not None
    return instance_id_of(build.request_id, 0)


of_the_tests = partial(migrated_database, "postgresql")


def _amounts(flavor: Flavor) -> dict[str, int]:
    named = {key.removeprefix("resources:"): int(amount) for key, amount in flavor.extra_specs.items()}
    return {"VCPU": flavor.vcpus, "MEMORY_MB": flavor.ram_mb, "DISK_GB": flavor.root_gb} | named


class BrokerOfCloud(Protocol):
    """The broker of a cloud under test: one node that other tests use too, or a cluster."""

    def url(self, user: str = "") -> str: ...

    def broker(self, user: str = "") -> Broker: ...

    async def declare(self, objects: Objects) -> None: ...

    async def add_users(self, users: Sequence[str], cells: tuple[str, ...]) -> None: ...

    async def close(self) -> None: ...


B = TypeVar("B", bound=BrokerOfCloud)


class CloudOn(Generic[B]):
    """Workers by name, such as `scheduler-1` or `conductor-c1`: the kind, and a number or the cell."""

    def __init__(self, under_test: B, database_url: str, cells: Sequence[str], sizes: dict[str, str]) -> None:
        self.under_test = under_test
        self.cells = tuple(cells)
        self.books = PlacementStore(database_url)
        self._rows = SchedulerStore(database_url)
        # Longer than any worker's timeout: on a busy machine eight processes take a while to start.
        patient = structs.replace(BUS, answer_timeout_ms=PATIENCE_S * 1000)
        self.client = Station(under_test.broker(user_of("operator")), "client", settings=patient, asks=True)
        self.database_url = database_url
        # The environment of every worker that is started from now on, and the way of each to its broker and its database.
        self.environment = dict(sizes)
        self.way: Callable[[str, str], str] = lambda _, url: url
        self._running: dict[str, ForkedProcess | asyncio.subprocess.Process] = {}

    # Processes

    async def start(self, *names: str, release: Release | None = None) -> None:
        """Start workers of this checkout, or of another release."""
        start = start_module if release is None else release.start
        for name in names:
            kind, _, cell = name.partition("-")
            in_cell = (cell.partition("+")[0],) if kind in OF_CELLS else ()
            more = (cell,) if kind == "ironic" else in_cell
            self._running[name] = await start(
                "tests.adversity.worker_process",
                kind,
                *more,
                env={
                    "PATH": os.environ["PATH"],
                    "MOOR_BUS_URL": self.way(name, self.under_test.url(user_of(kind, *in_cell))),
                    "MOOR_DB_URL": self.way(name, self.database_url),
                    "MOOR_LOG_LEVEL": os.environ.get("MOOR_LOG_LEVEL", "CRITICAL"),
                    **self.environment,
                },
            )

    async def stop(self, name: str) -> None:
        """Stop it as an upgrade does: it finishes what it has taken."""
        process = self._running[name]
        assert process.returncode is None, f"{name} died by itself, with {process.returncode}"
        process.terminate()
        assert await process.wait() == 0, f"{name} did not end well"

    async def kill(self, name: str) -> None:
        """Kill it as the kernel does when memory runs out: without a clean end."""
        victim = self._running[name]
        assert victim.returncode is None, f"{name} died by itself, with {victim.returncode}"
        victim.kill()
        await victim.wait()

    def signal(self, name: str, number: signal.Signals) -> None:
        self._running[name].send_signal(number)

    async def kill_and_start_again(self, *names: str) -> None:
        for name in names:
            await self.kill(name)
            await self.start(name)

    async def restart_database(self) -> None:
        """Restart the database as its clients see it: every session is cut off, and for a while none can be opened."""
        url = make_url(self.database_url)
        name = url.database
        async with a_session(url.set(database="postgres").render_as_string(hide_password=False)) as admin:
            await admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
            ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1"
            await admin.execute(ended, name)
            await asyncio.sleep(DATABASE_AWAY_S)
            await admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')

    async def end(self) -> None:
        await self.books.close()
        await self._rows.close()
        for process in self._running.values():
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def send(self, messages: Iterable[Message]) -> None:
        await asyncio.gather(*map(self.client.publisher.send, messages))

    # Queries

    async def hosts(self) -> list[HostState]:
        return await hosts_of(self.client)

    async def until_up(self, hosts: int) -> None:
        up = asyncio.create_task(
            until(self.hosts, f"{hosts} hosts are up", lambda found: sum(host.up for host in found) == hosts)
        )
        ends: dict[asyncio.Task[Any], str] = {
            asyncio.create_task(process.wait()): name for name, process in self._running.items()
        }
        done, waiting = await asyncio.wait((up, *ends), return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        assert up in done, f"ended by themselves: {[ends[task] for task in done if task in ends]}"
        await up

    async def states(self) -> Counter[str]:
        """How many instances are in each state."""
        return Counter(
            dict(await self.rows("SELECT state, count(*) FROM requested_instances GROUP BY state"))
        )

    async def until_in(self, count: int, *states: str) -> None:
        """Wait until so many instances are in one of these states."""
        await until(
            self.states,
            f"{count} are in {states}",
            lambda found: sum(found[state] for state in states) >= count,
        )

    async def until_state(self, instance: InstanceId, *states: str) -> InstanceState:
        return await until_state(self.client, instance, *states)

    async def until_nothing_is_held(self) -> None:
        """Wait until nothing is held, neither in the books nor on any host."""

        async def is_so() -> bool:
            held = await self.rows("SELECT 1 FROM holders")
            return not held and not any(host.instances for host in await self.hosts())

        await until(is_so, "nothing is held")

    async def until_at_rest(self, flavor_of: Callable[[InstanceState], Flavor]) -> None:
        """Wait until all participants agree about every instance, and nothing else is in use or a dead letter."""

        async def problems() -> list[str]:
            asked = {each.id: Asked(each.state, _amounts(flavor_of(each))) for each in await self.instances()}
            return await problems_of(self.client, connection, asked)

        async with closing(await self.under_test.broker().connect()) as (connection,):
            await until(problems, "the cloud is at rest", not_)

    async def audited(self) -> tuple[str, ...]:
        """The contradictions in the books. The connections of this process ended with the database's."""

        async def found() -> tuple[str, ...] | None:
            with suppress(Transient):
                return await self.books.audit()
            return None

        return await until(found, "the books can be read", lambda _: True)

    async def nothing_is_buried(self) -> None:
        async with closing(await self.under_test.broker().connect()) as (connection,):
            assert await connection.depth(DEAD_QUEUE) == 0

    async def instances(self) -> list[InstanceState]:
        """All instances in the API level's database."""
        return [row.told for row in await self.instance_rows()]

    async def instance_rows(self) -> list[InstanceRow]:
        found: list[InstanceRow] = []
        while page := await self._rows.instances(
            InstanceQuery(after=found[-1].id if found else None, limit=READ_MAX)
        ):
            found += page
        return found

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query on the database."""
        return await rows_of(self.database_url, query, target_session_attrs="primary")


# A cloud on a single node.
RealCloud = CloudOn[RabbitMQUnderTest]


@asynccontextmanager
async def real_cloud(*cells: str, has_nodes: bool = False, **sizes: str) -> AsyncIterator[RealCloud]:
    """A broker with its users and an empty database; the test starts the workers. With `has_nodes`, also what daemons
    for bare-metal nodes need.
    """
    under_test = await RabbitMQUnderTest.start()
    async with cloud_on(under_test, *cells, has_nodes=has_nodes, sizes=sizes) as here:
        yield here


@asynccontextmanager
async def cloud_on(
    under_test: B,
    *cells: str,
    has_nodes: bool = False,
    limits: Limits | None = None,
    database: Callable[..., AbstractAsyncContextManager[str]] = of_the_tests,
    sizes: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[CloudOn[B]]:
    """As `real_cloud`, on this broker, which is closed at the end; its queues have these limits. `database` gives a database
    with the tables of the workers that it is told.
    """
    async with AsyncExitStack() as stack:
        stack.push_async_callback(under_test.close)
        await under_test.declare(objects_of(cells, create_foreign=has_nodes, limits=limits))
        users = [
            *map(
                user_of, ("placement", "scheduler", "keeper", "operator", *(["ironic"] if has_nodes else []))
            ),
            ADMIN.user,
        ]
        users += [user_of(role, cell) for role in OF_CELLS for cell in cells]
        await under_test.add_users(users, cells)
        owners = (
            "placement_worker",
            "scheduler_worker",
            "cell_conductor",
            "keeper",
            *(["ironic_sync"] if has_nodes else []),
            *(["compute_sim"] if "COMPUTES_KEEP" in sizes else []),
        )
        database_url = await stack.enter_async_context(database(*owners))
        here = CloudOn(under_test, database_url, cells, dict(sizes))
        stack.push_async_callback(here.end)
        async with running((here.client,), here.client):
            yield here


@asynccontextmanager
async def with_ironic(
    here: RealCloud,
    nodes: int,
    settings: IronicSimSettings,
    *,
    script: IronicScript | None = None,
    told: Callable[[bytes], None] = lambda _: None,
) -> AsyncIterator[SimulatedIronic]:
    """Daemons that are started from now on use this Ironic, which is served by HTTP. `told` is called after each notification."""
    sender = NotificationSender(here.under_test.broker(user_of("operator")), settings)

    def publish(key: str, properties: Mapping[str, object], body: bytes) -> None:
        sender.publish(key, properties, body)
        told(body)

    ironic = SimulatedIronic(available_nodes(nodes), time.time, publish, settings, script=script)
    server = IronicServer(ironic)
    here.environment["IRONIC_URL"] = server.url
    async with running((ironic, sender, server)):
        yield ironic
