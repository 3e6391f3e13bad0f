"""What is costly to make is kept for a while, so that those who watch it cost little."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

# It is made anew only when it is this many times as old as it took to make, within these limits: to watch a cloud costs a
# scheduler little of its time, and what is seen of a busy one is not old.
KEPT_FOR_TIMES = 200
KEPT_S_MIN, KEPT_S_MAX = 1.0, 10.0
# And for those who ask once: even if all of them ask again and again, a scheduler spends a twentieth of its time on it.
KEPT_FOR_ONE_TIMES = 20


class Kept(Generic[T]):
    """All who ask while it is being made, or is still new, get the same."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._lock = asyncio.Lock()
        self._last: tuple[T] | None = None
        self._began_s = self._ended_s = 0.0

    async def get(self, *, once: bool = False) -> T:
        now_s = asyncio.get_running_loop().time
        async with self._lock:
            if self._last is None or now_s() >= self._kept_until_s(once=once):
                began_s = now_s()
                self._last = (await self._make(),)
                self._began_s, self._ended_s = began_s, now_s()
            return self._last[0]

    def age_s(self) -> float:
        """The time since the last one was begun to be made."""
        return asyncio.get_running_loop().time() - self._began_s

    def _kept_until_s(self, *, once: bool) -> float:
        times = KEPT_FOR_ONE_TIMES if once else KEPT_FOR_TIMES
        took_s = self._ended_s - self._began_s
        return self._ended_s + min(max(KEPT_S_MIN, times * took_s), KEPT_S_MAX)
