"""Prints plans, verdicts on hosts, and capabilities in a terminal."""

from collections.abc import Sequence

from rich.markup import escape

from bus.messages.planning import Capability, DrainFound, Explanation, HostHaving, HostVerdict, PlanFound
from moor.options import out
from moor.showing import grid_of, moment, print_funnel, print_instance
from moor.tables import Rows, print_table, table_of


def print_plan(plan: PlanFound) -> None:
    at_least = "at least " if plan.is_cut else ""
    colour = "green" if plan.fit else "red"
    out.print(
        f"[bold {colour}]{at_least}{plan.fit} more fit[/bold {colour}] on {plan.qualify} of {plan.funnel.hosts} hosts",
        highlight=False,
    )
    if plan.cells:
        cells = table_of("cell", "hosts", "fit")
        for cell in plan.cells:
            cells.add_row(cell.cell, str(cell.hosts), str(cell.fit))
        print_table(cells)
    if plan.funnel.steps or plan.funnel.nearest:
        out.print()
        print_funnel(plan.funnel)
    for pool in plan.pools:
        out.print(
            f"[yellow]pool {escape(pool.pool)} ran out:[/yellow] {pool.resource} asked {pool.asked}, free {pool.free} of "
            f"{pool.capacity}; {pool.hosts} hosts take it from there",
            highlight=False,
        )
    if plan.relaxations:
        out.print("more hosts would qualify:")
        for each in plan.relaxations:
            out.print(f"  {each.hosts} {escape(each.change)}", highlight=False)


def print_explanation(explained: Explanation) -> None:
    """The instance, and under it how its first host was chosen."""
    print_instance(explained.state)
    chosen = explained.chosen
    among = (
        f"the best of {explained.qualified} that qualified, of {explained.hosts}" if explained.hosts else ""
    )
    out.print(
        grid_of(
            ("chosen", f"{chosen}, {among}" if among else chosen),
            ("at", moment(explained.chosen_at)),
            ("alternates", ", ".join(explained.alternates)),
            *(
                ("refused", f"[yellow]{each.host}: {escape(each.reason)}[/yellow]")
                for each in explained.state.refusals
            ),
        ),
        highlight=False,
    )


def print_drain(drain: DrainFound) -> None:
    of = f"{'the first ' if drain.more else ''}{len(drain.instances)}"
    out.print(
        f"[bold]{drain.fit} of {of}[/bold] instances on {escape(drain.host)} would fit elsewhere",
        highlight=False,
    )
    if drain.instances:
        table = table_of("id", "name", "project", "to", "cell", "reason", prose=("reason",))
        for each in drain.instances:
            table.add_row(
                str(each.id), escape(each.name), escape(each.project), each.to, each.cell, escape(each.reason)
            )
        print_table(table)


def verdicts_table(verdicts: Sequence[HostVerdict]) -> Rows:
    table = table_of("host", "cell", "fit", "step", "reason", prose=("reason",))
    for each in verdicts:
        table.add_row(each.host, each.cell, str(each.fit), each.step, escape(each.reason))
    return table


def capabilities_table(capabilities: Sequence[Capability]) -> Rows:
    table = table_of("name", "kind", "hosts", "value", "values")
    for each in capabilities:
        table.add_row(each.name, each.kind, str(each.hosts), escape(each.value), str(each.values))
    return table


def having_table(hosts: Sequence[HostHaving]) -> Rows:
    table = table_of("host", "cell", "value", "free")
    for each in hosts:
        table.add_row(each.host, each.cell, escape(each.value), "" if each.free is None else str(each.free))
    return table
