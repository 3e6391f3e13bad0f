"""A worker's counters for Prometheus. They are read from its parts when the page is requested, so the hot path does no
extra work.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bus.operating.health import Health
from bus.parts import Counts, State, every_part, statuses
from bus.workers.station import Station
from bus.workers.worker import Worker

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# Per consumed queue. Several workers on one queue are summed.
_OF_QUEUES: tuple[tuple[str, str, Callable[["Worker[object]"], int]], ...] = (
    ("moor_messages_handled", "Messages that were handled and saved.", lambda worker: worker.handled),
    ("moor_batches", "Batches they were handled in.", lambda worker: worker.batches),
    ("moor_messages_put_back", "Messages that were put back to be tried again.", lambda w: w.intake.put_back),
    ("moor_messages_buried", "Messages that became dead letters.", lambda worker: worker.intake.buried),
    ("moor_parcels_redelivered", "Parcels that had been delivered before.", lambda w: w.intake.redelivered),
    (
        "moor_interruptions",
        "Times that consuming was interrupted.",
        lambda worker: worker.intake.interruptions,
    ),
)
_WAITING_OF_QUEUES: tuple[tuple[str, str, Callable[["Worker[object]"], int]], ...] = (
    ("moor_parcels_in_hand", "Parcels that are not acknowledged yet.", lambda worker: worker.intake.in_hand),
    (
        "moor_burials_waiting",
        "Messages that the dead letters have not taken yet.",
        lambda worker: worker.intake.burials_waiting,
    ),
)
_OF_STATIONS: tuple[tuple[str, str, Callable[[Station], int]], ...] = (
    ("moor_connections_made", "Connections made to brokers.", lambda station: station.connections_made),
    ("moor_parcels_sent", "Parcels that brokers have answered.", lambda s: s.publisher.parcels_sent),
    ("moor_parcels_held_back", "Times that a parcel had to be sent again.", lambda s: s.publisher.held_back),
    ("moor_answers_dropped", "Answers whose asker was gone.", lambda s: s.publisher.answers_dropped),
    ("moor_questions_asked_again", "Questions that were asked again.", lambda station: station.asked_again),
)


class Metrics:
    def __init__(self, health: Health) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Parts(health))
        ProcessCollector(registry=self._registry)

    def page(self) -> bytes:
        return generate_latest(self._registry)


class _Parts(Collector):
    def __init__(self, health: Health) -> None:
        self._health = health

    def describe(self) -> Iterator[Metric]:
        """Nothing: names need not be checked before an event loop exists to read the parts in."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield from self._about()
        yield from self._of_parts()
        parts = [*every_part(self._health.parts)]
        workers = [part for part in parts if isinstance(part, Worker)]
        for name, meaning, read in _OF_QUEUES:
            yield _counted(name, meaning, "queue", ((each.intake.queue, read(each)) for each in workers))
        for name, meaning, read in _WAITING_OF_QUEUES:
            held = GaugeMetricFamily(name, meaning, labels=("queue",))
            for queue, count in _sums((each.intake.queue, read(each)) for each in workers).items():
                held.add_metric((queue,), count)
            yield held
        yield from _of_rooms(parts)
        stations = [part for part in parts if isinstance(part, Station)]
        for name, meaning, of_station in _OF_STATIONS:
            yield CounterMetricFamily(name, meaning, value=sum(map(of_station, stations)))
        yield GaugeMetricFamily(
            "moor_messages_waiting",
            "Messages that wait to be sent or confirmed.",
            value=sum(station.publisher.waiting for station in stations),
        )

    def _about(self) -> Iterator[Metric]:
        about = self._health.about
        info = GaugeMetricFamily(
            "moor_worker_info", "This worker's role, version and cell.", labels=("role", "version", "cell")
        )
        info.add_metric((about.role, about.version, about.cell), 1)
        yield info
        yield GaugeMetricFamily(
            "moor_ready", "Whether this worker is ready.", value=float(not self._health.awaits())
        )

    def _of_parts(self) -> Iterator[Metric]:
        known = statuses(self._health.parts)
        yield _counted(
            "moor_part_runs", "Runs of a part.", "part", ((each.name, each.runs) for each in known)
        )
        yield _counted(
            "moor_part_failures",
            "Operational failures of a part.",
            "part",
            ((each.name, each.failures) for each in known),
        )
        failing = GaugeMetricFamily("moor_part_failing", "Whether a part fails now.", labels=("part",))
        for name, count in _sums((each.name, int(each.state is State.FAILING)) for each in known).items():
            failing.add_metric((name,), min(count, 1))
        yield failing


def _of_rooms(parts: Sequence[object]) -> Iterator[Metric]:
    """The rooms' own counters. Several parts with one metric are summed."""
    by_metric: dict[str, list[Counts]] = {}
    for part in parts:
        for counts in getattr(part, "counts", ()):
            if isinstance(counts, Counts):
                by_metric.setdefault(counts.metric, []).append(counts)
    for metric, found in by_metric.items():
        pairs = (pair for counts in found for pair in counts.by_value.items())
        yield _counted(metric, found[0].meaning, found[0].label, pairs)


def _counted(name: str, meaning: str, label: str, counts: Iterator[tuple[str, int]]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, meaning, labels=(label,))
    for value, count in _sums(counts).items():
        family.add_metric((value,), count)
    return family


def _sums(counts: Iterator[tuple[str, int]]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for value, count in counts:
        sums[value] += count
    return sums
