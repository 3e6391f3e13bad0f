"""An operation costs what it did: no change makes one dearer unseen."""

import pytest

from tests.costs.judging import LIMITS, baseline, problems
from tests.costs.operations import OPERATIONS, START, costs_of

FIGURES = """
[[figure]]
operation = "boot"
what = "calls"
value = 100.0
since = 2026-11-23
why = "first measured"
"""


@pytest.mark.parametrize("operation", [*OPERATIONS, START])
async def test_an_operation_costs_what_it_did(operation: str) -> None:
    found = problems(operation, await costs_of(operation), baseline())
    if any(" cpu," in each for each in found):
        # Other programs on the machine may have made it dearer.
        found = problems(operation, await costs_of(operation), baseline())
    assert found == []


def test_every_figure_is_of_an_operation_that_is_measured() -> None:
    assert {each.operation for each in baseline()} == {*OPERATIONS, START}
    assert {each.what for each in baseline()} <= {*LIMITS}


@pytest.mark.parametrize(
    ("costs", "told"),
    [
        # A cost may differ a little.
        *(({"calls": calls}, "") for calls in (81.0, 100.0, 119.0)),
        ({"calls": 121.0}, "boot: 121 calls, and the figure is 100 (at most 1.2 times as many)"),
        ({"calls": 79.0}, "boot: only 79 calls: lower the figure, 100"),
        ({}, "boot: calls has a figure, and is not measured"),
        ({"calls": 100.0, "rows": 6.0}, "boot: rows has no figure, and is 6"),
    ],
)
def test_a_problem_says_what_is_dearer_than_before(costs: dict[str, float], told: str) -> None:
    assert problems("boot", costs, baseline(FIGURES)) == ([told] if told else [])
