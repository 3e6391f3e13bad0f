"""The workers that this process has heard, each by its last heartbeat."""

from collections.abc import Callable
from datetime import datetime, timedelta

from bus.messages.overview import WorkerAlive, WorkerHeard
from bus.topology import broker_user_of
from bus.workers.announcing import is_silent

# Workers may be started again and again: so many are remembered, the latest ones, and each for so long.
WORKERS_MAX = 1000
REMEMBERED_FOR = timedelta(minutes=15)


class WorkerRegistry:
    def __init__(self, down_after: timedelta, clock: Callable[[], datetime]) -> None:
        self._down_after = down_after
        self._clock = clock
        # The latest heard is the last.
        self._heard: dict[str, tuple[datetime, WorkerAlive]] = {}

    def hear(self, beat: WorkerAlive, sender: str, speaks_for: str | None = None) -> None:
        """Note a heartbeat, unless its sender's role is not the one that it names, or it may not speak for its cell."""
        user = broker_user_of(sender)
        if speaks_for not in (None, beat.cell) or (user is not None and user.role != beat.role):
            return
        self._heard.pop(beat.worker, None)
        if beat.has_ended:
            return
        now = self._clock()
        self._heard[beat.worker] = now, beat
        for name, (heard_at, _) in [*self._heard.items()]:
            if len(self._heard) <= WORKERS_MAX and now - heard_at <= REMEMBERED_FOR:
                break
            del self._heard[name]

    def everyone(self) -> tuple[WorkerHeard, ...]:
        """All workers, by role, cell and name."""
        now = self._clock()
        heard = [
            WorkerHeard(
                beat=beat, heard_at=at, life="down" if is_silent(now - at, self._down_after) else "up"
            )
            for at, beat in self._heard.values()
        ]
        return tuple(sorted(heard, key=lambda each: (each.beat.role, each.beat.cell, each.beat.worker)))
