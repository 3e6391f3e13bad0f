"""All stores that a compute can run on, empty, by name; and a second store on the same database, as a later process has it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from compute_sim.handlers import ComputeStore

KEPT = ("sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql))
STORES = ("memory", *KEPT)

Again = Callable[[str], Awaitable[ComputeStore]]


@asynccontextmanager
async def open_compute_store(kind: str, clock_s: Callable[[], float]) -> AsyncIterator[ComputeStore]:
    """A store of cell c1."""
    if kind == "memory":
        yield ComputeStore(clock_s)
        return
    async with open_again(kind, clock_s) as again:
        yield await again("c1")


@asynccontextmanager
async def open_again(kind: str, clock_s: Callable[[], float]) -> AsyncIterator[Again]:
    """A function that opens a store of a cell on one database, as often as needed."""
    # A test that needs only the memory store needs no database drivers.
    from compute_sim.store_sql import SqlComputeStore, open_compute_store  # noqa: PLC0415
    from tests.contracts.sql_stores import migrated_database  # noqa: PLC0415

    stores: list[SqlComputeStore] = []
    async with migrated_database(kind, "compute_sim") as url:

        async def again(cell: str) -> ComputeStore:
            stores.append(await open_compute_store(url, cell, clock_s))
            return stores[-1]

        try:
            yield again
        finally:
            for store in stores:
                await store.close()
