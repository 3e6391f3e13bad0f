"""All stores that the bare-metal daemons can run on, empty, by name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ironic_sync.store_sql import IronicStore
from tests.contracts.sql_stores import migrated_database
from tests.stores_in_memory import MemoryIronicStore

STORES = ("sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql))


@asynccontextmanager
async def open_ironic_store(kind: str) -> AsyncIterator[IronicStore]:
    async with open_ironic_stores(kind, 1) as (store,):
        yield store


@asynccontextmanager
async def open_ironic_stores(kind: str, count: int) -> AsyncIterator[tuple[IronicStore, ...]]:
    """Stores of several processes, on one database."""
    if kind == "memory":
        yield (MemoryIronicStore(),) * count
        return

    async with migrated_database(kind, "ironic_sync") as url:
        stores = tuple(IronicStore(url) for _ in range(count))
        try:
            yield stores
        finally:
            for store in stores:
                await store.close()
