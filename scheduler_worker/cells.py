"""What cells publish for every scheduler to hear, on their own brokers or on the API level's."""

import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import numpy as np
from msgspec import structs

from bus.message import Message
from bus.messages.cell import ConsoleTold
from bus.messages.cloud import ConductorAlive, Durations, StageTimes, WorkerAlive, WorkerHeard
from bus.topology import broker_user_of
from bus.workers.handling import Received
from bus.workers.running import STAGES
from bus.workers.station import is_silent
from kit.errors import Unavailable
from kit.metrics import BUCKETS_S, quantile
from kit.parts import Periodic, Status
from scheduler_worker.cell_questions import ConsoleRelay
from scheduler_worker.hosts import HostRegistry
from scheduler_worker.registry import CellRegistry
from scheduler_worker.store_sql import SchedulerStore

# Looks which cells are down, tells it in health and metrics, and keeps in the database when each was last heard.


# A row is written again when it is so much behind: a worker that starts needs no better.
WRITTEN_AGAIN_AFTER = timedelta(seconds=15)


class CellWatch(Periodic):
    """Looks at an interval which cells are down. In `parts` is one health status for each cell; it fails while the cell
    is down, and does not keep the worker from being ready.
    """

    def __init__(
        self,
        store: SchedulerStore,
        cells: CellRegistry,
        hosts: HostRegistry,
        poll_s: float,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__("look at cells", self._look, poll_s, chance=chance)
        self._store = store
        self._cells = cells
        self._hosts = hosts
        self._statuses: dict[str, Status] = {}

    @property
    def parts(self) -> Sequence[object]:
        return tuple(self._statuses.values())

    async def _look(self) -> None:
        try:
            await self._refresh()
        finally:
            # A cell may fall silent while the database cannot be read, and computes may run where no conductor does.
            self._cells.learn_names(self._hosts.cells_heard)
            self._cells.look()
            self._tell_health()

    async def _refresh(self) -> None:
        written = {row.name: row for row in await self._store.cells()}
        self._cells.learn(written.values())
        behind = [
            row
            for row in self._cells.rows()
            if row.name not in written or row.heard_at - written[row.name].heard_at >= WRITTEN_AGAIN_AFTER
        ]
        if behind:
            async with self._store.transaction() as transaction:
                await transaction.save_cells(behind)

    def _tell_health(self) -> None:
        down = self._cells.down
        for name in self._cells.names:
            status = self._statuses.get(name)
            if status is None:
                status = self._statuses[name] = Status(f"cell {name}", is_beside=True)
            if name in down:
                status.failed(Unavailable(down[name]))
            else:
                status.well()


# How long the stages of boots took in the last minute and hour, over all workers that this process has heard.
#
# Workers tell counts since their start, by buckets. What a heartbeat has more than the one before it happened just before, and is added to
# the present slot of ten seconds. Buckets of several workers are added up, which percentiles of theirs could not be.


SLOT_S = 10
MINUTE, HOUR = 6, 360
BUCKETS = len(BUCKETS_S) + 1
# Of such a worker, all happened lately, though an earlier heartbeat was not heard.
JUST_STARTED = timedelta(minutes=1)
# A worker cannot have done so much between two heartbeats: they are wrong.
GROWTH_MAX = 10**9


class StageHistory:
    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._began_at = clock()
        # The last slot is not full yet, so there is one more than an hour has.
        self._counts = np.zeros((HOUR + 1, len(STAGES), BUCKETS), dtype=np.int64)
        self._slot = 0

    def hear(self, beat: WorkerAlive, before: WorkerAlive | None) -> None:
        """Add what this heartbeat has more than the one before it. Without that one, it is not known when it happened, unless the
        worker has just started.
        """
        if before is None and beat.told_at - beat.started_at > JUST_STARTED:
            return
        earlier = before.stages if before is not None and before.started_at == beat.started_at else {}
        self._go_on()
        for number, stage in enumerate(STAGES):
            now = beat.stages.get(stage.name, ())
            if stage.role == beat.role and 0 < len(now) <= BUCKETS:
                growth = _padded(now) - _padded(earlier.get(stage.name, ())[:BUCKETS])
                if ((growth >= 0) & (growth <= GROWTH_MAX)).all():
                    self._counts[self._slot % (HOUR + 1), number] += growth

    def times(self) -> tuple[StageTimes, ...]:
        """The stages that boots went through in the last hour."""
        self._go_on()
        minute, hour = self._last(MINUTE), self._last(HOUR)
        return tuple(
            StageTimes(stage=stage.name, minute=minute[number], hour=hour[number])
            for number, stage in enumerate(STAGES)
            if hour[number].count
        )

    def _last(self, slots: int) -> list[Durations]:
        """What happened in the present slot and this many before it."""
        slots = min(slots, self._slot)
        wanted = np.arange(self._slot - slots, self._slot + 1) % (HOUR + 1)
        seconds = self._age_s() - (self._slot - slots) * SLOT_S
        return [
            Durations(
                seconds=max(seconds, 0.0),
                count=sum(counts),
                p50_s=quantile(counts, 0.5),
                p99_s=quantile(counts, 0.99),
            )
            for counts in self._counts[wanted].sum(axis=0).tolist()
        ]

    def _age_s(self) -> float:
        return (self._clock() - self._began_at).total_seconds()

    def _go_on(self) -> None:
        """Begin the slot of the present time. If the clock was set back, the last slot goes on."""
        slot = max(int(self._age_s() // SLOT_S), self._slot)
        for each in range(max(self._slot + 1, slot - HOUR), slot + 1):
            self._counts[each % (HOUR + 1)] = 0
        self._slot = slot


def _padded(counts: tuple[int, ...]) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
    return np.array((*counts, *[0] * (BUCKETS - len(counts))), dtype=np.int64)


# The workers that this process has heard, each by its last heartbeat.


# Workers may be started again and again: so many of a role and cell are remembered, the latest ones, and each for so long.
WORKERS_MAX = 100
REMEMBERED_FOR = timedelta(minutes=15)


class WorkerRegistry:
    def __init__(self, down_after: timedelta, clock: Callable[[], datetime]) -> None:
        self._down_after = down_after
        self._clock = clock
        self.stages = StageHistory(clock)
        # By role and cell, and then by name, the latest heard last: whoever may speak for one cell can hide no other worker.
        self._heard: dict[tuple[str, str], dict[str, tuple[datetime, WorkerAlive]]] = {}

    def hear(self, beat: WorkerAlive, sender: str, speaks_for: str | None = None) -> None:
        """Note a heartbeat, unless its sender's role is not the one that it names, or it may not speak for its cell."""
        user = broker_user_of(sender)
        if speaks_for not in (None, beat.cell) or (user is not None and user.role != beat.role):
            return
        heard = self._heard.setdefault((beat.role, beat.cell), {})
        _, before = heard.pop(beat.worker, (None, None))
        self.stages.hear(beat, before)
        if not beat.has_ended:
            heard[beat.worker] = self._clock(), beat
        while len(heard) > WORKERS_MAX:
            del heard[next(iter(heard))]

    def everyone(self) -> tuple[WorkerHeard, ...]:
        """All workers, by role, cell and name. Their stages are left out: `stages` has them of all together."""
        now = self._clock()
        heard = [
            WorkerHeard(
                beat=structs.replace(beat, stages={}),
                heard_at=at,
                life="down" if is_silent(now - at, self._down_after) else "up",
            )
            for of_role in self._heard.values()
            for at, beat in of_role.values()
            if now - at <= REMEMBERED_FOR
        ]
        return tuple(sorted(heard, key=lambda each: (each.beat.role, each.beat.cell, each.beat.worker)))


def hear_cells(
    cells: CellRegistry,
    workers: WorkerRegistry,
    hosts: HostRegistry,
    consoles: ConsoleRelay,
    batch: Sequence[Received[Message]],
) -> None:
    """Give each message to the object that keeps what it says."""
    for heard in batch:
        match heard.message:
            case ConductorAlive() as beat:
                cells.hear(beat, heard.cell)
                hosts.hear_of_cell(beat.cell, heard.cell)
            case ConsoleTold() as told:
                consoles.hear(told)
            case WorkerAlive() as beat:
                workers.hear(beat, heard.sender, heard.cell)
                if beat.has_ended and beat.role == "conductor":
                    cells.ended(beat.worker, beat.cell, heard.cell)
            case _:
                hosts.hear(heard)
