"""Two placement servers, each with the same cloud on its books in a database of the same PostgreSQL: ours, and OpenStack's.

One at a time: the other is not started while one is measured. Ours can have its books in SQLite, too, where there is no
PostgreSQL.
"""

import itertools
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import asyncpg
from msgspec import Struct

from bus.messages.placement import ReportedProvider, ReportInventory
from bus.sql import upgrade
from placement_worker.store_sql import SqlPlacementStore
from tests.benchmarks.books import PRODUCTION, WORKER, check, closing, connected, database_of, fill
from tests.benchmarks.clouds import Cloud
from tests.benchmarks.cpu import Family, Spender
from tests.benchmarks.incumbent_targets import OURS, THEIRS
from tests.benchmarks.measuring import DATABASE, Settle, at_once
from tests.placement_servers import PlacementServer, openstacks_server, our_server
from tests.servers import PrivatePostgres

SERVER = "server"


class ServiceOptions(Struct, frozen=True):
    """A server with a cloud on its books, and whose CPU time it is; `settle` does what was left to be done later."""

    name: str
    server: PlacementServer
    spenders: Mapping[str, Spender]
    settle: Settle = at_once


class Contender(Protocol):
    def serving(self, cloud: Cloud) -> AbstractAsyncContextManager[ServiceOptions]: ...


class Arena:
    """A PostgreSQL of production's settings, and its databases."""

    def __init__(self, postgres: PrivatePostgres) -> None:
        assert postgres.keeper is not None
        self.postgres = postgres
        self.spender: Spender = Family(postgres.keeper)
        self._numbers = itertools.count(1)

    @asynccontextmanager
    async def database(self) -> AsyncIterator[str]:
        """The name of an empty one."""
        name = f"arena_{next(self._numbers)}"
        await self._administer(f"CREATE DATABASE {name}")
        try:
            yield name
        finally:
            await self._administer(f"DROP DATABASE {name} WITH (FORCE)")

    async def settle(self) -> None:
        """Bring every changed page home, which a server left alone does some minutes later."""
        await self._administer("CHECKPOINT")

    async def _administer(self, statement: str) -> None:
        async with connected(self.postgres, "postgres") as administrator:
            await administrator.execute(statement)


@asynccontextmanager
async def arena() -> AsyncIterator[Arena]:
    with PrivatePostgres(settings=PRODUCTION) as postgres:
        yield Arena(postgres)


class Ours:
    def __init__(self, arena: Arena) -> None:
        self._arena = arena

    @asynccontextmanager
    async def serving(self, cloud: Cloud) -> AsyncIterator[ServiceOptions]:
        async with self._arena.database() as name:
            url = database_of(self._arena.postgres, name)
            await upgrade(url, WORKER)
            async with closing(SqlPlacementStore(url)) as store:
                await fill(store, cloud.reports)
                await _analyze(self._arena, name)
                with our_server(url) as server:
                    yield _serving(OURS, self._arena, server)
                await check(store)


class OursOnSqlite:
    @asynccontextmanager
    async def serving(self, cloud: Cloud) -> AsyncIterator[ServiceOptions]:
        with tempfile.TemporaryDirectory(prefix="moor-") as directory:
            url = f"sqlite:///{Path(directory) / 'books.db'}"
            await upgrade(url, WORKER)
            async with closing(SqlPlacementStore(url)) as store:
                await fill(store, cloud.reports)
                with our_server(url) as server:
                    yield ServiceOptions(OURS, server, {SERVER: Family(server.eldest)})
                await check(store)


class OpenStacks:
    def __init__(self, arena: Arena) -> None:
        self._arena = arena

    @asynccontextmanager
    async def serving(self, cloud: Cloud) -> AsyncIterator[ServiceOptions]:
        async with self._arena.database() as name:
            # It fills in the names of classes and traits when it starts.
            with openstacks_server(database_of(self._arena.postgres, name)) as server:
                async with connected(self._arena.postgres, name) as connection:
                    await _fill_tables(connection, cloud.reports)
                await _analyze(self._arena, name)
                yield _serving(THEIRS, self._arena, server)


def _serving(name: str, arena: Arena, server: PlacementServer) -> ServiceOptions:
    return ServiceOptions(
        name, server, {SERVER: Family(server.eldest), DATABASE: arena.spender}, arena.settle
    )


async def _analyze(arena: Arena, database: str) -> None:
    async with connected(arena.postgres, database) as connection:
        await connection.execute("VACUUM ANALYZE")


# OpenStack's own tables. Its API would take a hundred providers a second at best.


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
