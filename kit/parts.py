"""The parts of a worker process: supervised parts, periodic parts and single flights, each with a name and counters.

One rule for all: an operational error (kit/errors.py) is logged once per change, counted, and retried after growing
pauses. Every other exception is a bug and ends the process with its traceback. Pauses use asyncio's clock, and their
jitter a given random generator, so that a simulation can replay them.

    Supervised     runs one coroutine for as long as the process runs.
    Periodic       calls a function at an interval, and at once when woken. Two calls never overlap.
    SharedRuns     runs a function. A caller that comes during a run shares the next run. It is no part.
    SingleFlight   shared runs as a part. Each run is retried until it succeeds.
    Background     runs tasks beside a part, one for each key.
    RowByRow       work on rows, of which one may meet a bug: the part goes on with the others. It is no part.
"""

import asyncio
import logging
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from enum import Enum
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from msgspec import Struct

from kit.errors import AccessRefused, NotFound, Operational, Transient
from kit.process import Part

if TYPE_CHECKING:
    from tenacity import RetryCallState

# Tasks that a part of a worker starts and that run beside the part's own loop.


class Background:
    """Tasks that a part starts and that run beside its loop, at most one for each key.

    Used by `async with`, whose end waits for the tasks. A bug in one of them ends the part. While the part ends, work
    that is started is dropped, as if the process had ended a moment earlier.
    """

    def __init__(self, ended: Callable[[Any], object] = lambda _: None) -> None:
        """`ended` is called with the key after the end of each task."""
        self._ended = ended
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[object, asyncio.Task[None]] = {}

    async def __aenter__(self) -> None:
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._group is not None
        await self._group.__aexit__(kind, problem, trace)

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, key: object) -> bool:
        return key in self._tasks

    def start(self, work: Coroutine[object, object, None], key: object = None) -> None:
        """Run this work as a task, which can be found by its key. Without a key, no other call can find it."""
        assert self._group is not None, "its part has not begun"
        try:
            task = self._group.create_task(work)
        except RuntimeError:
            # Only closed work is not reported as never awaited.
            work.close()
            return
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


# How long to pause before work that failed is tried again: the one formula of all rooms.
#
# Tenacity's own waits are not used. They draw from the global random generator, and not from one that is given. And most tries
# are counted on a row, in a message or by a part, outside of any loop of tenacity.


P = ParamSpec("P")
T = TypeVar("T")
Pause = TypeVar("Pause", float, timedelta)

# A server may be away for any number of tries, and neither a float nor a timedelta holds any number of doublings.
_DOUBLINGS_MAX = 30


class Chance(Protocol):
    """A random generator, or the module `random`."""

    def uniform(self, a: float, b: float) -> float: ...


def grown(first: Pause, longest: Pause, failures: int) -> Pause:
    """The pause after so many failures in a row: it doubles with each, up to the longest."""
    return min(first * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), longest)


def drawn(pause: float, chance: Chance, *, least: float = 0.5) -> float:
    """Draw a pause between this share of the given one and all of it, so that those that failed together do not try
    again together.
    """
    return pause * chance.uniform(least, 1.0)


class Pauses(Struct, frozen=True):
    """The growing pauses between tries. Each is drawn between the share `least` of it and all of it."""

    first_s: float = 0.05
    max_s: float = 5.0
    least: float = 0.5

    def after(self, failures: int, chance: Chance) -> float:
        return drawn(grown(self.first_s, self.max_s, failures), chance, least=self.least)

    def each(self, chance: Chance) -> Iterator[float]:
        """The pauses of one piece of work, one after the other."""
        return (self.after(failures, chance) for failures in count(1))


class Retrying(Struct, frozen=True):
    """A call that is tried again on `Transient`, or on these kinds of it, after growing pauses. There are few tries, since a caller
    waits. After a broken connection, the next try gets a new one.

    The last try raises its error as it is. All other errors are raised at once. The pauses begin at 0, so that callers that
    collided are spread as far as can be.
    """

    tries_max: int
    pauses: Pauses = Pauses(first_s=0.005, max_s=0.5, least=0.0)
    kinds: tuple[type[Transient], ...] = (Transient,)
    chance: Chance = random

    async def __call__(self, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        # Tenacity makes a dozen objects for each call. Its 20 µs are a twentieth of a claim that comes alone over HTTP, so only what
        # has failed pays them, and the 15 ms of its import.
        try:
            return await work(*args, **kwargs)
        except self.kinds:
            if self.tries_max == 1:
                raise
        log.debug("a call has failed for the moment, and is tried again")
        import tenacity  # noqa: PLC0415

        async def again() -> T:
            return await work(*args, **kwargs)

        return await tenacity.AsyncRetrying(
            before=self._pause,
            retry=tenacity.retry_if_exception_type(self.kinds),
            stop=tenacity.stop_after_attempt(self.tries_max - 1),
            reraise=True,
        )(again)

    async def _pause(self, state: "RetryCallState") -> None:
        await asyncio.sleep(self.pauses.after(state.attempt_number, self.chance))


async def what_remains(
    look: Callable[[], Awaitable[Sequence[T]]], pauses: Pauses, within_s: float
) -> Sequence[T]:
    """What `look` finds at last. While it finds anything, it looks again after growing pauses, until the time is over: late updates
    end some problems.
    """
    clock_s = asyncio.get_running_loop().time
    by_s = clock_s() + within_s
    pause_s = pauses.each(random)
    while (found := await look()) and clock_s() < by_s:  # noqa: ASYNC110 - only a look can tell
        await asyncio.sleep(next(pause_s))
    return found


# The state and counters of a part, and what happens after a failure.
#
# After an operational failure (kit/errors.py), such as a server that is down, the work is tried again with growing
# pauses. Any other exception is a bug, and is raised.


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
        # By default the pauses of all processes differ; a simulation gives what it can replay.
        self._chance: Chance = chance or random
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

    async def until_done(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of the work, which is run until it has succeeded once, with growing pauses after failures."""
        results: list[T] = []

        async def once() -> None:
            results.append(await work())

        while (pause_s := await self.tried(once)) is not None:  # noqa: ASYNC110 - only a try can tell
            await asyncio.sleep(pause_s)
        self.well()
        return results[0]

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


# Parts that run one coroutine, call a function at an interval, or must succeed once.


class Supervised:
    """A part that runs one coroutine, and runs it again after each operational failure.

    The coroutine calls `status.well()` when it has started up. `stop` cancels the coroutine if `is_cut_short` is set.
    Otherwise the coroutine checks the event `stopping` itself, and returns.
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
            await (until_set(self.stopping, self._repeat()) if self._is_cut_short else self._repeat())
        except Exception as bug:
            self.status.ended(bug)
            raise
        self.status.ended()

    async def stop(self) -> None:
        self.stopping.set()

    async def _repeat(self) -> None:
        while not self.stopping.is_set():
            pause_s = await self.status.tried(self._work)
            if pause_s is None:
                return
            await wait_at_most(self.stopping, pause_s)


class Periodic(Supervised):
    """A part that calls a function at an interval, and at once when `wake` is called.

    `stop` lets the current call finish, or cancels it if `is_cut_short` is set. The event `has_run` is set when a call
    has succeeded.
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
        self.has_run = asyncio.Event()

    def wake(self) -> None:
        """Run the work now instead of after its pause: there is something to do."""
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
                self.has_run.set()
                await self._rest()
            else:
                await wait_at_most(self.stopping, pause_s)

    async def _rest(self) -> None:
        every_s = self._every_s if isinstance(self._every_s, float | int) else self._every_s()
        if not self.stopping.is_set():
            await wait_at_most(self._woken, every_s)


class Once(Supervised):
    """Work that must succeed once before the worker is ready, such as migrating the tables."""

    def __init__(self, name: str, work: Work) -> None:
        super().__init__(name, work, is_needed=True)

    async def run(self) -> None:
        await until_set(self.stopping, self._repeat())
        if not self.stopping.is_set():
            self.status.well()


async def wait_at_most(event: asyncio.Event, seconds: float | None) -> None:
    """Wait for the event, at most so many seconds; for ever with None."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def until_set(event: asyncio.Event, work: Coroutine[object, object, None]) -> None:
    """Run this work until it ends. It is cancelled when the event is set."""
    working = asyncio.create_task(work)
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        waiting.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)
    with suppress(asyncio.CancelledError):
        working.result()


# Runs of a function that are shared: all callers that come before a run begins wait for that run.


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
        """Wait for a run that begins after this call, until it has succeeded. Raises the error of that run, if it fails."""
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
    """Take note of the exception of a task that has ended, so that asyncio does not log it as never retrieved.

    Callers that wait for the task get the exception all the same. But it may be that no caller waits any more.
    """
    if not done.cancelled():
        done.exception()


class SingleFlight(SharedRuns):
    """Shared runs as a part of a worker. Each run is retried until it succeeds, so no caller needs to wait for it.

    If a run fails by a bug, the part ends with that exception.
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


# Work on rows, of which any may meet a bug.


# A row that met a bug rests for so long here, and longer after each further one: other processes try it meanwhile.
ROW_RESTS_S_FIRST, ROW_RESTS_S_MAX = 60.0, 3600.0


class RowByRow:
    """Keeps a part going whose work on a row raises what only a bug raises. Operational errors are raised as ever.

    If a batch meets a bug, its rows are worked on one by one. The row that raises rests, and `met_bug` is awaited with it and the
    exception: it hands the row to other processes (bus/workers/set_aside.py).
    """

    def __init__(self, met_bug: Callable[[object, Exception], Awaitable[None]]) -> None:
        self._met_bug = met_bug
        # How often each row has met a bug here, and until when it rests, by the event loop's clock.
        self._resting: dict[object, tuple[int, float]] = {}

    def __len__(self) -> int:
        """How many rows may be resting: so many more must be read, to find others behind them."""
        return len(self._resting)

    def rests(self, row: object) -> bool:
        return not self.awake((row,), lambda each: each)

    def awake(self, rows: Iterable[T], key: Callable[[T], object]) -> list[T]:
        """Those of these rows that do not rest."""
        if not self._resting:
            return [*rows]
        now_s = asyncio.get_running_loop().time()
        return [row for row in rows if self._resting.get(key(row), (0, 0.0))[1] <= now_s]

    async def each(
        self,
        rows: Iterable[T],
        work: Callable[[Sequence[T]], Awaitable[object]],
        key: Callable[[T], object],
    ) -> None:
        """Do the work on the rows that do not rest: on all together, and if that meets a bug, on each alone."""
        if not (awake := self.awake(rows, key)):
            return
        try:
            await work(awake)
        except Exception as problem:
            if operational(problem) is not None:
                raise
            log.debug("a batch has met a bug: its rows are worked on one by one")
            for row in awake:
                async with self.trying(key(row)):
                    await work((row,))

    @asynccontextmanager
    async def trying(self, row: object) -> AsyncIterator[None]:
        """A context with the work on one row. It swallows what only a bug raises."""
        try:
            yield
        except Exception as problem:
            if operational(problem) is not None:
                raise
            await self.met_bug(row, problem)
        else:
            self._resting.pop(row, None)

    async def met_bug(self, row: object, bug: Exception) -> float:
        """Have this row rest. Returns for how many seconds."""
        await self._met_bug(row, bug)
        failures = self._resting.get(row, (0, 0.0))[0] + 1
        rest_s = grown(ROW_RESTS_S_FIRST, ROW_RESTS_S_MAX, failures)
        self._resting[row] = failures, asyncio.get_running_loop().time() + rest_s
        return rest_s


# Several parts together, and the statuses inside them.


class PartGroup:
    """Several parts of a worker that run and stop as one. A bug in one of them ends all."""

    def __init__(self, *parts: Part, statuses: Sequence[Status] = ()) -> None:
        """`statuses` are those of work in the group that is no part by itself, such as asking placement.

        Health and metrics show them with the group.
        """
        self.parts: Sequence[Part | Status] = (*parts, *statuses)
        self._run_parts = parts

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for part in self._run_parts:
                tasks.create_task(part.run())

    async def stop(self) -> None:
        for part in self._run_parts:
            await part.stop()


def every_part(parts: Iterable[object]) -> Iterator[object]:
    """Yield these parts of a worker and the parts inside them (their attribute `parts`), each of them once."""
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
    """Mark these parts as ones whose failure does not make the worker unready, such as those for one of many cells.

    `what` is added to their names, since other parts may have the same ones.
    """
    for status in statuses(parts):
        status.is_beside = True
        status.name = f"{status.name} ({what})"


def batches_of(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
