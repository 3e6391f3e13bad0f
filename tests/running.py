"""What runs until a block of a test ends, and what is closed then: one way for the parts of workers, for stores and for sessions."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from kit.process import Part, run_until


class Closes(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=Closes)


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
