"""The site's page metrics, from the metrics that the code defines."""

from collections.abc import Iterator, Sequence

from bus.workers import metrics as of_workers
from cell_conductor import handlers as of_conductors
from ironic_sync import applying as of_daemons
from keeper import metrics as of_keepers
from kit import health_server as of_processes
from kit.metrics import BUCKETS_S, Metric
from placement_worker.api import service as of_placement_api
from scheduler_worker import metrics as of_schedulers

INTRODUCTION = f"""# Metrics

This page is made from the code. Every worker serves its metrics for Prometheus at `/metrics` of its
`--health-listen` address ([commands.md](commands.md#workers-health-metrics-logs)); Placement's HTTP API also serves those of its requests at
its own address. A label value is short: a queue, a cell, a state, never an id. Label values that come from other programs are at most 100
for each metric; the others are counted together, as `(others)`.

A duration is a histogram with the buckets {", ".join(f"{limit:g}" for limit in BUCKETS_S)} s, so Prometheus has
`NAME_bucket`, `NAME_sum` and `NAME_count`. A counter ends in `_total`. Durations between machines compare their clocks: keep these in step.

Watching costs little. A worker's counts are read when the page is asked for, and the messages of a parcel are measured by the first of them. A
scrape takes 2 to 5 ms of CPU: every 15 s, that is 0.03 % of a core for a worker. To count 10,000 hosts and 100,000 instances takes 5 ms in one scheduler
and 80 ms in PostgreSQL, every 30 s: 0.02 % and 0.27 % of a core (measured on 2026-11-24 on two shared cores).
[deploy/grafana](../deploy/grafana/moorage.json) has a dashboard, and [deploy/prometheus](../deploy/prometheus/) has alerts and an example of a
configuration.
"""
OF_CLOUD = """One of the schedulers whose metrics are read counts the whole cloud, every 5 s at most. The others show none of these,
so a sum over all workers is right; when another scheduler takes over, both may show them for one scrape, and `max by (...)` is exact then, too. A cloud
that nobody watches is not counted, and the first page that is read lacks them.

To count instances reads the state of every row. There is no index by state, on purpose: every boot would pay for it, with more than all counts
together. The pause after a count is at least a hundred times as long as the count."""
OF_WORKERS = """Where a boot spends its time: its stages are `moor_accept_seconds`, `moor_choice_seconds`, `moor_question_seconds` of type `claim`,
`moor_place_seconds` and `moor_host_build_seconds`, as `moor status` shows them. For each queue, there are the wait and the handling. A boot passes `scheduler.requests`, `placement.claims`,
`conductor.CELL.work`, the host (`moor_host_build_seconds`), `conductor.CELL.work` again, and `scheduler.events`."""
SECTIONS: Sequence[tuple[str, str, Sequence[Metric]]] = (
    ("The whole cloud", OF_CLOUD, of_schedulers.OF_CLOUD),
    ("Schedulers", "", of_schedulers.METRICS),
    ("Conductors", "", of_conductors.METRICS),
    ("Keepers", "", of_keepers.METRICS),
    ("Bare-metal daemons", "", of_daemons.METRICS),
    ("Every worker", OF_WORKERS, (*of_processes.METRICS, *of_workers.METRICS)),
    ("Placement's HTTP API", "Its buckets begin at 1 ms and end at 10 s.", of_placement_api.METRICS),
)
ALL = tuple(metric for _, _, metrics in SECTIONS for metric in metrics)


def shown_name(metric: Metric) -> str:
    return f"{metric.name}_total" if metric.kind == "counter" else metric.name


def page() -> str:
    return "\n".join((INTRODUCTION, *(line for each in SECTIONS for line in _section(*each))))


def _section(title: str, about: str, metrics: Sequence[Metric]) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    if about:
        yield about
        yield ""
    yield "| metric | kind | labels | meaning |"
    yield "|---|---|---|---|"
    for metric in metrics:
        labels = ", ".join(f"`{each}`" for each in metric.labels)
        yield f"| `{shown_name(metric)}` | {metric.kind} | {labels} | {metric.meaning} |"
    yield ""
