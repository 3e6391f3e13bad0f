"""A clock that a jump of the wall clock does not advance. The daemon measures with it for how long nodes are missing."""

from collections.abc import Callable

from bus.moments import SECOND_US

# A wall clock that is set right by less than this has not jumped.
JUMP_US = SECOND_US


class SteadyClock:
    """The wall clock, but when that jumps ahead, this clock does not follow. It follows a jump back.

    Times on rows are written by the wall clock and compared with this one. So after a jump ahead nothing that was
    written before it seems older than it is. When there was no jump for `forgets_s`, this clock shows the wall
    clock's time again.
    """

    def __init__(
        self, clock_us: Callable[[], int], clock_s: Callable[[], float], *, forgets_s: float
    ) -> None:
        self._clock_us = clock_us
        self._clock_s = clock_s
        self._forgets_s = forgets_s
        self._at_us, self._at_s = clock_us(), clock_s()
        self._behind_us = 0
        self._jumped_at_s = self._at_s

    def __call__(self) -> int:
        wall_us, at_s = self._clock_us(), self._clock_s()
        ahead_us = wall_us - self._behind_us - self._at_us - round((at_s - self._at_s) * SECOND_US)
        if abs(ahead_us) > JUMP_US:
            self._jumped_at_s = at_s
            self._behind_us = max(self._behind_us + ahead_us, 0)
        elif at_s - self._jumped_at_s >= self._forgets_s:
            self._behind_us = 0
        self._at_us, self._at_s = wall_us - self._behind_us, at_s
        return self._at_us
