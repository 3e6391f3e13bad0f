"""All stores that a conductor can run on, empty, by name."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime

import pytest

from cell_conductor.store_sql import ConductorStore
from kit.times import now
from tests.contracts.sql_stores import migrated_database
from tests.sqlite_memory import Tables
from tests.stores_in_memory import MemoryConductorStore

STORES = ("sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql))


@asynccontextmanager
async def open_conductor_store(
    kind: str, cell: str = "c1", clock: Callable[[], datetime] = now
) -> AsyncIterator[ConductorStore]:
    async with open_conductor_stores(kind, (cell,), clock) as stores:
        yield stores[0]


@asynccontextmanager
async def open_conductor_stores(
    kind: str, cells: tuple[str, ...], clock: Callable[[], datetime] = now
) -> AsyncIterator[tuple[ConductorStore, ...]]:
    """A store for each of these cells, on one database; a cell that is named twice gets two, as for two processes."""
    if kind == "memory":
        tables = Tables("cell_conductor")
        yield tuple(MemoryConductorStore(clock, cell, tables) for cell in cells)
        return

    async with migrated_database(kind, "cell_conductor") as url:
        stores = tuple(ConductorStore(url, cell, clock=clock) for cell in cells)
        try:
            yield stores
        finally:
            for store in stores:
                await store.close()
