"""The stores of a compute that survive it, empty, by name."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from compute_sim.store_sql import POOL_SIZE, SqlComputeStore
from kit.sql import open_database
from tests.contracts.sql_stores import migrated_database

STORES = ("sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql))

Again = Callable[[str], Awaitable[SqlComputeStore]]


@asynccontextmanager
async def open_again(kind: str, clock_s: Callable[[], float]) -> AsyncIterator[Again]:
    """A function that opens a store of a cell on one database, as often as needed."""
    stores: list[SqlComputeStore] = []
    async with migrated_database(kind, "compute_sim") as url:

        async def again(cell: str) -> SqlComputeStore:
            stores.append(SqlComputeStore(open_database(url, pool_size=POOL_SIZE), cell, clock_s))
            await stores[-1].read()
            return stores[-1]

        try:
            yield again
        finally:
            for store in stores:
                await store.close()
