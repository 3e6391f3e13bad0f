"""Searches that may take long, in turns with everything else that the process does.

Most searches take a millisecond, and are done at once. One that does not is begun anew in a greenlet, which hands the
thread back to the loop every few milliseconds, from however deep in the search it is. It sees one state of the providers
from its start to the end of its answer: what is written meanwhile is written into a copy.

A few take turns at a time, and hold what a budget allows; some wait, and hold nothing; and more are asked to try again
later.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from greenlet import getcurrent, greenlet

from bus.errors import Unavailable
from bus.messages.candidates import TooCostly
from placement_worker.core.candidates.budget import DEFAULT_LIMITS, Budget, CutError, SearchLimits
from placement_worker.core.candidates.woods import Woods
from placement_worker.replica import Replica

# Some 25 ms: an answer of ten thousand candidates takes half as many.
STEPS_AT_ONCE = 100_000
# About 2 ms. A claim waits for some ten turns of the loop.
STEPS_PER_TURN = 10_000
TAKING_TURNS_MAX = 2
WAITING_MAX = 64

Done = TypeVar("Done")
# Searches, and writes the answer. It must not change anything that another one reads.
Search = Callable[[Woods, Budget], Done]


class _TakesLongError(Exception):
    """It is not done at once."""


class Searcher:
    """`turns` counts how often a long search let others run."""

    def __init__(self, limits: SearchLimits = DEFAULT_LIMITS, waiting_max: int = WAITING_MAX) -> None:
        self._limits = limits
        self._waiting_max = waiting_max
        self._taking_turns = asyncio.Semaphore(TAKING_TURNS_MAX)
        self._waiting = 0
        self.turns = 0

    async def done(self, replica: Replica, search: Search[Done]) -> Done | TooCostly:
        """What the search makes of the providers as they are now, or after it has waited for others. Raises Unavailable
        when too many wait.
        """
        try:
            try:
                return search(replica.woods, Budget(self._limits, _take_long, STEPS_AT_ONCE))
            except _TakesLongError:
                return await self._later(replica, search)
        except CutError as cut:
            return cut.verdict

    async def _later(self, replica: Replica, search: Search[Done]) -> Done:
        if self._waiting >= self._waiting_max:
            raise Unavailable(
                f"{TAKING_TURNS_MAX} long searches are under way, and {self._waiting} wait for them"
            )
        self._waiting += 1
        try:
            await self._taking_turns.acquire()
        finally:
            self._waiting -= 1
        try:
            with replica.reading() as woods:
                return await self._in_turns(woods, search)
        finally:
            self._taking_turns.release()

    async def _in_turns(self, woods: Woods, search: Search[Done]) -> Done:
        budget = Budget(self._limits, getcurrent().switch, STEPS_PER_TURN)
        under_way = greenlet(search)
        try:
            done: Done = under_way.switch(woods, budget)
            while not under_way.dead:
                self.turns += 1
                await asyncio.sleep(0)
                done = under_way.switch()
            return done
        finally:
            # Nobody waits for it any more: its generators are closed where they stand.
            under_way.throw()


def _take_long() -> None:
    raise _TakesLongError
