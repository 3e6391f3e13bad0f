"""A worker's process tells schedulers that it lives, of which release it is, and what it has done: for overviews.

Everything is read from its parts when the heartbeat is due, so the hot path does no extra work.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress

from bus.errors import Operational
from bus.measuring import Histogram, Numbers
from bus.messages.overview import COUNTED_MAX, WorkerAlive
from bus.operating.health import Health
from bus.parts import every_part
from bus.stages import stage_counts
from bus.topology import CELL0
from bus.workers.announcing import Heartbeats
from bus.workers.publisher import now
from bus.workers.station import Station
from bus.workers.worker import Worker

WORKER_BEAT_S = 5.0
TEXT_LENGTH_MAX = 1000
FAREWELL_S_MAX = 1.0


class WorkerBeats(Heartbeats):
    """The heartbeats of a worker whose parts `health` knows, sent by this station."""

    def __init__(self, health: Health, station: Station) -> None:
        self._health = health
        self._station = station
        self._started_at = now()

        async def beats() -> Sequence[WorkerAlive]:
            return (self.beat(),)

        super().__init__("tell that this worker lives", station.publisher, beats, WORKER_BEAT_S)

    async def say_farewell(self) -> None:
        """Tell that this worker ends as it should. If the broker is away, it is found missing instead."""
        with suppress(Operational):
            await self._station.publisher.send_within(FAREWELL_S_MAX, (self.beat(has_ended=True),))

    def beat(self, *, has_ended: bool = False) -> WorkerAlive:
        about, parts = self._health.about, [*every_part(self._health.parts)]
        loops = [part for part in parts if isinstance(part, Worker)]
        return WorkerAlive(
            cell=about.cell or CELL0,
            worker=self._station.name,
            role=about.role,
            release=about.version,
            started_at=self._started_at,
            told_at=now(),
            awaits=_in_words(self._health.awaits().items()),
            fails=_in_words((str(each["part"]), str(each["last_error"])) for each in self._health.failing()),
            handled=_summed((loop.intake.queue, loop.handled) for loop in loops),
            counts=_summed(_counts_of(parts)),
            stages=stage_counts(about.role, _histograms_of(parts)),
            buried=sum(loop.intake.buried for loop in loops),
            has_ended=has_ended,
        )


def _counts_of(parts: Iterable[object]) -> Iterable[tuple[str, int]]:
    for part in parts:
        for numbers in getattr(part, "readings", ()):
            if isinstance(numbers, Numbers) and numbers.metric.kind == "counter":
                name = numbers.metric.name.removeprefix("moor_")
                for labels, count in numbers.by_labels.items():
                    if count:
                        yield ".".join((name, *labels))[:255], int(count)


def _histograms_of(parts: Iterable[object]) -> Iterable[Histogram]:
    for part in parts:
        yield from (each for each in getattr(part, "readings", ()) if isinstance(each, Histogram))


def _summed(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for name, count in counts:
        if name in sums or len(sums) < COUNTED_MAX:
            sums[name] = sums.get(name, 0) + count
    return sums


def _in_words(troubles: Iterable[tuple[str, str]]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in troubles)[:TEXT_LENGTH_MAX]
