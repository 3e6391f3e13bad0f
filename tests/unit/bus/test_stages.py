"""The stages of boots: which histograms they are read from, and estimates of percentiles."""

from bus.workers.heartbeats import stage_counts
from kit.metrics import Histogram, Metric

QUESTIONS = Metric("moor_question_seconds", "histogram", "Questions.", ("type",))
BOOTS = Metric("moor_boot_seconds", "histogram", "Boots.", ("cell",))


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
