"""All stores that a scheduler can run on, empty, by name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from scheduler_worker.store_sql import SchedulerStore
from tests.contracts.sql_stores import migrated_database
from tests.stores_in_memory import MemorySchedulerStore

STORES = ("sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql))


@asynccontextmanager
async def open_scheduler_store(kind: str) -> AsyncIterator[SchedulerStore]:
    if kind == "memory":
        yield MemorySchedulerStore()
        return

    async with migrated_database(kind, "scheduler_worker") as url:
        store = SchedulerStore(url)
        try:
            yield store
        finally:
            await store.close()
