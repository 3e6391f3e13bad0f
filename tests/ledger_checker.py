"""Judges movements by budgets with code of its own: which budgets do the movements that go on exceed?"""

from collections.abc import Iterable, Iterator, Sequence

from bus.messages.keeping import MoveBudget, Movement


def breaches(
    budgets: Iterable[MoveBudget], going: Sequence[Movement], recent: Sequence[Movement]
) -> list[str]:
    """A line for each limit that is exceeded. `going` were granted and have not ended; `recent` were granted in the last hour."""
    return [
        f"{budget.name}: {found} of {subject!r} {what}, {limit} may"
        for budget in budgets
        for what, limit, some in (
            ("go on", budget.at_once, going),
            ("began within an hour", budget.per_hour, recent),
        )
        if limit is not None
        for subject, found in _tally(budget, some)
        if found > limit
    ]


def _tally(budget: MoveBudget, some: Sequence[Movement]) -> Iterator[tuple[str, int]]:
    touched = [_touched(budget, each) for each in some]
    for subject in sorted({name for names in touched for name in names}):
        yield subject, sum(subject in names for names in touched)


def _touched(budget: MoveBudget, each: Movement) -> list[str]:
    if budget.scope == "cloud":
        return ["cloud"]
    if budget.scope == "domain" and budget.of:
        ends = _ends(budget, each.place, each.to_place)
        return [budget.of] if any(f"{end}/".startswith(f"{budget.of}/") for end in ends) else []
    if budget.scope == "domain":
        paths = [end.split("/") for end in _ends(budget, each.place, each.to_place)]
        return list({"/".join(path[: budget.level]) for path in paths if len(path) >= budget.level})
    if budget.scope == "host":
        hosts = {f"{each.cell}/{end}" for end in _ends(budget, each.host, each.to)}
        return [name for name in hosts if not budget.of or budget.of in (name, name.split("/")[1])]
    name = {"cell": each.cell, "project": each.project or "-", "group": str(each.group or "")}[budget.scope]
    return [name] if name and budget.of in ("", name) else []


def _ends(budget: MoveBudget, left: str, reached: str) -> list[str]:
    return [end for end, side in ((left, "out"), (reached, "in")) if end and budget.side in ("", side)]
