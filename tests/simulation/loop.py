"""An event loop with a simulated clock: instead of waiting, time jumps to the next timer. A run has bounds, so that one in
which something repeats without end, or waits for ever, fails and says what does.
"""

import asyncio
import selectors
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
# The busiest seeds have 1800 turns of the loop in a simulated second, and end before the 170th.
TURNS_PER_S_MAX = 8_000
ENDS_S_MAX = 600.0
# A seed takes 2 seconds of CPU. A loop in which nothing is awaited takes no turn.
CPU_S_MAX = 240.0
# When there were too many turns, the calls of so many more are counted.
COUNTED_TURNS = 200
NAMED_MAX = 6
ROOMS = (
    "kit",
    "bus",
    "engine",
    "placement_worker",
    "scheduler_worker",
    "cell_conductor",
    "compute_sim",
    "ironic_sync",
)
OURS = (*ROOMS, "tests")
OnBound = Callable[[str], None]


class StoppedRun(KeyboardInterrupt):
    """A run used too much CPU. asyncio lets this exception end the loop, whatever is running."""


class _Jumping(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        # Called at the first bound that the run reaches; without it there are no bounds.
        self.on_bound: OnBound | None = None
        self._second, self._turns = 0, 0
        self._calls: Counter[str] = Counter()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """One turn of the loop. There is no outside input, so it never has to wait."""
        if timeout is None:
            self._reach_bound("every task waits for another one, and no timer is set")
            return []
        self.now_s += max(0.0, timeout)
        if self.on_bound is not None:
            self._count_turn()
        return super().select(0) if timeout else []

    def _count_turn(self) -> None:
        if int(self.now_s) != self._second:
            self._second, self._turns = int(self.now_s), 0
            sys.setprofile(None)
        self._turns += 1
        if self._turns == TURNS_PER_S_MAX:
            self._calls.clear()
            sys.setprofile(self._called)
        elif self._turns == TURNS_PER_S_MAX + COUNTED_TURNS:
            sys.setprofile(None)
            often = ", ".join(f"{name} {count}" for name, count in self._calls.most_common(NAMED_MAX))
            self._reach_bound(
                f"{self._turns} turns in one second; calls in the last {COUNTED_TURNS}: {often}"
            )
        elif self._turns == 1 and self.now_s > ENDS_S_MAX:
            self._reach_bound(
                f"it has not ended after {self.now_s:.0f} s; these wait: {'; '.join(what_waits())}"
            )

    def _called(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and _is_of(frame, ROOMS):
            self._calls[_name_of(frame)] += 1

    def _reach_bound(self, why: str) -> None:
        tell, self.on_bound = self.on_bound, None
        if tell is None:
            raise AssertionError(why)
        tell(why)


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = _Jumping()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now_s


def run_simulated(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(main)


def simulated(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test on the simulated clock."""

    @wraps(test)
    def run(*args: P.args, **named: P.kwargs) -> None:
        run_simulated(test(*args, **named))

    return run


def on_bound(tell: OnBound) -> None:
    """`tell` is called if the run of the present loop reaches a bound, and must end the run."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, JumpingLoop), "a simulation runs on a simulated clock"
    loop.jumping.on_bound = tell


@contextmanager
def bounded_cpu(cpu_s: float = CPU_S_MAX) -> Iterator[None]:
    """Ends what is running after so much CPU, by StoppedRun, which names the innermost calls of our own."""

    def stop(_signal: int, frame: FrameType | None) -> None:
        where: list[str] = []
        while frame is not None and len(where) < NAMED_MAX:
            if _is_of(frame, OURS):
                where.append(f"{_name_of(frame)}:{frame.f_lineno}")
            frame = frame.f_back
        raise StoppedRun(f"it used {cpu_s:g} s of CPU, in {', called by '.join(where)}")

    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("a simulation runs in the main thread of its process, where signals arrive")
    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def what_waits() -> list[str]:
    """Where the unfinished tasks of the present loop wait; places where few tasks wait come first, since they tell more."""
    places = Counter(_place(task) for task in asyncio.all_tasks(asyncio.get_event_loop()))
    return [
        f"{count} x {place}" if count > 1 else place
        for place, count in sorted(places.items(), key=lambda each: (each[1], each[0]))
    ]


def _place(task: asyncio.Task[Any]) -> str:
    """The innermost function of ours in which the task waits."""
    place = task.get_name()
    waiting: Any = task.get_coro()
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "ag_frame", None)
        if frame is not None and _is_of(frame, OURS):
            place = f"{_name_of(frame)}:{frame.f_lineno}"
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "ag_await", None)
    return place


def _is_of(frame: FrameType, packages: tuple[str, ...]) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in packages


def _name_of(frame: FrameType) -> str:
    return f"{frame.f_globals['__name__']}.{frame.f_code.co_qualname}"


async def until_s(at_s: float) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(at_s - loop.time())
