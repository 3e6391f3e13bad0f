"""Measures the longest callback of the event loop in CPU time; no other task can run beside it."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

# The CPU time of the yardstick on the machine for which the limits of turns are written.
YARDSTICK_S = 0.012
_YARDSTICK = range(200_000)
# A turn that is long because of the work is long each time; because of the machine, hardly three times.
TRIES = 3


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


async def check_turns(what: str, limit_s: float, work: Callable[[], Awaitable[None]]) -> None:
    """The work is done again if a turn was too long, and fails if one is too long each time."""
    too_long: list[str] = []
    while len(too_long) < TRIES:
        with turns_measured() as turns:
            await work()
        slow = slowness()
        if turns.longest_s < limit_s * slow:
            return
        too_long.append(f"{turns.longest_s:.3f} s, machine slower by {slow:.2f}, in {turns.longest}")
    raise AssertionError((what, limit_s, too_long))


@contextmanager
def turns_measured() -> Iterator[Turns]:
    """Measures all of asyncio's own loops; uvloop's callbacks are not seen.

    From then on the collector does not look at what was there before, such as the objects of a thousand other tests.
    """
    gc.collect()
    gc.freeze()
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
