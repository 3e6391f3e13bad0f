"""A worker's counters for Prometheus. They are read from its parts when the page is requested, so the hot path does no
extra work.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bus.operating.health import Health
from bus.parts import Counts, PartState, every_part, statuses
from bus.workers.station import Station
from bus.workers.worker import Worker

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Family = type[CounterMetricFamily | GaugeMetricFamily]

# Per consumed queue. Several workers on one queue are summed.
_OF_QUEUES: tuple[tuple[Family, str, str, Callable[["Worker[object]"], int]], ...] = (
    (
        CounterMetricFamily,
        "moor_messages_handled",
        "Messages that were handled and saved.",
        lambda worker: worker.handled,
    ),
    (CounterMetricFamily, "moor_batches", "Batches they were handled in.", lambda worker: worker.batches),
    (
        CounterMetricFamily,
        "moor_messages_put_back",
        "Messages that were put back to be tried again.",
        lambda worker: worker.intake.put_back,
    ),
    (
        CounterMetricFamily,
        "moor_messages_buried",
        "Messages that became dead letters.",
        lambda worker: worker.intake.buried,
    ),
    (
        CounterMetricFamily,
        "moor_parcels_redelivered",
        "Parcels that had been delivered before.",
        lambda worker: worker.intake.redelivered,
    ),
    (
        CounterMetricFamily,
        "moor_interruptions",
        "Times that consuming was interrupted.",
        lambda worker: worker.intake.interruptions,
    ),
    (
        GaugeMetricFamily,
        "moor_parcels_in_hand",
        "Parcels that are not acknowledged yet.",
        lambda worker: worker.intake.in_hand,
    ),
    (
        GaugeMetricFamily,
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


class Metrics(Collector):
    def __init__(self, health: Health) -> None:
        self._health = health
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def page(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        yield from self._about()
        yield from self._of_parts()
        parts = [*every_part(self._health.parts)]
        workers = [part for part in parts if isinstance(part, Worker)]
        for family, name, meaning, read in _OF_QUEUES:
            yield _summed(
                family, name, meaning, "queue", ((each.intake.queue, read(each)) for each in workers)
            )
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
        runs = [(each.name, each.runs) for each in known]
        yield _summed(CounterMetricFamily, "moor_part_runs", "Runs of a part.", "part", runs)
        failures = [(each.name, each.failures) for each in known]
        yield _summed(
            CounterMetricFamily, "moor_part_failures", "Operational failures of a part.", "part", failures
        )
        failing = {each.name for each in known if each.state is PartState.FAILING}
        yield _summed(
            GaugeMetricFamily,
            "moor_part_failing",
            "Whether a part fails now.",
            "part",
            [(name, int(name in failing)) for name in dict.fromkeys(each.name for each in known)],
        )


def _of_rooms(parts: Sequence[object]) -> Iterator[Metric]:
    """The metrics that the parts of a worker define themselves (`Counts`). Equal metrics of several parts are summed."""
    by_metric: dict[str, list[Counts]] = {}
    for part in parts:
        for counts in getattr(part, "counts", ()):
            if isinstance(counts, Counts):
                by_metric.setdefault(counts.metric, []).append(counts)
    for metric, found in by_metric.items():
        pairs = (pair for counts in found for pair in counts.by_value.items())
        yield _summed(CounterMetricFamily, metric, found[0].meaning, found[0].label, pairs)


def _summed(
    family: Family, name: str, meaning: str, label: str, counts: Iterable[tuple[str, int]]
) -> CounterMetricFamily | GaugeMetricFamily:
    """A metric with one number for each value of its label: the sum of that value's counts.

    `counts` may have a value several times, such as a queue that several parts of this worker read.
    """
    sums: Counter[str] = Counter()
    for value, count in counts:
        sums[value] += count
    metric = family(name, meaning, labels=(label,))
    for value, count in sums.items():
        metric.add_metric((value,), count)
    return metric
