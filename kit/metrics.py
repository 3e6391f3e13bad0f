"""Metrics: what each is called and says, and the numbers of one process.

A room defines its metrics as values (`METRICS` in its `metrics.py`), and the page metrics of the docs is made from these. A part of a
worker lists its numbers in its attribute `readings`. They are read when the page `/metrics` is asked for; those of
`watched_readings` then only, since they are made for readers of the page.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Literal

from msgspec import Struct

# The values of a metric's labels, in the order in which the metric names them.
Labels = tuple[str, ...]

# From a parcel on an idle bus to a deploy of bare metal. Few buckets: each is a series for every value of a label.
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
# Label values that come from other programs, such as resource classes, are limited to so many; the others are one value.
VALUES_MAX = 100
OTHERS = "(others)"


class Metric(Struct, frozen=True):
    """The name, the kind and the meaning of a metric. The page adds `_total` to the name of a counter, and to that of a
    histogram `_bucket`, `_sum` and `_count`.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    labels: Labels = ()

    def numbers(self, by_labels: Mapping[Labels, float]) -> "Numbers":
        return Numbers(self, by_labels)


class Numbers(Struct, frozen=True):
    """The numbers of a counter or gauge in one process, by the values of its labels."""

    metric: Metric
    by_labels: Mapping[Labels, float]


class Observed(Struct):
    """How many observations fell into each bucket of a histogram, and their sum. The last bucket has no upper limit."""

    counts: list[int]
    total_s: float = 0.0

    def add(self, other: "Observed") -> None:
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total_s += other.total_s


class Histogram:
    """Durations of one metric, by the values of its labels.

    The client library's histogram takes one observation a call, and a lock each time. A parcel has many messages of one
    age, which are one call here.
    """

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.by_labels: dict[Labels, Observed] = {}

    def observe(self, seconds: float, count: int = 1, labels: Labels = ()) -> None:
        """Add `count` observations of so many seconds. Clocks of two machines differ: a negative duration counts as 0."""
        # Not by a call of `_of`: it would cost as much as the rest, and each parcel has several observations.
        observed = self.by_labels.get(labels) or self._of(labels)
        if seconds < 0:
            seconds = 0.0
        observed.counts[bisect_left(BUCKETS_S, seconds)] += count
        observed.total_s += seconds * count

    def _of(self, labels: Labels) -> Observed:
        observed = self.by_labels.get(labels)
        if observed is None:
            observed = self.by_labels[labels] = Observed([0] * (len(BUCKETS_S) + 1))
        return observed


def quantile(counts: Sequence[int], share: float) -> float:
    """The duration in seconds below which this share of the observations lies, as Prometheus estimates it: those of a bucket are
    spread evenly over it. Of the last bucket only its beginning is known. 0 without observations.
    """
    sums = [*accumulate(counts)]
    if not sums or sums[-1] <= 0:
        return 0.0
    rank = share * sums[-1]
    bucket = bisect_left(sums, rank)
    if bucket >= len(BUCKETS_S):
        return BUCKETS_S[-1]
    begin_s = BUCKETS_S[bucket - 1] if bucket else 0.0
    return begin_s + (BUCKETS_S[bucket] - begin_s) * (rank - sums[bucket] + counts[bucket]) / counts[bucket]


Readings = Sequence[Numbers | Histogram]


def limited(names: Sequence[str], values_max: int = VALUES_MAX) -> dict[str, str]:
    """The label value of each of these names: itself for the first ones, and one value for all others."""
    return {name: name if place < values_max else OTHERS for place, name in enumerate(names)}
