"""How bare-metal nodes look in a terminal."""

from rich.markup import escape

from ironic_sync.core.node import Node
from moor.bare_metal.nodes import NodeShown, Offered
from moor.options import out
from moor.showing import grid_of, time_in_words
from moor.tables import Columns, styled

STATE_COLOURS = {
    "available": "green",
    "active": "cyan",
    "error": "red",
    "enroll": "dim",
    "manageable": "yellow",
}


def print_node(node: NodeShown) -> None:
    out.print(grid_of(*facts_of_node(node)))


def facts_of_node(node: NodeShown) -> list[tuple[str, str]]:
    """Each fact with its label, in Rich's markup; empty facts are left out where they are shown."""
    return [*_of_ironic(node), *_of_moorage(node)]


def _of_ironic(shown: NodeShown) -> list[tuple[str, str]]:
    first = [("node", str(shown.id)), ("name", escape(shown.name))]
    node = shown.ironic
    if node is None:
        return [*first, ("state", "[red]Ironic has no such node[/red]")]
    reason = escape(node.maintenance_reason or "no reason is given")
    projects = dict.fromkeys(each for each in (node.owner, node.lessee) if each)
    return [
        *first,
        ("state", _state(node)),
        ("power", node.power_state or ""),
        ("maintenance", reason if node.maintenance else ""),
        ("fault", _red(node.fault)),
        ("last error", _red(node.last_error)),
        ("retired", "yes" if node.retired else ""),
        ("class", escape(node.resource_class or "") or "[yellow]none[/yellow]"),
        ("traits", escape(", ".join(node.traits))),
        ("instance", str(node.instance_uuid or "")),
        ("driver", escape(node.driver or "")),
        ("group", escape(node.conductor_group)),
        ("shard", escape(node.shard or "")),
        ("projects", escape(", ".join(projects))),
        ("since", time_in_words(node.provision_updated_at)),
    ]


def _of_moorage(shown: NodeShown) -> list[tuple[str, str]]:
    offered = shown.offered
    colour = "green" if offered.amount else "yellow"
    amount = (
        f"{offered.amount}[/{colour}] {offered.resource_class}"
        if offered.resource_class
        else "nothing[/yellow]"
    )
    rows = [
        ("cell", shown.cell),
        ("daemon", f"{escape(shown.daemon)}, epoch {shown.epoch}" if shown.daemon else ""),
        ("offered", f"[{colour}]{amount}"),
        ("kept class", offered.kept_class),
        *(
            ("" if number else "why", f"[yellow]{escape(reason)}[/yellow]")
            for number, reason in enumerate(offered.reasons)
        ),
    ]
    if (deploy := shown.deploy) is not None:
        rows += [
            ("order", f"{deploy.kind} of instance {deploy.instance}, attempt {deploy.attempt}"),
            ("step", escape(deploy.words)),
            ("tries", str(deploy.tries or "")),
            ("failed", _red(deploy.failure)),
        ]
    return rows


def _red(text: str | None) -> str:
    return f"[red]{escape(text)}[/red]" if text else ""


def _state(node: Node | None) -> str:
    if node is None:
        return "[red]gone[/red]"
    state = node.provision_state or "none"
    colour = "red" if state.endswith("failed") else STATE_COLOURS.get(state, "white")
    goal = f" → {escape(node.target_provision_state)}" if node.target_provision_state else ""
    extra = " [magenta]maintenance[/magenta]" if node.maintenance else ""
    return f"[{colour}]{escape(state)}[/{colour}]{goal}{extra}"


def _in_short(offered: Offered) -> str:
    """The resources that a node offers, in one line. If it offers none, the first reason and the number of others."""
    if offered.amount:
        return f"[green]1[/green] {offered.resource_class}"
    more = f" (and {len(offered.reasons) - 1} more)" if len(offered.reasons) > 1 else ""
    why = f"{escape(offered.reasons[0])}{more}" if offered.reasons else ""
    return f"[yellow]0[/yellow] {why}"


NODES = Columns[NodeShown](
    {
        "id": lambda each: str(each.id),
        "name": lambda each: each.name,
        "state": lambda each: styled(_state(each.ironic)),
        "class": lambda each: (each.ironic and each.ironic.resource_class) or "",
        "cell": lambda each: each.cell,
        "daemon": lambda each: each.daemon,
        "offered": lambda each: styled(_in_short(each.offered)),
    },
    prose=("offered",),
    ids={"id": lambda _: True},
)
