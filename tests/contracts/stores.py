"""All stores that placement can run on, empty, by name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from placement_worker.store_sql import PlacementStore
from tests.contracts.sql_stores import open_sql_store
from tests.stores_in_memory import MemoryPlacementStore

STORES = ("sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql))


@asynccontextmanager
async def open_store(kind: str) -> AsyncIterator[PlacementStore]:
    if kind == "memory":
        yield MemoryPlacementStore()
        return

    async with open_sql_store(kind) as store:
        yield store
