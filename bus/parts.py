"""What runs in a worker: supervised parts, periodic parts and single flights, each with a name and counters.

One rule for all of them: an operational error (bus/errors.py) is logged once per change, counted, and tried again after
growing pauses; every other exception is a bug, and ends the process with its traceback. Pauses are asyncio's time, and
their jitter comes from a random generator that is given, so that a simulation may replay them.

    Supervised     runs one coroutine for as long as the process runs
    Periodic       calls a function every so often, and at once when it is woken; never two at a time
    SingleFlight   a caller that comes while one run is under way shares the next one
"""

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import Enum

from msgspec import Struct

from bus.errors import AccessRefused, NotFound, Operational
from bus.process import Part

log = logging.getLogger(__name__)

_IDS_AND_NUMBERS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+")
Work = Callable[[], Awaitable[object]]


class Pauses(Struct, frozen=True):
    """How long to wait after a failure: the first time, then twice that, and so on."""

    first_s: float = 0.05
    max_s: float = 5.0


class State(Enum):
    STARTING = "starting"
    WELL = "well"
    FAILING = "failing"
    ENDED = "ended"


class Status:
    """One part's name, state and counters. Health and metrics read them; nothing is computed until they ask."""

    def __init__(
        self,
        name: str,
        *,
        is_needed: bool = False,
        pauses: Pauses | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self.name = name
        # A worker is not ready before each part that is needed is well.
        self.is_needed = is_needed
        self.state = State.STARTING
        self.is_bug = False
        self.runs = 0
        self.failures = 0
        self.last_error = ""
        # When the state began, as the loop's clock has it.
        self.since_s = 0.0
        self._pauses = pauses or Pauses()
        # By its name, which differs from process to process wherever no generator is given: a simulation can replay it.
        self._chance = chance or random.Random(name)
        self._in_a_row = 0
        self._told = ""

    @property
    def awaits(self) -> str:
        """Why the worker is not ready, as far as this part goes; empty if it is."""
        if self.state is State.FAILING:
            return self.last_error
        return "not yet" if self.is_needed and self.state is State.STARTING else ""

    def began(self) -> None:
        self.runs += 1

    def well(self) -> None:
        """It works: said as often as one likes."""
        if self._told:
            log.info("part %r works again; it has failed %d times so far", self.name, self.failures)
            self._in_a_row, self._told = 0, ""
        if self.state is not State.WELL:
            self._enter(State.WELL)

    def failed(self, problem: Operational) -> float:
        """Counted, and logged if it is news; how long to wait before the next try."""
        self.left(problem)
        if self.state is not State.FAILING:
            self._enter(State.FAILING)
        pause_s = min(self._pauses.first_s * 2.0 ** min(self._in_a_row, 20), self._pauses.max_s)
        self._in_a_row += 1
        # In the upper half, so that those that failed together do not come back together.
        return pause_s * self._chance.uniform(0.5, 1.0)

    def left(self, problem: Operational) -> None:
        """Counted and logged likewise, and left to another part that will try it again."""
        self.failures += 1
        self.last_error = f"{type(problem).__name__}: {problem}{_advice(problem)}"
        # Ids and numbers in a message differ from try to try, and are no news.
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
            self.is_bug = True
            self.last_error = f"{type(bug).__name__}: {bug}"
            log.critical(
                "part %r has ended: this is a bug", self.name, exc_info=bug, extra={"part": self.name}
            )
        self._enter(State.ENDED)

    def _enter(self, state: State) -> None:
        self.state = state
        self.since_s = asyncio.get_running_loop().time()


def _advice(problem: Operational) -> str:
    """What an operator can do about a refusal."""
    match problem:
        case NotFound():
            return "; `moor broker declare` makes what the topology has"
        case AccessRefused() if "declare" not in str(problem):
            return "; `moor broker declare` grants each role its rights"
        case _:
            return ""


class Supervised:
    """A part that runs one coroutine, again whenever it fails. The coroutine says `status.well()` when it has got going.

    `stop` cancels it; without `is_cut_short`, the coroutine sees for itself that `stopping` is set, and returns.
    """

    def __init__(
        self,
        name: str,
        work: Work,
        *,
        is_needed: bool = False,
        is_cut_short: bool = True,
        pauses: Pauses | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self.status = Status(name, is_needed=is_needed, pauses=pauses, chance=chance)
        self.stopping = asyncio.Event()
        self._work = work
        self._is_cut_short = is_cut_short

    async def run(self) -> None:
        try:
            await (self._until_stopped() if self._is_cut_short else self._repeat())
        except Exception as bug:
            self.status.ended(bug)
            raise
        self.status.ended()

    async def stop(self) -> None:
        self.stopping.set()

    async def _until_stopped(self) -> None:
        working = asyncio.create_task(self._repeat())
        stopping = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            working.cancel()
            stopping.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)
        with suppress(asyncio.CancelledError):
            working.result()

    async def _repeat(self) -> None:
        while not self.stopping.is_set():
            pause_s = await self._tried()
            if pause_s is None:
                return
            await happens_within(self.stopping, pause_s)

    async def _tried(self) -> float | None:
        """Run once: None if it returned, else how long to wait before the next try."""
        self.status.began()
        try:
            await self._work()
        except Exception as error:
            if (problem := operational(error)) is None:
                raise
            return self.status.failed(problem)
        return None


class Periodic(Supervised):
    """A part that calls a function every so often, and at once when woken. A run under way is finished before it ends,
    unless it `is_cut_short`.
    """

    def __init__(
        self,
        name: str,
        work: Work,
        every_s: float | Callable[[], float],
        *,
        is_needed: bool = False,
        is_cut_short: bool = False,
        rests_first: bool = False,
        pauses: Pauses | None = None,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__(
            name, work, is_needed=is_needed, is_cut_short=is_cut_short, pauses=pauses, chance=chance
        )
        self._every_s = every_s
        self._rests_first = rests_first
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """There is something to do: no need to wait for the next time."""
        self._woken.set()

    async def stop(self) -> None:
        await super().stop()
        self._woken.set()

    async def _repeat(self) -> None:
        if self._rests_first:
            await self._rest()
        while not self.stopping.is_set():
            # Cleared before the run: whoever wakes it meanwhile is served by the next one.
            self._woken.clear()
            pause_s = await self._tried()
            if pause_s is None:
                self.status.well()
                await self._rest()
            else:
                await happens_within(self.stopping, pause_s)

    async def _rest(self) -> None:
        every_s = self._every_s if isinstance(self._every_s, float | int) else self._every_s()
        if not self.stopping.is_set():
            await happens_within(self._woken, every_s)


class Once(Supervised):
    """A part that must succeed once, such as bringing tables up to date."""

    def __init__(self, name: str, work: Work, *, chance: random.Random | None = None) -> None:
        super().__init__(name, work, is_needed=True, chance=chance)

    async def run(self) -> None:
        await self._until_stopped()
        if not self.stopping.is_set():
            self.status.well()


class SingleFlight:
    """One run at a time; a caller that comes while one is under way shares the next one, which begins after its call.

    A run is tried until it succeeds, so that nobody needs to wait for it. As a part, it ends the process of its bugs.
    """

    def __init__(
        self,
        name: str,
        work: Work,
        *,
        is_needed: bool = False,
        pauses: Pauses | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self.status = Status(name, is_needed=is_needed, pauses=pauses, chance=chance)
        self._work = work
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        self._bug: Exception | None = None

    def soon(self) -> "asyncio.Task[None]":
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._run_after(self._running))
        return self._next

    async def done(self) -> None:
        """On return, a run that began after the call has succeeded."""
        await asyncio.shield(self.soon())

    async def run(self) -> None:
        try:
            await self._over.wait()
        finally:
            await self.close()
        if self._bug is not None:
            raise self._bug
        self.status.ended()

    async def stop(self) -> None:
        self._over.set()

    async def close(self) -> None:
        tasks = [task for task in (self._running, self._next) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_after(self, earlier: "asyncio.Task[None] | None") -> None:
        if earlier is not None:
            await asyncio.wait((earlier,))
        # From here on, a caller needs another run.
        self._running, self._next = self._next, None
        try:
            await self._until_done()
        except Exception as bug:
            self._bug = bug
            self.status.ended(bug)
            self._over.set()
            raise
        self.status.well()

    async def _until_done(self) -> None:
        while True:
            self.status.began()
            try:
                await self._work()
            except Exception as error:
                if (problem := operational(error)) is None:
                    raise
                await asyncio.sleep(self.status.failed(problem))
            else:
                return


class Together:
    """Parts that run as one part. A bug in one of them ends all."""

    def __init__(self, *parts: Part) -> None:
        self.parts: Sequence[Part] = parts

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for part in self.parts:
                tasks.create_task(part.run())

    async def stop(self) -> None:
        for part in self.parts:
            await part.stop()


def every_part(parts: Iterable[object]) -> Iterator[object]:
    """These, and whatever they are made of (`parts` of their own), each once."""
    seen: dict[int, object] = {}

    def walk(some: Iterable[object]) -> Iterator[object]:
        for part in some:
            if id(part) not in seen:
                seen[id(part)] = part
                yield part
                yield from walk(getattr(part, "parts", ()))

    return walk(parts)


def statuses(parts: Iterable[object]) -> list[Status]:
    # Not by a protocol: isinstance against one costs more than all else here, and health looks several times a second.
    found = [
        part if isinstance(part, Status) else getattr(part, "status", None) for part in every_part(parts)
    ]
    return [each for each in found if isinstance(each, Status)]


def operational(error: BaseException) -> Operational | None:
    """The operational error that this is; of a group, the first, if all of them are. None for a bug."""
    if isinstance(error, Operational):
        return error
    if isinstance(error, BaseExceptionGroup):
        found = [operational(each) for each in error.exceptions]
        return found[0] if all(found) else None
    return None


async def happens_within(event: asyncio.Event, seconds: float) -> None:
    """Wait until it happens, or for so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
