"""Prometheus metrics of requests: counts and times, by route and never by path, since there are millions of paths."""

from functools import lru_cache
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from bus.measuring import Metric as Described

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PATH: Final = "/metrics"

REQUESTS = Described(
    "moor_placement_http_requests", "counter", "Requests that were answered.", ("method", "route", "status")
)
SECONDS = Described(
    "moor_placement_http_request_seconds",
    "histogram",
    "From a request's headers to the last of its answer.",
    ("method", "route"),
)
UNDER_WAY = Described("moor_placement_http_requests_under_way", "gauge", "Requests not yet answered.")
METRICS = (REQUESTS, SECONDS, UNDER_WAY)

_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class HttpMetrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            REQUESTS.name,
            REQUESTS.meaning,
            REQUESTS.labels,
            registry=self._registry,
        )
        self._seconds = Histogram(
            SECONDS.name,
            SECONDS.meaning,
            SECONDS.labels,
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        # A plain counter that the application changes: a Gauge would take a lock each time.
        self.under_way = 0
        Gauge(UNDER_WAY.name, UNDER_WAY.meaning, registry=self._registry).set_function(lambda: self.under_way)
        # To look up a label's child takes a lock and a tuple of strings; there are few, so they are cached.
        self._child = lru_cache(maxsize=1024)(self._made)

    def answered(self, method: str, route: str, status: int, took_s: float) -> None:
        count, seconds = self._child(method, route, status)
        count.inc()
        seconds.observe(took_s)

    def page(self) -> bytes:
        return generate_latest(self._registry)

    def _made(self, method: str, route: str, status: int) -> tuple[Counter, Histogram]:
        return self._requests.labels(method, route, str(status)), self._seconds.labels(method, route)
