"""Parts of workers run until a block of a test ends; stores and sessions are closed then. `once` does one thing in its own transaction."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, TypeVar

from kit.process import Part, run_until


class Closes(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=Closes)
R = TypeVar("R")
T = TypeVar("T")


@asynccontextmanager
async def running(
    parts: Sequence[Part], *opened: Closes, drain_s_max: float = 10.0, killed: bool = False
) -> AsyncIterator[asyncio.Event]:
    """These parts run until the block ends, or sets the event; then what was opened for them is closed.

    `killed`: in the end nothing that is under way is finished.
    """
    told = asyncio.Event()
    async with closing(*opened):
        if killed:
            async with asyncio.TaskGroup() as tasks:
                started = [tasks.create_task(part.run()) for part in parts]
                yield told
                for each in started:
                    each.cancel()
            return
        task = asyncio.create_task(run_until(told, parts, drain_s_max))
        try:
            yield told
        finally:
            told.set()
            await task


@asynccontextmanager
async def closing(*opened: C) -> AsyncIterator[tuple[C, ...]]:
    try:
        yield opened
    finally:
        for each in opened:
            await each.close()


async def once(
    transaction: Callable[[], AbstractAsyncContextManager[T]], do: Callable[[T], Awaitable[R]]
) -> R:
    """Do this in a transaction of its own, as `kit.sql.write_once` does with a query."""
    async with transaction() as begun:
        return await do(begun)
