"""The workers that this process has heard, each by its last heartbeat."""

from collections.abc import Callable
from datetime import datetime, timedelta

from msgspec import structs

from bus.messages.overview import WorkerAlive, WorkerHeard
from bus.topology import broker_user_of
from bus.workers.announcing import is_silent
from scheduler_worker.cells.stage_times import StageHistory

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
