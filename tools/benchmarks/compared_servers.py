"""Two placement servers, ours and OpenStack's, each with the same cloud in a database of its own on one PostgreSQL.

Only the measured server runs. Without PostgreSQL ours can run on SQLite.
"""

import itertools
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import asyncpg
from msgspec import Struct

from bus.messages.placement import ReportInventory
from engine.inventories import ReportedProvider
from kit.sql import upgrade
from placement_worker.store_sql import PlacementStore
from tests.placement_servers import PlacementServer, openstacks_server, our_server
from tests.servers import PrivatePostgres
from tools.benchmarks.books import PRODUCTION, WORKER, check, closing, connected, database_of, fill
from tools.benchmarks.clouds import Cloud
from tools.benchmarks.comparison_targets import OURS, THEIRS
from tools.benchmarks.cpu import ProcessTree, Spender
from tools.benchmarks.measuring import DATABASE, Settle, at_once

SERVER = "server"


class MeasuredServer(Struct, frozen=True):
    """A running server with a cloud on its books, and its CPU counters; `settle` does its deferred work."""

    name: str
    server: PlacementServer
    spenders: Mapping[str, Spender]
    settle: Settle = at_once


class Contender(Protocol):
    def serving(self, cloud: Cloud) -> AbstractAsyncContextManager[MeasuredServer]: ...


class PostgresServer:
    """A PostgreSQL with a production server's settings, and its databases."""

    def __init__(self, postgres: PrivatePostgres) -> None:
        assert postgres.keeper is not None
        self.postgres = postgres
        self.spender: Spender = ProcessTree(postgres.keeper)
        self._numbers = itertools.count(1)

    @asynccontextmanager
    async def database(self) -> AsyncIterator[str]:
        """The name of a new, empty database."""
        name = f"arena_{next(self._numbers)}"
        await self._administer(f"CREATE DATABASE {name}")
        try:
            yield name
        finally:
            await self._administer(f"DROP DATABASE {name} WITH (FORCE)")

    async def settle(self) -> None:
        """Write all dirty pages with a checkpoint; by itself the server does that minutes later."""
        await self._administer("CHECKPOINT")

    async def _administer(self, statement: str) -> None:
        async with connected(self.postgres, "postgres") as administrator:
            await administrator.execute(statement)


@asynccontextmanager
async def postgres_server() -> AsyncIterator[PostgresServer]:
    with PrivatePostgres(settings=PRODUCTION) as postgres:
        yield PostgresServer(postgres)


class Ours:
    def __init__(self, postgres_server: PostgresServer) -> None:
        self._postgres_server = postgres_server

    @asynccontextmanager
    async def serving(self, cloud: Cloud) -> AsyncIterator[MeasuredServer]:
        async with self._postgres_server.database() as name:
            url = database_of(self._postgres_server.postgres, name)
            await upgrade(url, WORKER)
            async with closing(PlacementStore(url)) as store:
                await fill(store, cloud.reports)
                await _analyze(self._postgres_server, name)
                with our_server(url) as server:
                    yield _serving(OURS, self._postgres_server, server)
                await check(store)


class OursOnSqlite:
    @asynccontextmanager
    async def serving(self, cloud: Cloud) -> AsyncIterator[MeasuredServer]:
        with tempfile.TemporaryDirectory(prefix="moor-") as directory:
            url = f"sqlite:///{Path(directory) / 'books.db'}"
            await upgrade(url, WORKER)
            async with closing(PlacementStore(url)) as store:
                await fill(store, cloud.reports)
                with our_server(url) as server:
                    yield MeasuredServer(OURS, server, {SERVER: ProcessTree(server.eldest)})
                await check(store)


class OpenStacks:
    def __init__(self, postgres_server: PostgresServer) -> None:
        self._postgres_server = postgres_server

    @asynccontextmanager
    async def serving(self, cloud: Cloud) -> AsyncIterator[MeasuredServer]:
        async with self._postgres_server.database() as name:
            # The server inserts the names of classes and traits when it starts.
            with openstacks_server(database_of(self._postgres_server.postgres, name)) as server:
                async with connected(self._postgres_server.postgres, name) as connection:
                    await _fill_tables(connection, cloud.reports)
                await _analyze(self._postgres_server, name)
                yield _serving(THEIRS, self._postgres_server, server)


def _serving(name: str, postgres_server: PostgresServer, server: PlacementServer) -> MeasuredServer:
    return MeasuredServer(
        name,
        server,
        {SERVER: ProcessTree(server.eldest), DATABASE: postgres_server.spender},
        postgres_server.settle,
    )


async def _analyze(postgres_server: PostgresServer, database: str) -> None:
    async with connected(postgres_server.postgres, database) as connection:
        await connection.execute("VACUUM ANALYZE")


# Write OpenStack's tables directly: its API would take a hundred providers a second at best.


async def _fill_tables(connection: asyncpg.Connection, reports: Sequence[ReportInventory]) -> None:
    providers = [provider for report in reports for provider in report.providers]
    numbers = {provider.id: number for number, provider in enumerate(providers, 1)}
    roots = {provider.id: numbers[report.root] for report in reports for provider in report.providers}
    classes = await _ids(connection, "resource_classes")
    traits = await _ids(connection, "traits")
    await connection.copy_records_to_table(
        "resource_providers",
        columns=("id", "uuid", "name", "generation", "root_provider_id", "parent_provider_id"),
        records=[
            (
                numbers[provider.id],
                str(provider.id),
                provider.name,
                1,
                roots[provider.id],
                None if provider.parent is None else numbers[provider.parent],
            )
            for provider in providers
        ],
    )
    await connection.execute(
        "SELECT setval(pg_get_serial_sequence('resource_providers', 'id'), $1)", len(providers)
    )
    await connection.copy_records_to_table(
        "inventories",
        columns=(
            *("resource_provider_id", "resource_class_id", "total", "reserved"),
            *("min_unit", "max_unit", "step_size", "allocation_ratio"),
        ),
        records=[
            row for provider in providers for row in _inventories(provider, numbers[provider.id], classes)
        ],
    )
    await connection.copy_records_to_table(
        "resource_provider_traits",
        columns=("resource_provider_id", "trait_id"),
        records=[
            (numbers[provider.id], traits[trait]) for provider in providers for trait in provider.traits or ()
        ],
    )


def _inventories(
    provider: ReportedProvider, number: int, classes: Mapping[str, int]
) -> Iterator[tuple[Any, ...]]:
    for name, each in (provider.inventories or {}).items():
        yield (
            *(number, classes[name], each.total, each.reserved),
            *(each.min_unit, each.max_unit, each.step_size, each.allocation_ratio),
        )


async def _ids(connection: asyncpg.Connection, table: str) -> Mapping[str, int]:
    rows = await connection.fetch(f"SELECT name, id FROM {table}")  # noqa: S608 - the names of two tables
    return {row["name"]: row["id"] for row in rows}
