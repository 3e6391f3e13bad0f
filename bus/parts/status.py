"""The state and counters of a part, and what happens after a failure.

After an operational failure (bus/errors.py), such as a server that is down, the work is tried again with growing
pauses. Any other exception is a bug, and is raised.
"""

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable
from enum import Enum

from bus.errors import AccessRefused, NotFound, Operational
from bus.pauses import Pauses

log = logging.getLogger(__name__)

_IDS_AND_NUMBERS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+")

Work = Callable[[], Awaitable[object]]


class PartState(Enum):
    STARTING = "starting"
    WELL = "well"
    FAILING = "failing"
    ENDED = "ended"


class Status:
    """The name, state and counters of one part, for health and metrics."""

    def __init__(
        self,
        name: str,
        *,
        is_needed: bool = False,
        is_beside: bool = False,
        pauses: Pauses | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self.name = name
        # A worker is ready only when all its needed parts are well, and no part fails. A part
        # beside these, such as the connection to one of several cells, keeps it from nothing: it serves all other cells.
        self.is_needed = is_needed
        self.is_beside = is_beside
        self.state = PartState.STARTING
        self.runs = 0
        self.failures = 0
        self.last_error = ""
        # When the state began, by the event loop's clock.
        self.since_s = 0.0
        self._pauses = pauses or Pauses()
        # The default seed is the part's name: it differs between processes, and a simulation can replay it.
        self._chance = chance or random.Random(name)
        self._in_a_row = 0
        self._told = ""

    @property
    def awaits(self) -> str:
        """Why this part keeps the worker from being ready; empty if it does not."""
        if self.is_beside:
            return ""
        if self.state is PartState.FAILING:
            return self.last_error
        return "not yet" if self.is_needed and self.state is PartState.STARTING else ""

    async def tried(self, work: Work) -> float | None:
        """Run the work once, and record the outcome. Returns None if it succeeded, else the pause before the next try."""
        self.runs += 1
        try:
            await work()
        except Exception as error:
            if (problem := operational(error)) is None:
                raise
            return self.failed(problem)
        return None

    async def until_done(self, work: Work) -> None:
        """Run the work until it has succeeded once, with growing pauses after failures."""
        while (pause_s := await self.tried(work)) is not None:  # noqa: ASYNC110 - only a try can tell
            await asyncio.sleep(pause_s)
        self.well()

    def well(self) -> None:
        """Report that the part works; may be called any number of times."""
        if self._told:
            log.info("part %r works again; it has failed %d times so far", self.name, self.failures)
            self._in_a_row, self._told = 0, ""
        if self.state is not PartState.WELL:
            self._enter(PartState.WELL)

    def failed(self, problem: Operational) -> float:
        """Count the failure, and log it as a warning if it differs from the last one logged. Returns the pause before
        the next try.
        """
        self.left(problem)
        if self.state is not PartState.FAILING:
            self._enter(PartState.FAILING)
        self._in_a_row += 1
        return self._pauses.after(self._in_a_row, self._chance)

    def left(self, problem: Operational) -> None:
        """Count and log a failure of work that another part will retry."""
        self.failures += 1
        self.last_error = f"{type(problem).__name__}: {problem}{_advice(problem)}"
        # Ids and numbers differ between tries and do not make an error new.
        kind = _IDS_AND_NUMBERS.sub("", self.last_error)
        level = logging.DEBUG if kind == self._told else logging.WARNING
        self._told = kind
        log.log(
            level,
            "part %r fails, trying again: %s",
            self.name,
            self.last_error,
            extra={"part": self.name, "failures": self.failures},
        )

    def ended(self, bug: BaseException | None = None) -> None:
        if bug is not None:
            self.last_error = f"{type(bug).__name__}: {bug}"
            log.critical(
                "part %r has ended: this is a bug", self.name, exc_info=bug, extra={"part": self.name}
            )
        self._enter(PartState.ENDED)

    def _enter(self, state: PartState) -> None:
        self.state = state
        self.since_s = asyncio.get_running_loop().time()


def _advice(problem: Operational) -> str:
    """How an operator can repair a refusal."""
    match problem:
        case NotFound():
            return "; `moor broker declare` makes what the topology has"
        case AccessRefused() if "declare" not in str(problem):
            return "; `moor broker declare` grants each role its rights"
        case _:
            return ""


def operational(error: BaseException) -> Operational | None:
    """The operational error in this exception, or None if the exception is a bug.

    A group of exceptions counts as operational if all of them are; then the first of them is returned.
    """
    if isinstance(error, Operational):
        return error
    if isinstance(error, BaseExceptionGroup):
        found = [operational(each) for each in error.exceptions]
        return found[0] if all(found) else None
    return None
