"""The parts of a worker process: supervised parts, periodic parts and single flights, each with a name and counters.

One rule for all: an operational error (bus/errors.py) is logged once per change, counted, and retried after growing
pauses. Every other exception is a bug and ends the process with its traceback. Pauses use asyncio's clock, and their
jitter a given random generator, so that a simulation can replay them.

    Supervised     runs one coroutine for as long as the process runs.
    Periodic       calls a function at an interval, and at once when woken. Two calls never overlap.
    SharedRuns     runs a function. A caller that comes during a run shares the next run. It is no part.
    SingleFlight   shared runs as a part. Each run is retried until it succeeds.
    Background     runs tasks beside a part, one for each key.
"""

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import Any

from msgspec import Struct

from bus.errors import AccessRefused, NotFound, Operational
from bus.process import Part

log = logging.getLogger(__name__)

_IDS_AND_NUMBERS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+")
Work = Callable[[], Awaitable[object]]


class Pauses(Struct, frozen=True):
    """The pause after a failure: it doubles each time, up to a maximum."""

    first_s: float = 0.05
    max_s: float = 5.0

    def after(self, failures: int, chance: random.Random) -> float:
        # In the upper half of the range, so that parts that failed together do not retry together.
        return min(self.first_s * 2.0 ** min(failures, 20), self.max_s) * chance.uniform(0.5, 1.0)


class Counts(Struct, frozen=True):
    """Counters of a room's own for its metrics: one metric, with a count for each value of its label. A part has them as
    `counts`.
    """

    metric: str
    meaning: str
    label: str
    by_value: Mapping[str, int]


class State(Enum):
    STARTING = "starting"
    WELL = "well"
    FAILING = "failing"
    ENDED = "ended"


class Status:
    """One part's name, state and counters, for health and metrics. Nothing is computed until these ask."""

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
        self.state = State.STARTING
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
        if self.state is State.FAILING:
            return self.last_error
        return "not yet" if self.is_needed and self.state is State.STARTING else ""

    async def tried(self, work: Work) -> float | None:
        """Run once. None if it succeeded, else the pause before the next try."""
        self.runs += 1
        try:
            await work()
        except Exception as error:
            if (problem := operational(error)) is None:
                raise
            return self.failed(problem)
        return None

    async def until_done(self, work: Work) -> None:
        """Run until it has succeeded once, with growing pauses."""
        while (pause_s := await self.tried(work)) is not None:  # noqa: ASYNC110 - only a try can tell
            await asyncio.sleep(pause_s)
        self.well()

    def well(self) -> None:
        """Report that the part works; may be called any number of times."""
        if self._told:
            log.info("part %r works again; it has failed %d times so far", self.name, self.failures)
            self._in_a_row, self._told = 0, ""
        if self.state is not State.WELL:
            self._enter(State.WELL)

    def failed(self, problem: Operational) -> float:
        """Count the failure and log it if it is new. Returns the pause before the next try."""
        self.left(problem)
        if self.state is not State.FAILING:
            self._enter(State.FAILING)
        self._in_a_row += 1
        return self._pauses.after(self._in_a_row - 1, self._chance)

    def left(self, problem: Operational) -> None:
        """Count and log the failure; another part will retry the work."""
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
        self._enter(State.ENDED)

    def _enter(self, state: State) -> None:
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


class Supervised:
    """A part that runs one coroutine, again after each failure. The coroutine calls `status.well()` when it has started
    up.

    `stop` cancels the coroutine. Without `is_cut_short`, the coroutine itself checks `stopping` and returns.
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
            pause_s = await self.status.tried(self._work)
            if pause_s is None:
                return
            await wait_at_most(self.stopping, pause_s)


class Periodic(Supervised):
    """A part that calls a function at an interval, and at once when woken. It finishes the current run before it stops,
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
        """There is work to do: run now."""
        self._woken.set()

    async def stop(self) -> None:
        await super().stop()
        self._woken.set()

    async def _repeat(self) -> None:
        if self._rests_first:
            await self._rest()
        while not self.stopping.is_set():
            # Cleared before the run: a wake-up during the run causes another run.
            self._woken.clear()
            pause_s = await self.status.tried(self._work)
            if pause_s is None:
                self.status.well()
                await self._rest()
            else:
                await wait_at_most(self.stopping, pause_s)

    async def _rest(self) -> None:
        every_s = self._every_s if isinstance(self._every_s, float | int) else self._every_s()
        if not self.stopping.is_set():
            await wait_at_most(self._woken, every_s)


class Once(Supervised):
    """A part that must succeed once, such as migrating the tables."""

    def __init__(self, name: str, work: Work) -> None:
        super().__init__(name, work, is_needed=True)

    async def run(self) -> None:
        await self._until_stopped()
        if not self.stopping.is_set():
            self.status.well()


class SharedRuns:
    """One run at a time. A caller that comes during a run shares the next run, which begins after the call."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    def soon(self) -> "asyncio.Task[None]":
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._run_after(self._running))
            self._next.add_done_callback(mark_seen)
        return self._next

    async def done(self) -> None:
        """Returns when a run that began after the call has succeeded. Raises its error, if it raised one."""
        await asyncio.shield(self.soon())

    async def close(self) -> None:
        tasks = [task for task in (self._running, self._next) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_after(self, earlier: "asyncio.Task[None] | None") -> None:
        if earlier is not None:
            await asyncio.wait((earlier,))
        # Callers that come from here on need another run.
        self._running, self._next = self._next, None
        await self._work()


def mark_seen(done: "asyncio.Future[None]") -> None:
    """Waiting callers get the exception. If all of them have gone, mark it as seen, so that asyncio does not log it."""
    if not done.cancelled():
        done.exception()


class SingleFlight(SharedRuns):
    """Shared runs, as a part. A run is retried until it succeeds, so no caller needs to wait for it. The part raises a
    bug of the runs.
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
        super().__init__(self._until_done)
        self.status = Status(name, is_needed=is_needed, pauses=pauses, chance=chance)
        self._tried = work
        self._over = asyncio.Event()
        self._bug: Exception | None = None

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

    async def _until_done(self) -> None:
        try:
            await self.status.until_done(self._tried)
        except Exception as bug:
            self._bug = bug
            self.status.ended(bug)
            self._over.set()
            raise


class Background:
    """Tasks that a part starts beside itself, at most one for each key. `async with` waits for their ends. A bug in one of
    them ends the part.
    """

    def __init__(self, ended: Callable[[Any], object] = lambda _: None) -> None:
        """`ended` is called with the key after the end of each task."""
        self._ended = ended
        self._group = asyncio.TaskGroup()
        self._tasks: dict[object, asyncio.Task[None]] = {}

    async def __aenter__(self) -> None:
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._group.__aexit__(kind, problem, trace)

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, key: object) -> bool:
        return key in self._tasks

    def start(self, work: Coroutine[object, object, None], key: object = None) -> None:
        """Without a key the task is one of its own."""
        task = self._group.create_task(work)
        own = task if key is None else key
        self._tasks[own] = task
        task.add_done_callback(lambda _: self._forget(own))

    def cancel(self, key: object) -> None:
        if key in self._tasks:
            self._tasks[key].cancel()

    def cancel_all(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def until_fewer_than(self, count: int) -> None:
        while len(self._tasks) >= count:
            await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)

    def _forget(self, key: object) -> None:
        del self._tasks[key]
        self._ended(key)


class PartGroup:
    """Several parts as one. A bug in one of them ends all."""

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
    """These parts and the parts inside them (`parts`), each once."""
    seen: dict[int, object] = {}

    def walk(some: Iterable[object]) -> Iterator[object]:
        for part in some:
            if id(part) not in seen:
                seen[id(part)] = part
                yield part
                yield from walk(getattr(part, "parts", ()))

    return walk(parts)


def statuses(parts: Iterable[object]) -> list[Status]:
    # `isinstance` with a protocol would cost more than everything else here, and health asks several times a second.
    found = [
        part if isinstance(part, Status) else getattr(part, "status", None) for part in every_part(parts)
    ]
    return [each for each in found if isinstance(each, Status)]


def set_beside(parts: Iterable[object], what: str) -> None:
    """These parts keep the worker from nothing; `what` tells them from equal parts, such as those for another cell."""
    for status in statuses(parts):
        status.is_beside = True
        status.name = f"{status.name} ({what})"


def operational(error: BaseException) -> Operational | None:
    """The operational error in an exception; of a group the first, if all are operational. None for a bug."""
    if isinstance(error, Operational):
        return error
    if isinstance(error, BaseExceptionGroup):
        found = [operational(each) for each in error.exceptions]
        return found[0] if all(found) else None
    return None


async def wait_at_most(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, at most so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
