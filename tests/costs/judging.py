"""Compares costs with the committed figures."""

import tomllib
from collections.abc import Mapping
from datetime import date
from pathlib import Path

import msgspec
from msgspec import Struct

BASELINE = Path(__file__).parent / "baseline.toml"
# By how much a cost may exceed its figure. Messages and rows are counted exactly, and vary only because a batch may be
# cut in two. Calls vary with the batches that a run happens to make, and CPU time with the machine.
LIMITS = {"messages": 1.01, "rows": 1.05, "transactions": 1.5, "calls": 1.2, "modules": 1.2, "cpu": 2.0}
# A cost that has fallen below this part of its figure could grow back unseen.
LEAST = 0.8


class Figure(Struct, frozen=True, forbid_unknown_fields=True):
    """What an operation costs, since when, and why it costs more or less than before."""

    operation: str
    what: str
    value: float
    since: date
    why: str


class _Baseline(Struct, frozen=True, forbid_unknown_fields=True):
    figure: list[Figure]


def baseline(text: str | None = None) -> list[Figure]:
    read = tomllib.loads(BASELINE.read_text() if text is None else text)
    return msgspec.convert(read, _Baseline).figure


def problems(operation: str, costs: Mapping[str, float], figures: list[Figure]) -> list[str]:
    """The faults of this operation's costs, and of its figures, in words; empty if it has none."""
    known = {each.what: each for each in figures if each.operation == operation}
    found = [
        f"{operation}: {name} has no figure, and is {value:.3g}"
        for name, value in costs.items()
        if name not in known
    ]
    for name, figure in known.items():
        value, limit = costs.get(name), LIMITS[name]
        if value is None:
            found.append(f"{operation}: {name} has a figure, and is not measured")
        elif value > figure.value * limit:
            found.append(
                f"{operation}: {value:.4g} {name}, and the figure is {figure.value:.4g} (at most {limit} times as many)"
            )
        elif name != "cpu" and value < figure.value * LEAST:
            found.append(f"{operation}: only {value:.4g} {name}: lower the figure, {figure.value:.4g}")
    return found
