"""Results for people, as one table per section, and for programs, as JSON."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from tools.benchmarks.comparison_targets import targets_of
from tools.benchmarks.machine import Machine
from tools.benchmarks.measuring import BROKER, DATABASE, GENERATOR, Covering, Result
from tools.benchmarks.section_beside import longest_waits
from tools.benchmarks.section_libvirt import guest_costs
from tools.benchmarks.section_ring import ring_times

Column = Callable[[Result], str]


class Budget(Covering, frozen=True):
    """The most that an operation of these results may cost, for this kind of process; "python" means all of ours."""

    kind: str
    us_max: float

    def least_us(self, result: Result) -> float:
        """The minimum of all runs: other processes only make it larger."""
        return min(run.cpu_us.get(self.kind, run.total_us) for run in result.runs)


_COALESCED = frozenset({50, 200})
BUDGETS = (
    Budget(
        "claims",
        {"store": frozenset({"postgresql"}), "claims a batch": _COALESCED},
        "python",
        40,
    ),
    Budget(
        "claims",
        {"store": frozenset({"postgresql"}), "claims a batch": _COALESCED},
        DATABASE,
        100,
    ),
    Budget("claims", {"store": frozenset({"sqlite"}), "claims a batch": _COALESCED}, "python", 60),
)


def show(console: Console, machine: Machine, results: Sequence[Result]) -> None:
    console.print(
        f"{machine.processors} x {machine.model}, {machine.system}, Python {machine.python}, "
        f"RabbitMQ {machine.rabbitmq or '-'}, PostgreSQL {machine.postgresql or '-'}; load before: {machine.load:.1f}"
    )
    console.print("CPU in µs an operation: medians of the runs, and the range of their totals.")
    console.print("Ours, others: what we and what everybody else got of the machine's CPU time meanwhile.")
    for section in dict.fromkeys(result.section for result in results):
        console.print(_table(section, [result for result in results if result.section == section]))
    for line in (
        *budgets_of(results),
        *targets_of(results),
        *longest_waits(results),
        *ring_times(results),
        *guest_costs(results),
    ):
        console.print(line)


def budgets_of(results: Iterable[Result]) -> Iterator[str]:
    kept = list(results)
    for budget in BUDGETS:
        seen = [budget.least_us(result) for result in kept if budget.covers(result)]
        if seen:
            verdict = "kept" if max(seen) <= budget.us_max else "EXCEEDED"
            stores = "/".join(map(str, sorted(map(str, budget.what["store"]))))
            yield (
                f"{budget.section}, {stores}, {budget.kind}: at most {budget.us_max:g} µs, "
                f"seen {min(seen):.1f} to {max(seen):.1f} (least of each one's runs): {verdict}"
            )


def as_json(machine: Machine, results: Sequence[Result]) -> bytes:
    return msgspec.json.format(
        msgspec.json.encode({"machine": machine, "results": [_summary(result) for result in results]})
    )


def _table(section: str, results: Sequence[Result]) -> Table:
    table = Table(title=section, title_justify="left", show_edge=False)
    names = list(dict.fromkeys(name for result in results for name in result.what))
    columns = {title: each for title, each in _COLUMNS.items() if any(each(result) for result in results)}
    for name in names:
        table.add_column(name, justify="left" if isinstance(results[0].what[name], str) else "right")
    for title in columns:
        table.add_column(title, justify="right", no_wrap=True)
    last: Any = None
    for result in results:
        # A line between groups of rows: those that differ in more than the last column.
        if last is not None and last != [result.what[name] for name in names[:-1]]:
            table.add_section()
        last = [result.what[name] for name in names[:-1]]
        table.add_row(
            *(str(result.what[name]) for name in names), *(each(result) for each in columns.values())
        )
    return table


def _us(value: float) -> str:
    """Three or four digits; the figures are not more precise."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _python(result: Result) -> str:
    parts = [kind for kind in result.kinds if kind not in (BROKER, DATABASE, GENERATOR)]
    split = "" if len(parts) == 1 else f" ({' + '.join(_us(result.us(kind)) for kind in parts)})"
    return f"{_us(result.python_us)}{split}" if parts else ""


def _range(result: Result) -> str:
    return f"{_us(min(result.totals_us))}-{_us(max(result.totals_us))}" if result.total_us else ""


def _slowest(result: Result) -> str:
    """Of the best run."""
    waits_ms = [run.details["longest wait ms"] for run in result.runs if "longest wait ms" in run.details]
    return f"{min(waits_ms):.1f}" if waits_ms else ""


def _beside(result: Result) -> str:
    """The concurrent load that was subtracted: its rate, and what it would add to an operation."""
    rate, cost_us = result.detail("claims beside a second"), result.detail("claims beside µs")
    return "" if rate is None or cost_us is None else f"{rate:.0f} ({_us(cost_us)})"


def _of(kind: str) -> Column:
    return lambda result: _us(result.us(kind)) if kind in result.kinds else ""


def _detail(name: str, form: str = ".1f") -> Column:
    return lambda result: "" if (seen := result.detail(name)) is None else f"{seen:{form}}"


_COLUMNS: Mapping[str, Column] = {
    "client, apart": _of(GENERATOR),
    "python": _python,
    "broker": _of(BROKER),
    "database": _of(DATABASE),
    "total µs": lambda result: _us(result.total_us) if result.total_us else "",
    "range": _range,
    "a second": lambda result: f"{result.rate:,.0f}" if result.rate >= 10 else f"{result.rate:.1f}",
    "wait ms": _detail("median wait ms"),
    "p99 ms": _detail("p99 wait ms"),
    "longest ms, best run": _slowest,
    "claims/s beside (µs)": _beside,
    "asked again": _detail("asked again", ".0f"),
    "new owners after s": _detail("new owners s"),
    "done after s": _detail("seconds"),
    "ours": lambda result: f"{result.ours:.0%}",
    "others": lambda result: f"{result.others:.0%}",
}


def _summary(result: Result) -> dict[str, Any]:
    return {
        "section": result.section,
        "what": result.what,
        "cpu_us": {kind: round(result.us(kind), 2) for kind in result.kinds},
        "total_us": round(result.total_us, 2),
        "total_us_least": round(min(result.totals_us), 2),
        "rate": round(result.rate, 1),
        "runs": result.runs,
    }
