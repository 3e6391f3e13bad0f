"""The stores of every room on each backend, empty, by name."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from functools import partial
from typing import TypeVar

import pytest

from cell_conductor.store_sql import ConductorStore
from compute_sim.store_sql import POOL_SIZE, SqlComputeStore
from ironic_sync.store_sql import IronicStore
from keeper.store_sql import KeeperStore
from kit.clock import now
from kit.sql import open_database
from placement_worker.store_sql import PlacementStore
from scheduler_worker.store_sql import SchedulerStore
from tests.contracts.sql_stores import migrated_database
from tests.running import Closes, closing
from tests.sqlite_memory import Tables
from tests.stores_in_memory import (
    MemoryConductorStore,
    MemoryIronicStore,
    MemoryKeeperStore,
    MemoryPlacementStore,
    MemorySchedulerStore,
)

STORES = ("sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql))

Again = Callable[[str], Awaitable[SqlComputeStore]]
S = TypeVar("S", bound=Closes)
T = TypeVar("T")


@asynccontextmanager
async def _opened(
    kind: str, room: str, in_memory: Callable[[], Sequence[S]], on_url: Callable[[str], Sequence[S]]
) -> AsyncIterator[tuple[S, ...]]:
    if kind == "memory":
        yield tuple(in_memory())
        return
    async with migrated_database(kind, room) as url, closing(*on_url(url)) as stores:
        yield stores


@asynccontextmanager
async def _one(
    kind: str, room: str, in_memory: Callable[[], S], on_url: Callable[[str], S]
) -> AsyncIterator[S]:
    async with _opened(kind, room, lambda: [in_memory()], lambda url: [on_url(url)]) as (store,):
        yield store


def open_store(kind: str) -> AbstractAsyncContextManager[PlacementStore]:
    return _one(kind, "placement_worker", MemoryPlacementStore, PlacementStore)


def open_scheduler_store(kind: str) -> AbstractAsyncContextManager[SchedulerStore]:
    return _one(kind, "scheduler_worker", MemorySchedulerStore, SchedulerStore)


def open_conductor_store(
    kind: str, cell: str = "c1", clock: Callable[[], datetime] = now
) -> AbstractAsyncContextManager[ConductorStore]:
    of_cell = partial(ConductorStore, cell=cell, clock=clock)
    return _one(kind, "cell_conductor", lambda: MemoryConductorStore(clock, cell), of_cell)


def open_conductor_stores(
    kind: str, cells: Sequence[str], clock: Callable[[], datetime] = now
) -> AbstractAsyncContextManager[tuple[ConductorStore, ...]]:
    """A store for each of these cells, on one database; a cell that is named twice gets two, as for two processes."""

    def in_memory() -> list[MemoryConductorStore]:
        tables = Tables("cell_conductor")
        return [MemoryConductorStore(clock, cell, tables) for cell in cells]

    return _opened(
        kind,
        "cell_conductor",
        in_memory,
        lambda url: [ConductorStore(url, cell, clock=clock) for cell in cells],
    )


def open_keeper_store(kind: str) -> AbstractAsyncContextManager[KeeperStore]:
    return _one(kind, "keeper", MemoryKeeperStore, KeeperStore)


def open_ironic_store(kind: str) -> AbstractAsyncContextManager[IronicStore]:
    return _one(kind, "ironic_sync", MemoryIronicStore, IronicStore)


def open_ironic_stores(kind: str, count: int) -> AbstractAsyncContextManager[tuple[IronicStore, ...]]:
    """Stores of several processes, on one database."""
    return _opened(
        kind,
        "ironic_sync",
        lambda: [MemoryIronicStore()] * count,
        lambda url: [IronicStore(url) for _ in range(count)],
    )


@asynccontextmanager
async def undone(
    transaction: AbstractAsyncContextManager[T], error: type[BaseException] = ZeroDivisionError
) -> AsyncIterator[T]:
    """This transaction fails at the end of the block."""
    with pytest.raises(error):  # noqa: PT012 - what the block does, and the error
        async with transaction as begun:
            yield begun
            raise error


@asynccontextmanager
async def open_again(kind: str, clock_s: Callable[[], float]) -> AsyncIterator[Again]:
    """A function that opens a compute's store of a cell on one database, as often as needed."""
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
