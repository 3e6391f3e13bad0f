"""Claims over the bus: asked, transported, decided, written, answered, and published to the pictures.

The client asks and listens as a scheduler does: a claim is done when it is granted and the feed has brought it.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from functools import partial

from bus.messages.placement import ProvidersChanged
from bus.topology import EVENTS, Grant
from bus.workers.connections import Station, listen
from tools.benchmarks.books import Books, OpenedBooks, SqliteBooks, postgres_books
from tools.benchmarks.brokers import Bus, memory_bus, rabbitmq_bus
from tools.benchmarks.cpu import OneProcess, Spender
from tools.benchmarks.measuring import GENERATOR, Details, Effort, Result, Work, measured
from tools.benchmarks.remote_role import remote_role
from tools.benchmarks.roles import Handled, asker, placement
from tools.benchmarks.section_bus import ASKS_IN_FLIGHT, asking

# Claims per call, and how many make a run of a second or two.
CALLS = {1: 1_500, 50: 10_000, 200: 12_000}
PATIENCE_S = 60.0


async def ask_section(effort: Effort) -> list[Result]:
    results: list[Result] = []
    async with AsyncExitStack() as stack:
        memory = await stack.enter_async_context(memory_bus())
        results += await _claims(memory, SqliteBooks(), 1, effort)
        if effort.servers:
            postgres = await stack.enter_async_context(postgres_books())
            rabbitmq = await stack.enter_async_context(rabbitmq_bus())
            for processes in (1, 2):
                results += await _claims(rabbitmq, postgres, processes, effort)
    return results


async def _claims(bus: Bus, books: Books, processes: int, effort: Effort) -> list[Result]:
    results = []
    for batch, usual in effort.some(CALLS).items():
        what: dict[str, str | int] = {
            "broker": bus.name,
            "store": books.name,
            "processes": processes,
            "claims a call": batch,
        }
        async with (
            books.opened() as opened,
            _placement(bus, opened, processes) as ours,
            asker(bus.broker) as client,
            _hearing(client) as heard,
        ):
            results.append(
                await measured(
                    "claims over the bus",
                    what,
                    {**ours, **bus.spenders, **books.spenders},
                    operations=effort.operations(usual, batch),
                    effort=effort,
                    prepare=partial(heard.prepare, client, batch),
                    settle=books.settle,
                )
            )
    return results


class _Heard:
    """Counts the claims in the feed, which must be all that were sent."""

    def __init__(self) -> None:
        self.claims = Handled()
        self._asked = 0

    def prepare(self, client: Station, batch: int, count: int) -> Work:
        return partial(self._ask, asking(client, batch, ASKS_IN_FLIGHT, count), count)

    async def _ask(self, ask: Work, count: int) -> Details:
        self._asked += count
        details = await ask()
        async with asyncio.timeout(PATIENCE_S):
            await self.claims.until(self._asked)
        return details


@asynccontextmanager
async def _hearing(client: Station) -> AsyncIterator[_Heard]:
    heard = _Heard()
    queue_stands = asyncio.Event()

    async def hear() -> None:
        grants = (Grant(EVENTS, ("providers.changed",)),)
        async with aclosing(listen(client, grants)) as feed:
            async for batch in feed:
                queue_stands.set()
                for each in batch:
                    assert isinstance(each.message, ProvidersChanged)
                    heard.claims.add(len(each.message.claimed))

    hearing = asyncio.create_task(hear())
    try:
        await queue_stands.wait()
        yield heard
    finally:
        hearing.cancel()
        with suppress(asyncio.CancelledError):
            await hearing


@asynccontextmanager
async def _placement(bus: Bus, opened: OpenedBooks, processes: int) -> AsyncIterator[Mapping[str, Spender]]:
    """A placement worker in this process or in one of its own, and our processes by kind."""
    here = OneProcess(os.getpid())
    if processes == 1:
        async with placement(bus.broker, opened.store):
            yield {"client and placement": here}
    else:
        async with remote_role("placement", bus.url, opened.url) as other:
            yield {GENERATOR: here, "placement": other.spender}
