"""Two placement servers, ours and OpenStack's, each with the same cloud in a database of its own on one PostgreSQL.

Only the measured server runs. Without PostgreSQL ours can run on SQLite.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from msgspec import Struct

from bus.messages.placement import ReportInventory
from engine.inventories import ReportedProvider
from tests.placement_servers import PlacementServer, openstacks_server, our_server
from tools.benchmarks.books import PostgresServer, analyze, connected, filled, new_database
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


@asynccontextmanager
async def ours(cloud: Cloud, postgres: PostgresServer | None = None) -> AsyncIterator[MeasuredServer]:
    async with new_database(postgres) as url, filled(url, cloud.reports):
        with our_server(url) as server:
            yield _serving(OURS, postgres, server)


@asynccontextmanager
async def openstacks(cloud: Cloud, postgres: PostgresServer) -> AsyncIterator[MeasuredServer]:
    async with postgres.database() as url:
        # The server inserts the names of classes and traits when it starts.
        with openstacks_server(url) as server:
            async with connected(url) as connection:
                await _fill_tables(connection, cloud.reports)
            await analyze(url)
            yield _serving(THEIRS, postgres, server)


def _serving(name: str, postgres: PostgresServer | None, server: PlacementServer) -> MeasuredServer:
    spenders: dict[str, Spender] = {SERVER: ProcessTree(server.eldest)}
    if postgres is None:
        return MeasuredServer(name, server, spenders)
    return MeasuredServer(name, server, {**spenders, DATABASE: postgres.spender}, postgres.settle)


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
