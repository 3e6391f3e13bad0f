"""Measures the longest callback of the event loop in CPU time; no other task can run beside it."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

# The CPU time of the yardstick on the machine for which the limits of turns are written.
YARDSTICK_S = 0.012
_YARDSTICK = range(200_000)


def slowness() -> float:
    """How many times slower than that machine this one is now, and at least 1: limits of CPU time are multiplied by it."""
    began_s = time.thread_time()
    sum(number * number % 7 for number in _YARDSTICK)
    return max(1.0, (time.thread_time() - began_s) / YARDSTICK_S)


class Turns:
    """`longest_s` is the CPU time of this thread alone, so a busy machine hardly changes it."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.longest = ""


@contextmanager
def turns_measured() -> Iterator[Turns]:
    """Measures all of asyncio's own loops; uvloop's callbacks are not seen."""
    turns = Turns()
    run = asyncio.Handle._run  # noqa: SLF001 - there is no other place to look from

    def measured(handle: asyncio.Handle) -> None:
        began_s = time.thread_time()
        run(handle)
        took_s = time.thread_time() - began_s
        if took_s > turns.longest_s:
            turns.longest_s, turns.longest = took_s, str(handle)[:200]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", measured)
        yield turns
