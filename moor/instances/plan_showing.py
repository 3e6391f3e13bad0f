"""Prints plans, verdicts on hosts, and capabilities in a terminal."""

from rich.markup import escape

from bus.messages.planning import (
    Capability,
    DrainedInstance,
    DrainFound,
    Explanation,
    HostChoice,
    HostHaving,
    PlanFound,
)
from engine.refusals import HostVerdict, PlannedCell, PlannedFlavor
from moor.options import out
from moor.showing import grid_of, print_funnel, print_instance, time_in_words
from moor.tables import Columns, print_table

CELLS = Columns[PlannedCell](
    {
        "cell": lambda each: each.cell,
        "hosts": lambda each: str(each.hosts),
        "fit": lambda each: str(each.fit),
    }
)
DRAINED = Columns[DrainedInstance](
    {
        "id": lambda each: str(each.id),
        "name": lambda each: each.name,
        "project": lambda each: each.project,
        "to": lambda each: each.to,
        "cell": lambda each: each.cell,
        "reason": lambda each: each.reason,
    },
    prose=("reason",),
    ids={"id": lambda _: True},
)
VERDICTS = Columns[HostVerdict](
    {
        "host": lambda each: each.host,
        "cell": lambda each: each.cell,
        "fit": lambda each: str(each.fit),
        "flavor": lambda each: each.flavor,
        "step": lambda each: each.step,
        "reason": lambda each: each.reason,
    },
    prose=("reason",),
)
CAPABILITIES = Columns[Capability](
    {
        "name": lambda each: each.name,
        "kind": lambda each: each.kind,
        "hosts": lambda each: str(each.hosts),
        "value": lambda each: each.value,
        "values": lambda each: str(each.values),
    }
)
HAVING = Columns[HostHaving](
    {
        "host": lambda each: each.host,
        "cell": lambda each: each.cell,
        "value": lambda each: each.value,
        "free": lambda each: "" if each.free is None else str(max(each.free, 0)),
    }
)


def print_plan(plan: PlanFound) -> None:
    if plan.alternatives:
        planned: tuple[PlanFound | PlannedFlavor, ...] = (plan, *plan.alternatives)
        gets = next((each.flavor for each in planned if each.fit), "")
        out.print(f"the next instance gets: [bold]{escape(gets) or 'no host'}[/bold]")
        for each in planned:
            out.print(f"\n[bold]{escape(each.flavor)}[/bold]")
            _print_planned(each)
    else:
        _print_planned(plan)


def _print_planned(plan: PlanFound | PlannedFlavor) -> None:
    at_least = "at least " if plan.is_cut else ""
    colour = "green" if plan.fit else "red"
    out.print(
        f"[bold {colour}]{at_least}{plan.fit} more fit[/bold {colour}] on {plan.qualify} of {plan.funnel.hosts} hosts",
    )
    if plan.quota is not None:
        colour = "cyan" if plan.quota.fit else "red"
        limits = "; ".join(
            f"{each.name} limit {each.limit}, used {each.used}, asked {each.asked}"
            for each in plan.quota.limits
        )
        out.print(f"[{colour}]the project's quota allows {plan.quota.fit} more[/{colour}]: {limits}")
    if plan.cells:
        print_table(plan.cells, CELLS)
    if plan.funnel.steps or plan.funnel.nearest:
        out.print()
        print_funnel(plan.funnel)
    for pool in plan.pools:
        out.print(
            f"[yellow]pool {escape(pool.pool)} ran out:[/yellow] {pool.resource} asked {pool.asked}, free "
            f"{max(pool.free, 0)} of {pool.capacity}; {pool.hosts} hosts take it from there",
        )
    if plan.relaxations:
        out.print("more hosts would qualify:")
        for each in plan.relaxations:
            out.print(f"  {each.hosts} {escape(each.change)}")


def print_explanation(explained: Explanation, *, of_boot: bool) -> None:
    """The instance, and under it how its host was chosen: the last time, or with `of_boot` for its boot."""
    print_instance(explained.state)
    print_choice(explained, of_boot=of_boot)


def print_choice(explained: Explanation, *, of_boot: bool) -> None:
    choice: HostChoice = explained.boot if of_boot and explained.boot is not None else explained
    chosen = choice.chosen
    among = f"the best of {choice.qualified} that qualified, of {choice.hosts}" if choice.hosts else ""
    refusals = explained.state.refusals if choice.what == "boot" else ()
    out.print(
        grid_of(
            (
                "choice for",
                escape(
                    f"{choice.what}, by request {choice.request_id or explained.state.request_id}"
                    if chosen
                    else ""
                ),
            ),
            ("chosen", escape(f"{chosen}, {among}" if among else chosen)),
            ("at", time_in_words(choice.chosen_at)),
            ("alternates", escape(", ".join(choice.alternates))),
            *(("refused", f"[yellow]{escape(f'{each.host}: {each.reason}')}[/yellow]") for each in refusals),
        ),
    )


def print_drain(drain: DrainFound) -> None:
    of = f"{'the first ' if drain.more else ''}{len(drain.instances)}"
    out.print(
        f"[bold]{drain.fit} of {of}[/bold] instances on {escape(drain.host)} would fit on other hosts of their cell",
    )
    if drain.instances:
        print_table(drain.instances, DRAINED)
