"""The end of the demo: prints what was heard. Any problem in the books ends the demo with exit code 1."""

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter

from rich.text import Text

from moor.laboratory.demo.tally import Tally, short
from moor.options import fail, out
from moor.showing import shortened
from moor.tables import lines_of

ALTERNATES_SHOWN = 5
REASONS_SHOWN = 3


def conclude(tally: Tally, found: Sequence[str]) -> None:
    """Print the results of the demo, and the problems that were found at its end."""
    _tell_of_alternates(tally)
    _tell_of_conflicts(tally)
    _tell_of_errors(tally)
    problems = [*found]
    if not tally.conflicts_won:
        problems.append("no conflict was retried and won, though hosts changed under the boots")
    print_end(
        problems,
        (
            f"all {tally.wanted:,} requests ended: {tally.count('active'):,} active, {tally.count('error')} in error",
            f"none of {len(tally.providers)} hosts is used beyond its capacity",
            "the books of placement, the API level, the cells and their hosts agree",
            f"{tally.conflicts_won} conflicts were retried and won",
        ),
    )


def print_end(problems: Sequence[str], checked: Iterable[str]) -> None:
    if problems:
        fail("\n".join(["the demo found problems:", *shortened(problems)]))
    for each in checked:
        out.print(f"[green]✓[/green] {each}")


def _tell_of_alternates(tally: Tally) -> None:
    needed = sorted(tally.needed_alternates, key=lambda each: (-len(each.failures), each.name))
    out.print(
        f"\n[bold]{tally.count('active'):,}[/bold] active after {tally.ended_s - tally.began_s:.1f} s, "
        f"[bold]{len(needed)}[/bold] of them on an alternate, which their cell took without asking the API level:",
    )
    lines: list[tuple[str | Text, ...]] = []
    for each in needed[:ALTERNATES_SHOWN]:
        tried = "; ".join(f"{failure.host}: {short(failure.reason)}" for failure in each.failures)
        lines.append((f"  {each.name}", Text(tried, style="yellow"), f"→ {each.host}"))
    if len(needed) > ALTERNATES_SHOWN:
        lines.append((f"  [dim]and {len(needed) - ALTERNATES_SHOWN} more[/dim]",))
    out.print(lines_of(lines))


def _tell_of_conflicts(tally: Tally) -> None:
    same = sum(
        refusals[-1].host == (state.failures[0].host if state.failures else state.host)
        for id_, refusals in tally.refusals.items()
        if (state := tally.states.get(id_)) is not None
    )
    out.print(
        f"\n[bold]{tally.conflicts}[/bold] claims met a host that had changed since the scheduler chose it; after retries "
        f"[bold]{tally.conflicts_won}[/bold] instances got a host, {same} of them the same host",
    )


def _tell_of_errors(tally: Tally) -> None:
    errors = [each for each in tally.states.values() if each.state == "error"]
    reasons = Counter(each.reason for each in errors if each.no_valid_host is None)
    for reason, count in reasons.most_common(REASONS_SHOWN):
        out.print(f"  {count} ended in error: {reason}")
    nowhere = {each.name: each.no_valid_host for each in errors if each.no_valid_host is not None}
    if nowhere:
        name, why = min(nowhere.items(), key=itemgetter(0))
        out.print(f"\n[bold]{name}[/bold] found no host among {why.hosts}:")
        for step in why.steps:
            out.print(f"  {step.removed:5} removed by {step.step}   [dim]{step.example}[/dim]")
        out.print()
