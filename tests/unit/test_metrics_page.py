"""Every metric is explained."""

import re

from kit.metrics import OTHERS, VALUES_MAX, limited
from tools.pages.metrics_page import ALL

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


def test_values_of_other_programs_are_limited() -> None:
    names = [f"CUSTOM_{number}" for number in range(VALUES_MAX + 2)]
    shown = limited(names)
    assert shown["CUSTOM_7"] == "CUSTOM_7"
    assert {shown[name] for name in names[VALUES_MAX:]} == {OTHERS}
