"""A worker's health, readiness and metrics over HTTP, for supervisors and monitoring.

    /healthz    200 while the event loop runs and no part has ended; 503 otherwise. The body names the failing parts.
    /readyz     200 when the worker is connected, consumes and has what it needs; else 503, and what it waits for.
    /metrics    counters for Prometheus, read from the parts on each request, so the hot path does no extra work.

It decides nothing. Only processes with an address for it load this, since it loads uvicorn, Starlette and Prometheus's client.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import prometheus_client.core as prometheus
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kit.health import HEALTH_SETTING, Health, read_health_address
from kit.http_server import HttpServer
from kit.metrics import BUCKETS_S, Histogram, Labels, Metric, Numbers, Observed
from kit.parts import PartState, Status, every_part, statuses

_PART = ("part",)
INFO = Metric(
    "moor_worker_info", "gauge", "1, with this worker's role, version and cell.", ("role", "version", "cell")
)
READY = Metric("moor_ready", "gauge", "Whether this worker is ready: 1 or 0.")
PART_RUNS = Metric("moor_part_runs", "counter", "Runs of a part.", _PART)
PART_FAILURES = Metric("moor_part_failures", "counter", "Operational failures of a part.", _PART)
PART_FAILING = Metric("moor_part_failing", "gauge", "Whether a part fails now: 1 or 0.", _PART)
METRICS = (INFO, READY, PART_RUNS, PART_FAILURES, PART_FAILING)


class HealthServer(HttpServer):
    """Serves a worker's health and metrics over HTTP. The constructor binds the address; may raise BadAddressError."""

    def __init__(self, address: str, health: Health) -> None:
        super().__init__(_app(health), read_health_address(address), HEALTH_SETTING, drain_s_max=1)


def _app(health: Health) -> Starlette:
    metrics = Metrics(health)

    async def healthz(_: Any) -> JSONResponse:
        told = {"status": "ok" if health.is_well else "a part has ended", "role": health.about.role}
        return JSONResponse(told | {"failing": health.failing()}, 200 if health.is_well else 503)

    async def readyz(_: Any) -> JSONResponse:
        awaited = health.awaits()
        told = {"status": "not ready" if awaited else "ready", "role": health.about.role}
        return JSONResponse(told | {"awaits": dict(awaited)}, 503 if awaited else 200)

    async def page(_: Any) -> Response:
        return Response(metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return Starlette(routes=[Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", page)])


class Metrics(Collector):
    def __init__(self, health: Health) -> None:
        self._health = health
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def page(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[prometheus.Metric]:
        parts = [*every_part(self._health.parts)]
        numbers: defaultdict[Metric, Counter[Labels]] = defaultdict(Counter)
        durations: defaultdict[Metric, dict[Labels, Observed]] = defaultdict(dict)
        for each in (*self._about(), *_of_statuses(statuses(self._health.parts)), *_of_parts(parts)):
            if isinstance(each, Histogram):
                _add(durations[each.metric], each.by_labels)
            else:
                # It adds up what several parts say under equal labels.
                numbers[each.metric].update(each.by_labels)
        for metric, by_labels in numbers.items():
            yield _numbers(metric, by_labels)
        for metric, observed in durations.items():
            yield _histogram(metric, observed)

    def _about(self) -> Iterator[Numbers]:
        about = self._health.about
        yield INFO.numbers({(about.role, about.version, about.cell): 1})
        yield READY.numbers({(): float(not self._health.awaits())})


def _of_statuses(known: Sequence[Status]) -> Iterator[Numbers]:
    for each in known:
        yield PART_RUNS.numbers({(each.name,): each.runs})
        yield PART_FAILURES.numbers({(each.name,): each.failures})
    failing = {each.name for each in known if each.state is PartState.FAILING}
    yield PART_FAILING.numbers({(each.name,): each.name in failing for each in known})


def _of_parts(parts: Sequence[object]) -> Iterator[Numbers | Histogram]:
    for part in parts:
        for name in ("readings", "watched_readings"):
            for each in getattr(part, name, ()):
                if isinstance(each, Numbers | Histogram):
                    yield each


def _add(known: dict[Labels, Observed], more: Mapping[Labels, Observed]) -> None:
    """Add these observations to the known ones: several parts may have one metric, with equal labels."""
    for labels, observed in more.items():
        known.setdefault(labels, Observed([0] * len(observed.counts))).add(observed)


def _numbers(metric: Metric, by_labels: Mapping[Labels, float]) -> prometheus.Metric:
    is_counter = metric.kind == "counter"
    kind = prometheus.CounterMetricFamily if is_counter else prometheus.GaugeMetricFamily
    family = kind(metric.name, metric.meaning, labels=metric.labels)
    for labels, number in by_labels.items():
        family.add_metric(labels, number)
    return family


def _histogram(metric: Metric, by_labels: Mapping[Labels, Observed]) -> prometheus.Metric:
    family = prometheus.HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
    for labels, observed in by_labels.items():
        family.add_metric(labels, [*_buckets(observed.counts)], observed.total_s)
    return family


def _buckets(counts: Iterable[int]) -> Iterator[tuple[str, float]]:
    """The buckets as Prometheus has them: each counts all observations up to its limit."""
    return zip((*map(str, BUCKETS_S), "+Inf"), accumulate(counts), strict=True)
