"""Run searches that may take long, in turns with all other tasks of the process.

Most searches take a millisecond and run at once. A longer one starts again in a greenlet, which returns control to the
loop every few milliseconds, from any depth of the search. It sees one state of the providers from its start to the end of
its answer: writes during that time go into a copy.

A few long searches run at a time, each within its budget of steps and memory. Some more wait, and use no memory; all others
are refused: the caller may try again later.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from greenlet import getcurrent, greenlet

from bus.errors import Unavailable
from bus.messages.candidates import TooCostly
from placement_worker.core.candidates.budget import DEFAULT_LIMITS, Budget, CutError, SearchLimits
from placement_worker.core.candidates.provider_index import ProviderIndex
from placement_worker.replica import ProviderReplica

# About 25 ms: an answer of ten thousand candidates takes half as many steps.
STEPS_AT_ONCE = 100_000
# About 2 ms. A claim waits for about ten turns of the loop.
STEPS_PER_TURN = 10_000
TAKING_TURNS_MAX = 2
WAITING_MAX = 64

Done = TypeVar("Done")
# Searches and writes the answer. It must not change anything that another search reads.
Search = Callable[[ProviderIndex, Budget], Done]


class _TakesLongError(Exception):
    """Ends a search that needs more than `STEPS_AT_ONCE` steps without a pause. It is then begun anew, with pauses in
    which other tasks run.
    """


class Searcher:
    """Runs searches so that long ones let other tasks of the process run in between. `turns` counts how often that happened."""

    def __init__(self, limits: SearchLimits = DEFAULT_LIMITS, waiting_max: int = WAITING_MAX) -> None:
        self._limits = limits
        self._waiting_max = waiting_max
        self._at_once = asyncio.Semaphore(1)
        self._taking_turns = asyncio.Semaphore(TAKING_TURNS_MAX)
        self._waiting = 0
        self.turns = 0

    async def done(self, replica: ProviderReplica, search: Search[Done]) -> Done | TooCostly:
        """Run the search and return its result. It sees the providers of now, or if it has to wait, those of the time when it
        runs.

        Raises Unavailable if too many searches wait already.
        """
        try:
            try:
                return await self._short(replica, search)
            except _TakesLongError:
                return await self._later(replica, search)
        except CutError as cut:
            return cut.verdict

    async def _short(self, replica: ProviderReplica, search: Search[Done]) -> Done:
        """Try the search without a pause. Of many that take long to try, one runs in each iteration of the event loop."""
        async with self._at_once:
            budget = Budget(self._limits, _take_long, STEPS_AT_ONCE)
            try:
                return search(replica.index, budget)
            finally:
                if budget.steps > STEPS_PER_TURN:
                    await asyncio.sleep(0)

    async def _later(self, replica: ProviderReplica, search: Search[Done]) -> Done:
        if self._waiting >= self._waiting_max:
            raise Unavailable(
                f"{TAKING_TURNS_MAX} long searches are running, and {self._waiting} wait for them"
            )
        self._waiting += 1
        try:
            await self._taking_turns.acquire()
        finally:
            self._waiting -= 1
        try:
            with replica.reading() as index:
                return await self._in_turns(index, search)
        finally:
            self._taking_turns.release()

    async def _in_turns(self, index: ProviderIndex, search: Search[Done]) -> Done:
        budget = Budget(self._limits, getcurrent().switch, STEPS_PER_TURN)
        under_way = greenlet(search)
        try:
            done: Done = under_way.switch(index, budget)
            while not under_way.dead:
                self.turns += 1
                await asyncio.sleep(0)
                done = under_way.switch()
            return done
        finally:
            # If the caller has given up, this closes the search's generators where they are.
            under_way.throw()


def _take_long() -> None:
    raise _TakesLongError
