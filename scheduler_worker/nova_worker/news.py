"""Has Nova read again when placement has hosts that Nova was not known to have.

No notification tells that Nova has discovered the cell of a new compute. Until all of Nova is read again, its hosts are not chosen. So
it is read soon, again after growing pauses while some are still missing, and at once before a request is refused.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

from bus.message import ProviderId
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.nova.cloud.port import KnowsNovaCloud

PAUSE_FIRST, PAUSE_MAX = timedelta(seconds=5), timedelta(seconds=300)
# Requests that are refused because of the same missing hosts have Nova read no more often than this.
BEFORE_REFUSALS = timedelta(seconds=10)
READ_WITHIN_S, LOOK_S = 5.0, 0.05


class NovaNews:
    """`read_soon` has all of Nova read; then `knows` has another value."""

    def __init__(
        self,
        picture: Picture,
        knows: KnowsNovaCloud,
        read_soon: Callable[[], None],
        clock: Callable[[], datetime],
    ) -> None:
        self._picture = picture
        self._knows = knows
        self._read_soon = read_soon
        self._clock = clock
        self._missing: frozenset[ProviderId | str] = frozenset()
        self._next_at = self._refusals_at = clock()
        self._pause = PAUSE_FIRST
        self._refusing = asyncio.Lock()

    def look(self) -> None:
        """Have Nova read if hosts are missing, and it is time."""
        if self._is_any_missing() and self._clock() >= self._next_at:
            self._ask()

    async def before_refusal(self, *, is_unknown: bool = False) -> None:
        """If hosts are missing, or the request names one that `is_unknown`, wait until Nova was read, but not for long: the caller
        waits for its refusal. Requests that are refused meanwhile wait for the same reading.
        """
        async with self._refusing:
            # This may change the time from which Nova may be read.
            wants = self._is_any_missing() or is_unknown
            if not wants or (now := self._clock()) < self._refusals_at:
                return
            before = self._knows.cloud
            self._refusals_at = now + BEFORE_REFUSALS
            self._ask()
            for _ in range(int(READ_WITHIN_S / LOOK_S)):
                if self._knows.cloud is not before:
                    return
                await asyncio.sleep(LOOK_S)

    def _is_any_missing(self) -> bool:
        cloud = self._knows.cloud
        unplaced = () if cloud is None else cloud.unplaced
        missing = frozenset[ProviderId | str]((*self._picture.unregistered(), *unplaced))
        if missing != self._missing:
            self._missing, self._pause = missing, PAUSE_FIRST
            self._next_at = self._refusals_at = self._clock()
        return bool(missing)

    def _ask(self) -> None:
        self._next_at = self._clock() + self._pause
        self._pause = min(self._pause * 2, PAUSE_MAX)
        self._read_soon()
