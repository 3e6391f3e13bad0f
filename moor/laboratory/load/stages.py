"""How long the stages of boots took: as the workers measured them, and by the rows of the instances.

The workers' histograms have all stages that `moor status` shows, but only so many buckets: a percentile is estimated within its bucket.
The rows and the events have the exact times of a few moments of each boot.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from bus.clock import now
from bus.measuring import BUCKETS_S, quantile
from bus.message import Message
from bus.messages.build import InstanceDetails, InstanceId
from bus.messages.overview import WorkerAlive
from bus.operating.worker_beats import WORKER_BEAT_S
from bus.stages import STAGES
from moor.laboratory.load.orders import Booted
from moor.laboratory.load.results import Latency, StageLatency, latency_of

WORKER_BEATS = "worker.beat.#"
# A heartbeat may be late by as much as the machine is busy.
PATIENCE_S = 3 * WORKER_BEAT_S
ROLES = {stage.role for stage in STAGES}


class WorkerStages:
    """The last heartbeat of each worker that measures stages."""

    def __init__(self) -> None:
        self._beats: dict[str, WorkerAlive] = {}
        self._heard = asyncio.Event()

    def hear(self, message: Message) -> None:
        if isinstance(message, WorkerAlive) and message.role in ROLES:
            self._beats[message.worker] = message
            self._heard.set()

    async def until_told(self, workers: int) -> bool:
        """Wait until so many workers have told what they did until now. False if they have not within PATIENCE_S."""
        since = now()
        try:
            async with asyncio.timeout(PATIENCE_S):
                while sum(beat.told_at > since for beat in self._beats.values()) < workers:
                    self._heard.clear()
                    await self._heard.wait()
        except TimeoutError:
            return False
        return True

    def latencies(self) -> dict[str, StageLatency]:
        """Of each stage that boots went through: how long it took, over all workers."""
        found = {}
        for stage in STAGES:
            told = [
                beat.stages.get(stage.name, ()) for beat in self._beats.values() if beat.role == stage.role
            ]
            counts = [
                sum(each[bucket] for each in told if bucket < len(each))
                for bucket in range(len(BUCKETS_S) + 1)
            ]
            if any(counts):
                found[stage.name] = StageLatency(count=sum(counts), latency_ms=_latency_of(counts))
        return found


def _latency_of(counts: Sequence[int]) -> Latency:
    last = max(bucket for bucket, count in enumerate(counts) if count)

    def at(share: float) -> float:
        return 1000 * quantile(counts, share)

    longest_s = BUCKETS_S[min(last, len(BUCKETS_S) - 1)]
    return Latency(p50=at(0.5), p90=at(0.9), p99=at(0.99), p999=at(0.999), max=1000 * longest_s)


def steps_of(
    booted: Iterable[Booted], details: Mapping[InstanceId, InstanceDetails], clock_to_time_s: float
) -> dict[str, Latency]:
    """How long the boots of active instances took between the moments that rows and events have, from when they were due.

    `clock_to_time_s` added to the run's clock gives the time of day.
    """
    steps: dict[str, list[float]] = {"accepted": [], "placed": [], "active": [], "heard": []}
    for each in booted:
        row = details.get(each.state.id)
        moments = (
            each.due_s + clock_to_time_s,
            _time_s(row.accepted_at if row else None),
            _time_s(row.placed_at if row else None),
            _time_s(each.state.changed_at),
            each.heard_s + clock_to_time_s,
        )
        if each.state.state == "active" and all(moments):
            for name, began_s, ended_s in zip(steps, moments[:-1], moments[1:], strict=True):
                # Clocks of two machines differ.
                steps[name].append(max(0.0, ended_s - began_s))
    return {name: latency_of(some) for name, some in steps.items() if some}


def _time_s(moment: datetime | None) -> float:
    return moment.timestamp() if moment else 0.0
