"""The stages of boots: which histograms they are read from, and estimates of percentiles."""

import math

import pytest

from bus.workers.running import STAGES, stage_counts
from kit.metrics import BUCKETS_S, Histogram, Metric, quantile
from tools.pages.metrics_page import ALL

QUESTIONS = Metric("moor_question_seconds", "histogram", "Questions.", ("type",))
BOOTS = Metric("moor_boot_seconds", "histogram", "Boots.", ("cell",))


def test_every_stage_is_measured_by_a_histogram_of_a_role_that_has_it() -> None:
    histograms = {metric.name for metric in ALL if metric.kind == "histogram"}

    assert [stage.name for stage in STAGES if stage.metric not in histograms] == []


def test_a_worker_tells_the_stages_of_its_role_without_empty_buckets_at_the_end() -> None:
    questions, boots = Histogram(QUESTIONS), Histogram(BOOTS)
    questions.observe(0.02, 3, ("claim",))
    questions.observe(0.001, labels=("claims",))
    questions.observe(1.0, 100, ("changes.query",))
    # Of a machine whose clock is ahead.
    questions.observe(-9.0, labels=("changes.query",))
    boots.observe(0.001, labels=("c1",))

    assert stage_counts("scheduler", [questions, boots]) == {"claim": (1, 0, 3)}
    assert stage_counts("conductor", [questions, boots]) == {"boot": (1,)}
    assert stage_counts("placement", [questions, boots]) == {}
    assert questions.by_labels["changes.query",].total_s == 100.0


def test_a_worker_that_has_done_nothing_yet_tells_no_stages() -> None:
    assert stage_counts("scheduler", [Histogram(QUESTIONS)]) == {}


@pytest.mark.parametrize(
    ("counts", "share", "seconds"),
    [
        ((), 0.5, 0.0),
        ((0, 0), 0.5, 0.0),
        ((10,), 0.5, 0.0025),
        ((0, 0, 10), 0.5, 0.0175),
        ((90, 0, 10), 0.99, 0.0235),
        ((50, 50), 0.5, 0.005),
        ([0] * len(BUCKETS_S) + [1], 0.5, BUCKETS_S[-1]),
    ],
)
def test_a_percentile_is_estimated_within_its_bucket(
    counts: tuple[int, ...], share: float, seconds: float
) -> None:
    assert math.isclose(quantile(counts, share), seconds, abs_tol=1e-9)
