"""Claims without a bus: lock, read, decide, write, commit, by placement's own handler, one batch a transaction."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from bus.messages.placement import ClaimResources
from bus.workers.handlers import Received
from placement_worker.store_sql import PlacementStore
from tools.benchmarks.books import (
    Books,
    PostgresBooks,
    SqliteBooks,
    asked,
    handled,
    handlers_on,
    postgres_books,
)
from tools.benchmarks.cpu import OneProcess
from tools.benchmarks.measuring import Details, Effort, Result, Work, measured
from tools.benchmarks.messages import HOST_IDS, batches_of, claims

# Claims per batch, and how many make a run of a second or so.
BATCHES = {1: 1_000, 50: 8_000, 200: 10_000}
HOSTS_CHOSEN = {"spread over 1,000": HOST_IDS, "on one": HOST_IDS[:1]}


async def claims_section(effort: Effort) -> list[Result]:
    results: list[Result] = []
    async with AsyncExitStack() as stack:
        kinds: list[Books] = [SqliteBooks()]
        if effort.servers:
            kinds.append(await stack.enter_async_context(postgres_books()))
        for books in kinds:
            # The other store has one writer at a time, however many clients ask.
            for connections in (1, 2) if isinstance(books, PostgresBooks) else (1,):
                results += [
                    await _claims(books, connections, hosts, batch, effort)
                    for hosts in effort.some(HOSTS_CHOSEN)
                    for batch in effort.some(BATCHES)
                ]
    return results


async def _claims(books: Books, connections: int, hosts: str, batch: int, effort: Effort) -> Result:
    async with books.opened(connections) as opened:
        return await measured(
            "claims",
            {"store": books.name, "connections": connections, "hosts": hosts, "claims a batch": batch},
            {"python": OneProcess(os.getpid()), **books.spenders},
            operations=effort.operations(BATCHES[batch], batch),
            effort=effort,
            prepare=partial(_claiming, opened.store, connections, hosts, batch),
            settle=books.settle,
        )


def _claiming(store: PlacementStore, connections: int, hosts: str, batch: int, count: int) -> Work:
    orders = claims(count, HOSTS_CHOSEN[hosts])
    batches = [asked(each) for each in batches_of(orders, batch)]
    return partial(_claim, store, connections, batches)


async def _claim(store: PlacementStore, connections: int, batches: list[list[Received[Any]]]) -> Details:
    left = iter(batches)
    async with asyncio.TaskGroup() as claiming:
        for _ in range(connections):
            claiming.create_task(_claim_on(store, left))
    return {}


async def _claim_on(store: PlacementStore, left: Iterator[list[Received[Any]]]) -> None:
    handler = handlers_on(store)[ClaimResources]
    for batch in left:
        await handled(store, handler, batch)
