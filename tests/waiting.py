"""How tests wait, and the clocks that they move."""

import asyncio
import inspect
import os
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

PATIENCE_S = 100.0
# Less patience, in seconds, where the product is changed to see which tests fail: many wait then for what never comes true.
PATIENCE = "MOOR_TEST_PATIENCE_S"
# Between two looks: three times as long as a look took, so that those who wait leave the processors to those for whom they wait.
PAUSE_S_MIN, PAUSE_S_MAX = 0.005, 0.5

T = TypeVar("T")


def has_ended(pid: int) -> bool:
    """A zombie has, too, though nobody has asked for its end yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


class NeverTrueError(AssertionError):
    """What was waited for has not come true in time."""

    def __init__(self, what: object, answer: object) -> None:
        super().__init__(f"never came true: {what}; instead: {answer!s:.4000}")


@overload
async def until(
    ask: Callable[[], Awaitable[T | None]],
    what: object = "",
    holds: Callable[[T], object] = bool,
    *,
    within_s: float = PATIENCE_S,
) -> T: ...


@overload
async def until(
    ask: Callable[[], T | None],
    what: object = "",
    holds: Callable[[T], object] = bool,
    *,
    within_s: float = PATIENCE_S,
) -> T: ...


async def until(
    ask: Callable[[], Any],
    what: object = "",
    holds: Callable[[Any], object] = bool,
    *,
    within_s: float = PATIENCE_S,
) -> Any:
    """The first answer that holds, however slow the machine is. None never holds."""
    answer = None
    try:
        async with asyncio.timeout(at_most(within_s)):
            while True:
                began_s = time.monotonic()
                asked = ask()
                answer = await asked if inspect.isawaitable(asked) else asked
                if answer is not None and holds(answer):
                    return answer
                await asyncio.sleep(_pause_s(time.monotonic() - began_s))
    except TimeoutError:
        raise NeverTrueError(what or ask, answer) from None


def wait_for(
    ask: Callable[[], T | None],
    what: object = "",
    holds: Callable[[T], object] = bool,
    *,
    within_s: float = PATIENCE_S,
) -> T:
    """As `until`, in a test without an event loop."""
    by_s = time.monotonic() + at_most(within_s)
    while True:
        began_s = time.monotonic()
        answer = ask()
        if answer is not None and holds(answer):
            return answer
        if began_s > by_s:
            raise NeverTrueError(what or ask, answer)
        time.sleep(_pause_s(time.monotonic() - began_s))


def _pause_s(look_s: float) -> float:
    return max(PAUSE_S_MIN, min(PAUSE_S_MAX, 3 * look_s))


def at_most(within_s: float) -> float:
    return min(within_s, float(os.environ.get(PATIENCE, within_s)))


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
