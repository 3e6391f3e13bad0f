"""How bare-metal nodes look in a terminal."""

from collections.abc import Iterator, Sequence

from rich.markup import escape

from ironic_sync.core.node import Node
from moor.nodes import NodeShown, Offered
from moor.options import out
from moor.showing import grid_of
from moor.tables import Rows, table_of

STATE_COLOURS = {
    "available": "green",
    "active": "cyan",
    "error": "red",
    "enroll": "dim",
    "manageable": "yellow",
}


WIDE = 120


def nodes_table(nodes: Sequence[NodeShown]) -> Rows:
    """A table of nodes; on a narrow terminal, without name, cell and daemon."""
    is_wide = out.width >= WIDE
    table = table_of(
        "id",
        *(("name",) if is_wide else ()),
        "state",
        "class",
        *(("cell", "daemon") if is_wide else ()),
        "offered",
        prose=("offered",),
    )
    for each in nodes:
        resource_class = (each.ironic.resource_class if each.ironic else "") or ""
        name = (escape(each.name),) if is_wide else ()
        whose = (each.cell, escape(each.daemon)) if is_wide else ()
        state = _state(each.ironic)
        table.add_row(str(each.id), *name, state, escape(resource_class), *whose, _in_short(each.offered))
    return table


def print_node(node: NodeShown) -> None:
    out.print(grid_of(*_of_ironic(node), *_of_moorage(node)), highlight=False)


def _of_ironic(shown: NodeShown) -> Iterator[tuple[str, str]]:
    yield "node", str(shown.id)
    yield "name", escape(shown.name)
    node = shown.ironic
    if node is None:
        yield "state", "[red]Ironic has no such node[/red]"
        return
    yield "state", _state(node)
    yield "power", node.power_state or ""
    yield "maintenance", escape(node.maintenance_reason or "no reason is given") if node.maintenance else ""
    yield "fault", f"[red]{escape(node.fault)}[/red]" if node.fault else ""
    yield "last error", f"[red]{escape(node.last_error)}[/red]" if node.last_error else ""
    yield "retired", "yes" if node.retired else ""
    yield "class", escape(node.resource_class or "[yellow]none[/yellow]")
    yield "traits", escape(", ".join(node.traits))
    yield "instance", str(node.instance_uuid or "")
    yield "driver", escape(node.driver or "")
    yield "group", escape(node.conductor_group)
    yield "shard", escape(node.shard or "")
    yield "projects", escape(", ".join(dict.fromkeys(each for each in (node.owner, node.lessee) if each)))
    since = node.provision_updated_at
    yield "since", f"{since:%Y-%m-%d %H:%M:%S %Z}" if since else ""


def _of_moorage(shown: NodeShown) -> Iterator[tuple[str, str]]:
    yield "cell", shown.cell
    yield "daemon", f"{escape(shown.daemon)}, epoch {shown.epoch}" if shown.daemon else ""
    offered = shown.offered
    if offered.resource_class:
        colour = "green" if offered.amount else "yellow"
        yield "offered", f"[{colour}]{offered.amount}[/{colour}] {offered.resource_class}"
    else:
        yield "offered", "[yellow]nothing[/yellow]"
    yield "kept class", offered.kept_class
    for number, reason in enumerate(offered.reasons):
        yield "" if number else "why", f"[yellow]{escape(reason)}[/yellow]"
    if (deploy := shown.deploy) is not None:
        yield "order", f"{deploy.kind} of instance {deploy.instance}, attempt {deploy.attempt}"
        yield "step", escape(deploy.words)
        yield "tries", str(deploy.tries) if deploy.tries else ""
        yield "failed", f"[red]{escape(deploy.failure)}[/red]" if deploy.failure else ""


def _state(node: Node | None) -> str:
    if node is None:
        return "[red]gone[/red]"
    state = node.provision_state or "none"
    colour = "red" if state.endswith("failed") else STATE_COLOURS.get(state, "white")
    goal = f" → {escape(node.target_provision_state)}" if node.target_provision_state else ""
    extra = " [magenta]maintenance[/magenta]" if node.maintenance else ""
    return f"[{colour}]{escape(state)}[/{colour}]{goal}{extra}"


def _in_short(offered: Offered) -> str:
    """The offer in one line: the first reason, and how many more there are."""
    if offered.amount:
        return f"[green]1[/green] {offered.resource_class}"
    more = f" (and {len(offered.reasons) - 1} more)" if len(offered.reasons) > 1 else ""
    why = f"{escape(offered.reasons[0])}{more}" if offered.reasons else ""
    return f"[yellow]0[/yellow] {why}"
