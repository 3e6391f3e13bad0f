"""How long the stages of boots took in the last minute and hour, over all workers that this process has heard.

Workers tell counts since their start, by buckets. What a heartbeat has more than the one before it happened just before, and is added to
the present slot of ten seconds. Buckets of several workers are added up, which percentiles of theirs could not be.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

import numpy as np

from bus.measuring import BUCKETS_S, quantile
from bus.messages.overview import Durations, StageTimes, WorkerAlive
from bus.stages import STAGES

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
