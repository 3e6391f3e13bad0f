"""The clock of the running event loop, held by a test: however slow the machine is, no timer fires before the test lets it."""

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

T = TypeVar("T")
# How much time passes in a turn of the loop while the test lets it pass.
TURN_S = 0.001


class HeldTime:
    """Stands still, and only the test moves it. Nobody may sleep or wait for a timer meanwhile."""

    def __init__(self) -> None:
        self._at_s = asyncio.get_running_loop().time()

    def __call__(self) -> float:
        return self._at_s

    async def until(self, what: Awaitable[T]) -> T:
        """Time passes until this is done."""
        task = asyncio.ensure_future(what)
        while not task.done():
            await self._turn()
        return await task

    async def pass_s(self, seconds: float) -> None:
        end_s = self._at_s + seconds
        while self._at_s < end_s:
            await self._turn()

    async def _turn(self) -> None:
        self._at_s += TURN_S
        await asyncio.sleep(0)


@contextmanager
def held_time() -> Iterator[HeldTime]:
    """Hold the clock of a loop of asyncio's own."""
    held = HeldTime()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "time", held)
        yield held
