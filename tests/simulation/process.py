"""A simulated process: the tasks that run in it, its clock, its random generator, and how it dies.

A context variable says to which process each task and timer belongs. When a process dies, its connections are cut
first, so that its tasks can publish nothing while they are cancelled.
"""

import asyncio
import random
import zlib
from collections import Counter
from collections.abc import Coroutine, Generator
from contextvars import Context, ContextVar
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from bus.memory.broker import MemoryConnection, MemoryWire
from kit.errors import ConnectionLost

if TYPE_CHECKING:
    from tests.simulation.cloud import Cloud

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
# Chance depends on the names that these processes had when the kept seeds were found.
CHANCE_NAMES = {"admin-1": "clerk-1", "admin-2": "clerk-2", "http-1": "desk-1"}
RUNNING: ContextVar["SimProcess | None"] = ContextVar("running", default=None)
# A network that is slow now and then is enough to vary the order of events in different processes.
SLOW_OFTEN = 0.08
SLOW_S_MAX = 0.02
AnyCoroutine = Coroutine[Any, Any, Any] | Generator[Any, None, Any]


class SimProcess:
    """One life of a simulated process. `name` is its role and number, and passes to its successor; `incarnation`
    tells the two apart.
    """

    def __init__(self, name: str, incarnation: int, seed: int, cloud: "Cloud") -> None:
        self.name = name
        self.incarnation = incarnation
        chance_seed = f"{seed} {CHANCE_NAMES.get(name, name)} {incarnation}"
        self.chance = random.Random(chance_seed)
        self._seed = zlib.crc32(chance_seed.encode())
        # The time of the last call of slow_s, and the number of calls at that same time.
        self._slow_asked_s, self._in_a_row = -1.0, 0
        self.is_dead = False
        self.connections: dict[MemoryConnection, None] = {}
        self.clock_offset_s = 0.0
        self.cloud = cloud
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._loop = asyncio.get_running_loop()
        self._online = asyncio.Event()
        self._online.set()
        self._awake = asyncio.Event()
        self._awake.set()
        # Set when it is told to stop.
        self.told_to_stop = asyncio.Event()
        # Points at which it will die; the value is how long its queues then stay quiet.
        self._armed_crashes: dict[str, float] = {}
        # How often each fault is still to fire, at its next parcels, deliveries or transactions.
        self.armed: Counter[str] = Counter()
        self.held_s = 0.0
        self.confirms_late_s = 0.0
        # It cannot reach its database before this time.
        self.database_away_until_s = 0.0
        # How long it stays down when it dies.
        self.down_s = 1.0

    @property
    def full_name(self) -> str:
        return f"{self.name}.{self.incarnation}"

    def clock(self) -> datetime:
        return EPOCH + timedelta(seconds=self._loop.time() + self.clock_offset_s)

    def slow_s(self) -> float:
        """The delay of a parcel or a delivery now. It depends on the time alone, not on earlier events: with elements
        removed from a plan, everything else keeps its delays.
        """
        self._in_a_row = self._in_a_row + 1 if self._loop.time() == self._slow_asked_s else 0
        self._slow_asked_s = self._loop.time()
        draw = hash((self._seed, self._slow_asked_s, self._in_a_row)) % 2**32 / 2**32
        return draw / SLOW_OFTEN * SLOW_S_MAX if draw < SLOW_OFTEN else 0.0

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

    # How it dies

    def arm_crash(self, point: str, quiet_s: float) -> None:
        self._armed_crashes[point] = quiet_s

    def will_crash_at(self, point: str) -> bool:
        return point in self._armed_crashes

    def fired(self, fault: str, of: str = "") -> None:
        self.cloud.fired(fault, f"{self.full_name} {of}".rstrip())

    async def point(self, point: str) -> None:
        """A place in the code where a crash may fire that was armed for it. A dead process gets no further than this."""
        quiet_s = self._armed_crashes.pop(point, None)
        if quiet_s is not None and not self.is_dead:
            self.fired(f"crash_{point}")
            self.die(quiet_s)
        if self.is_dead:
            # It is cancelled already, and ends here.
            await asyncio.Event().wait()

    def take_armed(self, what: str) -> bool:
        """Whether a fault of this kind is armed and fires now; one of them is then used up."""
        if not self.armed[what]:
            return False
        self.armed[what] -= 1
        return True

    def die(self, quiet_s: float = 0.0) -> None:
        if self.is_dead:
            return
        self.is_dead = True
        self.cloud.died(self, quiet_s=quiet_s)
        self.cut("its process died")
        self._cancel_all()

    def cut(self, why: str) -> None:
        connections, self.connections = self.connections, {}
        for connection in connections:
            connection.end(why)
        self.cloud.was_cut(self.name)

    def lose(self, wire: MemoryWire, why: str) -> NoReturn:
        """The connection of this wire breaks."""
        for connection in self.connections:
            if vars(connection)["_wire"] is wire:
                connection.end(why)
        raise ConnectionLost(why)

    def go_offline(self) -> None:
        self._online.clear()
        self.cut("taken for dead")

    def go_online(self) -> None:
        if not self._online.is_set():
            self._online.set()
            self.cloud.came_back(self)

    def pause(self, for_s: float) -> None:
        """Suspend the process. Everything that it does with other processes waits this long, including operations
        under way.
        """
        self._awake.clear()
        self._loop.call_later(for_s, self._awake.set, context=Context())
        self._loop.call_later(for_s / 2, self.cut, "missed heartbeats", context=Context())

    async def until_awake(self) -> None:
        if not self._awake.is_set():
            await self._awake.wait()

    def stop_faults(self) -> None:
        """End the faults of this process: nothing is armed any more, and it can reach the broker and its database again."""
        self._armed_crashes.clear()
        self.armed.clear()
        self.database_away_until_s = 0.0
        self.go_online()
        self._awake.set()

    async def until_online(self) -> None:
        if self.is_dead:
            await asyncio.Event().wait()
        await self._online.wait()

    def _cancel_all(self) -> None:
        """Cancel repeatedly: a task that other code cancels at the same moment may swallow one cancellation."""
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
