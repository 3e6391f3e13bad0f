"""Every metric is explained, and is seen by a test."""

import re
from pathlib import Path

from kit.metrics import OTHERS, VALUES_MAX, limited
from tools.pages.metrics_page import ALL, shown_name

TOP = Path(__file__).parents[2]
WORDS_MAX = 60


def test_every_metric_has_a_plain_name_short_labels_and_a_meaning() -> None:
    names = [metric.name for metric in ALL]
    assert len(names) == len(set(names))
    assert len(names) > 40
    wrong = [
        metric
        for metric in ALL
        if not re.fullmatch(r"moor_[a-z_]+[a-z]", metric.name)
        or metric.name.endswith("_total")
        or (
            (metric.kind == "histogram") is not metric.name.endswith("_seconds")
            and metric.name != "moor_waiting_oldest_seconds"
        )
        or not {*metric.labels}.isdisjoint({"id", "instance", "request", "host", "node"})
        or not re.fullmatch(r"[A-Z1].*\.", metric.meaning)
        or len(metric.meaning.split()) > WORDS_MAX
    ]
    assert wrong == []


def test_every_metric_is_seen_by_a_test_on_a_page() -> None:
    texts = [path.read_text() for path in (TOP / "tests").rglob("test_*.py") if path != Path(__file__)]

    def is_seen(name: str) -> bool:
        return any(re.search(rf"\b{name}(_count|_bucket|_sum)?\b", text) for text in texts)

    assert [metric.name for metric in ALL if not is_seen(shown_name(metric))] == []


def test_values_of_other_programs_are_limited() -> None:
    names = [f"CUSTOM_{number}" for number in range(VALUES_MAX + 2)]
    shown = limited(names)
    assert shown["CUSTOM_7"] == "CUSTOM_7"
    assert {shown[name] for name in names[VALUES_MAX:]} == {OTHERS}
