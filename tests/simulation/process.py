"""A simulated process: the tasks that run as it, its clock and its chance, and how it dies.

Whatever is started by its tasks and timers is its own, by a context variable. When it dies its connections are cut
first, so that nothing that its tasks still do on their way out is heard by anybody.
"""

import asyncio
import random
import zlib
from collections import Counter
from collections.abc import Coroutine, Generator
from contextvars import Context, ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
RUNNING: ContextVar["SimProcess | None"] = ContextVar("running", default=None)
# A network that is slow now and then is enough to mix what happens in different processes.
SLOW_OFTEN = 0.08
SLOW_S_MAX = 0.02
AnyCoroutine = Coroutine[Any, Any, Any] | Generator[Any, None, Any]


class Cuttable(Protocol):
    def end(self, why: str) -> None: ...


class Watching(Protocol):
    """Whoever is told what befalls processes."""

    def fired(self, fault: str, process: str) -> None: ...

    def died(self, process: "SimProcess", *, quiet_s: float) -> None: ...


class SimProcess:
    """`name` is its place in the cloud, which another takes when it has died; `life` tells these apart."""

    def __init__(self, name: str, life: int, seed: int, watching: Watching) -> None:
        self.name = name
        self.life = life
        self.chance = random.Random(f"{seed} {name} {life}")
        self._own = zlib.crc32(f"{seed} {name} {life}".encode())
        # When it was last asked how slow things are, and how often in this moment.
        self._asked_s, self._in_a_row = -1.0, 0
        self.is_dead = False
        self.connections: dict[Cuttable, None] = {}
        self.ahead_s = 0.0
        self._watching = watching
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._loop = asyncio.get_running_loop()
        self._online = asyncio.Event()
        self._online.set()
        self._awake = asyncio.Event()
        self._awake.set()
        # Set when it is told to stop.
        self.told_to_stop = asyncio.Event()
        # Points at which it is to die: how long it is away, and its queues are quiet, then.
        self._doom: dict[str, float] = {}
        # What is to befall its next parcels, deliveries or feeds.
        self.marked: Counter[str] = Counter()
        self.held_s = 0.0
        self.confirms_late_s = 0.0
        # Until when it cannot reach its database.
        self.without_database_until_s = 0.0
        # How long it will be away when it dies.
        self.down_s = 1.0

    @property
    def full_name(self) -> str:
        return f"{self.name}.{self.life}"

    def clock(self) -> datetime:
        return EPOCH + timedelta(seconds=self._loop.time() + self.ahead_s)

    def slow_s(self) -> float:
        """How long it waits for what comes to it or leaves it now. Of the moment alone, and not of what came before it:
        where something is left out of a plan, everything else is as slow as it was.
        """
        self._in_a_row = self._in_a_row + 1 if self._loop.time() == self._asked_s else 0
        self._asked_s = self._loop.time()
        lot = hash((self._own, self._asked_s, self._in_a_row)) % 2**32 / 2**32
        return lot / SLOW_OFTEN * SLOW_S_MAX if lot < SLOW_OFTEN else 0.0

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        before = RUNNING.set(self)
        try:
            return self._loop.create_task(work)
        finally:
            RUNNING.reset(before)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        if self.is_dead:
            task.cancel()
            return
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    # Its fate

    def doom(self, point: str, quiet_s: float) -> None:
        self._doom[point] = quiet_s

    def is_doomed(self, point: str) -> bool:
        return point in self._doom

    def fired(self, fault: str, of: str = "") -> None:
        self._watching.fired(fault, f"{self.full_name} {of}".rstrip())

    async def point(self, point: str) -> None:
        """A place where it may die."""
        quiet_s = self._doom.pop(point, None)
        if quiet_s is not None and not self.is_dead:
            self.fired(f"crash_{point}")
            self.die(quiet_s)
        if self.is_dead:
            # Cancelled already: this is where it is noticed.
            await asyncio.Event().wait()

    def take_mark(self, what: str) -> bool:
        """Is this to befall it now?"""
        if not self.marked[what]:
            return False
        self.marked[what] -= 1
        return True

    def die(self, quiet_s: float = 0.0) -> None:
        if self.is_dead:
            return
        self.is_dead = True
        self._watching.died(self, quiet_s=quiet_s)
        self.cut("its process died")
        self._cancel_all()

    def cut(self, why: str) -> None:
        connections, self.connections = self.connections, {}
        for connection in connections:
            connection.end(why)

    def go_offline(self) -> None:
        self._online.clear()
        self.cut("it was taken for dead")

    def go_online(self) -> None:
        self._online.set()

    def pause(self, for_s: float) -> None:
        """Whatever it does with others waits for so long, also what it had begun."""
        self._awake.clear()
        self._loop.call_later(for_s, self._awake.set, context=Context())
        self._loop.call_later(for_s / 2, self.cut, "it did not answer", context=Context())

    async def until_awake(self) -> None:
        if not self._awake.is_set():
            await self._awake.wait()

    def calm(self) -> None:
        """Nothing befalls it any more."""
        self._doom.clear()
        self.marked.clear()
        self.without_database_until_s = 0.0
        self._online.set()
        self._awake.set()

    async def until_online(self) -> None:
        if self.is_dead:
            await asyncio.Event().wait()
        await self._online.wait()

    def _cancel_all(self) -> None:
        """Again and again: who was told to end by somebody else, too, may have missed it."""
        for task in [*self._tasks]:
            task.cancel()
        if self._tasks:
            self._loop.call_later(0.5, self._cancel_all)


def owned_task(loop: asyncio.AbstractEventLoop, work: AnyCoroutine, **options: Any) -> asyncio.Task[Any]:
    """A task factory: each task belongs to the process that started it."""
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
    context = options.get("context")
    owner = RUNNING.get() if context is None else context.get(RUNNING)
    if owner is not None:
        owner.adopt(task)
    return task
