"""Run searches that may take long, in turns with all other tasks of the process.

Most searches take a millisecond and run at once. A longer one starts again in a greenlet, which returns control to the
loop every few milliseconds, from any depth of the search. It sees one state of the providers from its start to the end of
its answer: writes during that time go into a copy.

Searches take turns by user, the short ones and the long ones. A few long searches run at a time, each within its budget of
memory. Some more wait, and use no memory; all others are refused: the caller may try again later.

Each user also has an allowance of CPU time for long searches, which fills again with time. A user that has spent it is
refused until then, and nobody else is. As it counts during a search, it is also the most that one search may take. A process
counts what it has done itself: with several workers a user has one allowance at each.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from greenlet import getcurrent, greenlet

from bus.errors import Unavailable
from bus.messages.candidates import TooCostly
from placement_worker.core.candidates.budget import (
    ALLOWANCE_PER_S,
    ALLOWANCE_S_MAX,
    DEFAULT_LIMITS,
    Budget,
    CutError,
    SearchLimits,
)
from placement_worker.core.candidates.provider_index import ProviderIndex
from placement_worker.fair_turns import FairTurns
from placement_worker.replica import ProviderReplica

# About 25 ms: an answer of ten thousand candidates takes half as many steps.
STEPS_AT_ONCE = 100_000
# About 2 ms. A claim waits for about ten turns of the loop.
STEPS_PER_TURN = 10_000
TAKING_TURNS_MAX = 2
WAITING_MAX = 64
# How many of these may be one user's.
WAITING_OF_USER_MAX = 16

Done = TypeVar("Done")
# Searches and writes the answer. It must not change anything that another search reads.
Search = Callable[[ProviderIndex, Budget], Done]


class _TakesLongError(Exception):
    """Ends a search that needs more than `STEPS_AT_ONCE` steps without a pause. It is then begun anew, with pauses in
    which other tasks run.
    """


class Allowances:
    """The CPU time that each user may still spend on long searches. Users that have all of theirs are forgotten."""

    def __init__(self, clock: Callable[[], float], steps_max: int) -> None:
        self._clock = clock
        self._steps_max = steps_max
        # By user: how much was spent, and when that was true. The user that has spent last is the last.
        self._spent: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._spent)

    def spend(self, user: str, spent_s: float) -> None:
        before, now = self._now(user)
        self._spent.pop(user, None)
        self._spent[user] = (before + spent_s, now)
        # One that is found here was put in by an earlier call, so this costs no call more than one look.
        while (first := next(iter(self._spent))) != user and not self._now(first)[0]:
            del self._spent[first]

    def refusal(self, user: str, steps: int) -> TooCostly | None:
        """Why this user may not begin a long search now, or go on after so many steps of one; None if it may."""
        spent_s, _ = self._now(user)
        if spent_s < ALLOWANCE_S_MAX:
            return None
        # Readers that do not know the last two read the others, and learn that it was too costly.
        return TooCostly(
            what="steps",
            spent=steps,
            budget=self._steps_max,
            user_ms=round(1000 * spent_s),
            user_ms_max=round(1000 * ALLOWANCE_S_MAX),
        )

    def _now(self, user: str) -> tuple[float, float]:
        now = self._clock()
        spent_s, then = self._spent.get(user, (0.0, now))
        return max(0.0, spent_s - ALLOWANCE_PER_S * (now - then)), now


class Searcher:
    """Runs searches so that long ones let other tasks of the process run in between. `turns` counts how often that
    happened. `cpu_s` tells the CPU time of this thread, and `clock` a time that always grows.
    """

    def __init__(
        self,
        limits: SearchLimits = DEFAULT_LIMITS,
        waiting_max: int = WAITING_MAX,
        *,
        cpu_s: Callable[[], float] = time.thread_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._waiting_max = waiting_max
        self._cpu_s = cpu_s
        self._allowances = Allowances(clock, limits.steps_max)
        self._at_once = FairTurns(1)
        self._taking_turns = FairTurns(TAKING_TURNS_MAX)
        self.turns = 0

    async def done(self, replica: ProviderReplica, search: Search[Done], user: str = "") -> Done | TooCostly:
        """Run the search of this user and return its result. It sees the providers of now, or if it has to wait, those of
        the time when it runs.

        Raises Unavailable if too many searches wait already.
        """
        try:
            try:
                return await self._short(replica, search, user)
            except _TakesLongError:
                return await self._later(replica, search, user)
        except CutError as cut:
            return cut.verdict

    async def _short(self, replica: ProviderReplica, search: Search[Done], user: str) -> Done:
        """Try the search without a pause. Of many that take long to try, one runs in each iteration of the event loop."""
        await self._at_once.acquire(user)
        try:
            is_spent = self._allowances.refusal(user, 0) is not None
            # A user that is refused after this may not keep the process busy with tries.
            budget = Budget(self._limits, _take_long, STEPS_PER_TURN if is_spent else STEPS_AT_ONCE)
            began_s = self._cpu_s()
            try:
                return search(replica.index, budget)
            except _TakesLongError:
                # Clients that ask again at once get their time back like others.
                if not is_spent:
                    self._allowances.spend(user, self._cpu_s() - began_s)
                raise
            finally:
                if budget.steps > STEPS_PER_TURN:
                    await asyncio.sleep(0)
        finally:
            self._at_once.release()

    async def _later(self, replica: ProviderReplica, search: Search[Done], user: str) -> Done:
        self._check_allowance(user, 0)
        if self._taking_turns.waiting >= self._waiting_max:
            raise Unavailable(
                f"{TAKING_TURNS_MAX} long searches are running, and {self._taking_turns.waiting} wait for them"
            )
        if (waiting := self._taking_turns.waiting_of(user)) >= WAITING_OF_USER_MAX:
            raise Unavailable(f"{waiting} long searches of user {user!r} wait already")
        await self._taking_turns.acquire(user)
        try:
            # Others of this user may have run meanwhile.
            self._check_allowance(user, 0)
            with replica.reading() as index:
                return await self._in_turns(index, search, user)
        finally:
            self._taking_turns.release()

    async def _in_turns(self, index: ProviderIndex, search: Search[Done], user: str) -> Done:
        budget = Budget(self._limits, getcurrent().switch, STEPS_PER_TURN)
        under_way = greenlet(search)

        def turn(*arguments: object) -> Done:
            """One turn. Its CPU time counts even if it ends the search."""
            began_s = self._cpu_s()
            try:
                done: Done = under_way.switch(*arguments)
                return done
            finally:
                self._allowances.spend(user, self._cpu_s() - began_s)

        try:
            done = turn(index, budget)
            while not under_way.dead:
                self._check_allowance(user, budget.steps)
                self.turns += 1
                await asyncio.sleep(0)
                done = turn()
            return done
        finally:
            # If the caller has given up, this closes the search's generators where they are.
            under_way.throw()

    def _check_allowance(self, user: str, steps: int) -> None:
        if refused := self._allowances.refusal(user, steps):
            raise CutError(refused)


def _take_long() -> None:
    raise _TakesLongError
