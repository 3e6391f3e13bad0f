"""What the dashboard costs at 10,000 hosts, 100,000 instances and 10,000 bare-metal nodes, on RabbitMQ and PostgreSQL.

First each page: the CPU time of all processes, of the broker and of the database, for one page. Then watching: for some minutes, in
turns, nobody looks, and one browser has the overview open; all processes are compared with and without it. An operation is then a second, so
10,000 µs are 1 % of a core.
"""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

import httpx
from msgspec import Struct

from bus.addresses import broker_at
from engine.inventories import ProviderId
from ironic_sync.core.node import Node
from ironic_sync.core.rows import NodeRow, Offer
from ironic_sync.store_sql import SqlIronicStore
from kit.sql import upgrade
from laboratory.computes.faults import FaultScript
from laboratory.temporary_cloud import WorkerProcess, cloud_in_processes
from moor.asking import CommandClient, station_on, until_choosable
from tests.servers import PrivatePostgres, PrivateRabbitMQ
from tools.benchmarks.books import connected, database_of
from tools.benchmarks.cpu import OneProcess, ProcessTree, Spender
from tools.benchmarks.measuring import BROKER, DATABASE, Details, Effort, Result, Work, measured

if TYPE_CHECKING:
    import asyncpg

PAGES, WATCHING = "dashboard: pages", "dashboard: watching"
DASHBOARD = "dashboard"
CELLS = {"c1": 5_000, "c2": 5_000}
INSTANCES, NODES = 100_000, 10_000
BOOTED = 20
PAGES_A_RUN, SECONDS_A_RUN = 20, 60
SETTLED_S = 15.0
DATABASE_NAME = "dashboard"
# Each copy has an id of its own, and a host in its cell; all else is as in the rows of instances that were really booted.
COPIED = {
    "id": "gen_random_uuid()",
    "request_id": "gen_random_uuid()",
    "name": "name || '-' || copy",
    "host": "cell || '-host-' || lpad((copy * 37 % 5000 + 1)::text, 5, '0')",
}


class LargeCloud(Struct, frozen=True):
    """The environment in which a dashboard finds the cloud, and the processes whose CPU time is counted."""

    environment: Mapping[str, str]
    spenders: Mapping[str, Spender]
    instance: str


async def dashboard_section(effort: Effort) -> list[Result]:
    if not effort.servers:
        return []
    async with large_cloud() as cloud:
        return [*await _pages(cloud, effort), *await _watching(cloud, effort)]


async def _pages(cloud: LargeCloud, effort: Effort) -> list[Result]:
    async with dashboard_of(cloud) as (client, pid):
        spenders = {DASHBOARD: OneProcess(pid), **cloud.spenders}
        return [
            await measured(
                PAGES,
                {"page": page.replace(cloud.instance, "ID")},
                spenders,
                operations=effort.operations(PAGES_A_RUN, 1),
                effort=effort,
                prepare=partial(_prepare_pages, client, page),
            )
            for page in pages_of(cloud)
        ]


def pages_of(cloud: LargeCloud) -> Sequence[str]:
    return (
        *(
            "/",
            "/workers",
            "/instances",
            f"/instances/{cloud.instance}",
            f"/instances/{cloud.instance}?now=1",
        ),
        *("/instances?state=error", "/hosts", "/hosts?after=c1-host-04000", "/hosts/c2/c2-host-00001"),
        *("/tiles/c2/4999", "/waiting", "/moves?ended=1", "/groups", "/aggregates", "/dead", "/why?vcpus=2"),
        *("/nodes", "/nodes?not_offered=1&page=2", "/ring"),
    )


def _prepare_pages(client: httpx.AsyncClient, page: str, count: int) -> Work:
    async def work() -> Details:
        size = 0
        for _ in range(count):
            answer = await client.get(page)
            assert answer.status_code < httpx.codes.BAD_REQUEST, answer.text
            size = len(answer.content)
        return {"bytes": float(size)}

    return work


async def _watching(cloud: LargeCloud, effort: Effort) -> list[Result]:
    seconds = effort.operations(SECONDS_A_RUN, 1)
    found: dict[str, list[Result]] = {"nobody looks": [], "one overview is open": []}
    once = Effort(runs=1, scale=effort.scale, kinds_max=effort.kinds_max, servers=True)
    for _ in range(effort.runs):
        for who, results in found.items():
            async with AsyncExitStack() as stack:
                if who != "nobody looks":
                    client, _ = await stack.enter_async_context(dashboard_of(cloud))
                    await stack.enter_async_context(watched(client))
                await asyncio.sleep(SETTLED_S)
                results.append(
                    await measured(
                        WATCHING,
                        {"who": who},
                        cloud.spenders,
                        operations=seconds,
                        effort=once,
                        prepare=_prepare_seconds,
                    )
                )
    return [
        Result(WATCHING, {"who": who}, tuple(run for each in results for run in each.runs))
        for who, results in found.items()
    ]


def _prepare_seconds(seconds: int) -> Work:
    async def work() -> Details:
        await asyncio.sleep(seconds)
        return {}

    return work


@asynccontextmanager
async def watched(client: httpx.AsyncClient) -> AsyncIterator[None]:
    """A browser that has the overview open."""

    async def read() -> None:
        async with client.stream("GET", "/live", timeout=None) as stream:
            async for _ in stream.aiter_bytes():
                pass

    reading = asyncio.create_task(read())
    try:
        yield
    finally:
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading


@asynccontextmanager
async def dashboard_of(cloud: LargeCloud) -> AsyncIterator[tuple[httpx.AsyncClient, int]]:
    """A dashboard as a process of its own, and its process id."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "moor", "run", "dashboard", "--dashboard-listen", "127.0.0.1:0"),
        env={**os.environ, **cloud.environment, "MOOR_LOG_LEVEL": "INFO"},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        address = None
        while address is None:
            line = (await process.stderr.readline()).decode()
            assert line, "the dashboard ended"
            address = re.search(r"served at (http://[0-9.:]+)", line)
        async with httpx.AsyncClient(base_url=address.group(1), timeout=60) as client:
            while "data-tiles" not in (await client.get("/")).text:
                await asyncio.sleep(0.2)
            yield client, process.pid
    finally:
        process.terminate()
        await process.communicate()


@asynccontextmanager
async def large_cloud() -> AsyncIterator[LargeCloud]:
    with PrivateRabbitMQ() as rabbitmq, PrivatePostgres() as postgres:
        assert rabbitmq.keeper is not None
        assert postgres.keeper is not None
        async with connected(postgres, "postgres") as administrator:
            await administrator.execute(f"CREATE DATABASE {DATABASE_NAME}")
        url = database_of(postgres, DATABASE_NAME)
        environment = {
            "MOOR_BUS_URL": rabbitmq.url,
            "MOOR_DB_URL": url,
            "MOOR_PLACEMENT_DB_URL": "",
            "MOOR_IRONIC_DB_URL": "",
            "MOOR_CELLS": ",".join(CELLS),
        }
        broker = broker_at(rabbitmq.url)
        counts = {"placement": 1, "scheduler": 1, "conductor": 1}
        async with cloud_in_processes(broker, environment, CELLS, counts, FaultScript()) as workers:
            await _all_hosts_are_up(rabbitmq.url)
            await _boot(environment)
            async with connected(postgres, DATABASE_NAME) as database:
                instance = await _copy_instances(database)
            await _add_nodes(url)
            async with connected(postgres, DATABASE_NAME) as database:
                await database.execute("VACUUM ANALYZE")
            await asyncio.sleep(SETTLED_S)
            yield LargeCloud(
                environment,
                {
                    **_spenders(workers),
                    BROKER: ProcessTree(rabbitmq.keeper),
                    DATABASE: ProcessTree(postgres.keeper),
                },
                instance,
            )


def _spenders(workers: Sequence[WorkerProcess]) -> dict[str, Spender]:
    return {worker.name: OneProcess(worker.pid) for worker in workers}


async def _all_hosts_are_up(url: str) -> None:
    async with station_on(broker_at(url), "benchmark") as (station, running):
        asking = CommandClient(station, running)
        await until_choosable(asking, lambda hosts: len(hosts) >= sum(CELLS.values()))


async def _boot(environment: Mapping[str, str]) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "moor", "boot", "--vcpus", "1", "--count", str(BOOTED), "--name", "web"),
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await process.wait() == 0, "the instances were not booted"


async def _copy_instances(database: "asyncpg.Connection[asyncpg.Record]") -> str:
    """Fill the table of instances; returns the id of one that was really booted."""
    (instance,) = await database.fetchrow("SELECT id FROM requested_instances LIMIT 1")
    columns = [
        row["column_name"]
        for row in await database.fetch(
            "SELECT column_name FROM information_schema.columns WHERE table_name = 'requested_instances'"
        )
    ]
    names = ", ".join(f'"{name}"' for name in columns)
    values = ", ".join(COPIED.get(name, f'"{name}"') for name in columns)
    await database.execute(
        f"INSERT INTO requested_instances ({names}) SELECT {values} FROM requested_instances, "  # noqa: S608 - of constants
        f"generate_series(1, {INSTANCES // BOOTED}) AS copy"
    )
    return str(instance)


async def _add_nodes(url: str) -> None:
    await upgrade(url, "ironic_sync")
    store = SqlIronicStore(url)
    try:
        for start in range(0, NODES, 1_000):
            async with store.transaction() as tx:
                await tx.save([_node_row(start + at) for at in range(1_000)])
    finally:
        await store.close()


def _node_row(number: int) -> NodeRow:
    id_ = ProviderId(UUID(int=number + 1))
    is_free = number % 10 > 0
    node = Node(
        id=id_,
        name=f"rack-{number // 40}-node-{number % 40}",
        provision_state="available" if is_free else "manageable",
        resource_class="gold",
        traits=("CUSTOM_GOLD", "CUSTOM_FAST"),
        driver="redfish",
        properties={"cpus": 64, "memory_mb": 262_144, "local_gb": 2_000},
    )
    reasons = () if is_free else ("provision state is 'manageable': an operator works on the node",)
    offer = Offer(resource_class="CUSTOM_GOLD", reserved=not is_free, traits=node.traits, reasons=reasons)
    return NodeRow(
        id=id_, owner=f"ironic-{number % 3}", cell="c1", epoch=1, node=node, offer=offer, reported=offer
    )
