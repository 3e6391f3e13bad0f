"""How tests wait, and the clocks that they move."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

PATIENCE_S = 100.0
LOOK_S_MIN = 0.005

T = TypeVar("T")


async def until(is_so: Callable[[], bool | Awaitable[bool]], what: object = "", seen: object = "") -> None:
    """Wait until it is so, however slow the machine is: between two looks as long as a look took. `seen` is told if it never is."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                began_s = time.monotonic()
                answer = is_so()
                if await answer if inspect.isawaitable(answer) else answer:
                    return
                await asyncio.sleep(max(LOOK_S_MIN, time.monotonic() - began_s))
    except TimeoutError:
        raise AssertionError(f"never came true: {what or is_so}; instead: {seen}") from None


def wait_for(is_so: Callable[[], bool], what: object = "") -> None:
    """Wait until it is so, in a test without an event loop."""
    by_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < by_s, f"never came true: {what or is_so}"
        time.sleep(LOOK_S_MIN)


class Clock(Generic[T]):
    """Stands still until a test moves it."""

    def __init__(self, now: T) -> None:
        self.now = now

    def __call__(self) -> T:
        return self.now

    def pass_s(self, seconds: float) -> None:
        now: Any = self.now
        self.now = now + (timedelta(seconds=seconds) if isinstance(now, datetime) else seconds)


class MovedClock:
    """The clock of all, and ahead of it by as much as a test says."""

    def __init__(self) -> None:
        self._ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self._ahead

    def pass_s(self, seconds: float) -> None:
        self._ahead += timedelta(seconds=seconds)
