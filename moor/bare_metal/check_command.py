"""`moor check`: configuration mistakes that keep bare-metal nodes unused although nothing is broken.

- A node without a resource class offers nothing.
- A node without a cell offers nothing.
- A class that no flavor requests is never used.
- A bare-metal flavor whose class no node has never finds a host.

The flavors are those of a file that the operator names; stored ones are not compared.
"""

from collections.abc import Mapping, Sequence

import typer
from msgspec import Struct
from rich.markup import escape

from ironic_sync.core.offers import class_of
from moor.bare_metal.nodes import NodeReader, NodeShown, reading_nodes
from moor.instances.flavors import Flavors, FlavorsFile, classes_of_nodes, known_flavors
from moor.options import (
    NOT_DONE,
    DatabaseUrl,
    IronicDatabaseUrl,
    IronicUrl,
    Output,
    command_settings,
    out,
    run_with,
    tell,
)
from moor.showing import print_one

SHOWN_MAX = 20


class UnusableNode(Struct, frozen=True, kw_only=True):
    """A node that can offer nothing in any state, since it has no usable resource class, or no cell."""

    id: str
    name: str
    reason: str


class CheckResult(Struct, frozen=True, kw_only=True):
    """The result of a check of bare-metal nodes against flavors. Without a file of flavors, `classes_without_flavor` and
    `flavors_without_node` are null.
    """

    nodes: int
    nodes_without_class: tuple[UnusableNode, ...]
    # Only known if the daemons' database is named.
    nodes_without_cell: tuple[UnusableNode, ...]
    # By placement's name of the class: how many nodes have it.
    classes_without_flavor: Mapping[str, int] | None
    # By the flavor's name: the requested classes that no node has.
    flavors_without_node: Mapping[str, tuple[str, ...]] | None

    @property
    def is_clean(self) -> bool:
        return not (
            self.nodes_without_class
            or self.nodes_without_cell
            or self.classes_without_flavor
            or self.flavors_without_node
        )


def check(
    ironic: IronicUrl = "",
    ironic_db: IronicDatabaseUrl = "",
    db: DatabaseUrl = "",
    *,
    flavors: FlavorsFile = None,
    _output: Output = None,
) -> None:
    """List bare-metal nodes without a class or a cell, classes that no flavor requests, and flavors whose class no node has.

    Exit code 0 if there are none, 1 if there are any.
    """
    settings = command_settings(ironic=ironic, ironic_db=ironic_db, db=db)
    known = known_flavors(flavors, settings)
    checked = check_nodes(run_with(reading_nodes(settings), NodeReader.all).nodes, known)
    print_one(checked, _print)
    if known is None:
        tell(
            "classes and flavors are not compared, since no file of flavors is named: give --flavors or MOOR_FLAVORS",
            "yellow",
        )
    if not checked.is_clean:
        raise typer.Exit(NOT_DONE)


def check_nodes(nodes: Sequence[NodeShown], flavors: Flavors | None) -> CheckResult:
    existing = [each for each in nodes if each.ironic is not None]
    counts: dict[str, int] = {}
    without: list[UnusableNode] = []
    for each in existing:
        own = each.ironic.resource_class if each.ironic else None
        named = class_of(own)
        if named:
            counts[named] = counts.get(named, 0) + 1
        else:
            why = f"resource class {own!r} is too long" if own else "it has no resource class"
            without.append(UnusableNode(id=str(each.id), name=each.name, reason=why))
    unrequested = missing = None
    if flavors is not None:
        asked = {name: classes_of_nodes(flavor) for name, flavor in flavors.items()}
        all_asked = {each for classes in asked.values() for each in classes}
        unrequested = {name: count for name, count in sorted(counts.items()) if name not in all_asked}
        missing = {
            name: lacking
            for name, classes in asked.items()
            if (lacking := tuple(each for each in classes if each not in counts))
        }
    return CheckResult(
        nodes=len(existing),
        nodes_without_class=tuple(without),
        nodes_without_cell=tuple(
            UnusableNode(id=str(each.id), name=each.name, reason=f"it has no cell: {each.cell_note}")
            for each in existing
            if each.cell_note and not each.cell
        ),
        classes_without_flavor=unrequested,
        flavors_without_node=missing,
    )


def _print(checked: CheckResult) -> None:
    unusable = (*checked.nodes_without_class, *checked.nodes_without_cell)
    lines = [escape(f"node {each.name or each.id}: {each.reason}") for each in unusable]
    lines += [
        f"class {name} of {count} {'node' if count == 1 else 'nodes'}: no flavor requests it"
        for name, count in (checked.classes_without_flavor or {}).items()
    ]
    lines += [
        escape(f"flavor {name}: no node has {', '.join(classes)}")
        for name, classes in (checked.flavors_without_node or {}).items()
    ]
    for line in lines[:SHOWN_MAX]:
        out.print(f"[yellow]✗[/yellow] {line}", soft_wrap=True)
    if len(lines) > SHOWN_MAX:
        out.print(f"and {len(lines) - SHOWN_MAX} more; -o json has all of them")
    if not lines:
        compared = "" if checked.flavors_without_node is None else ", and flavors and classes match"
        out.print(
            f"[green]✓[/green] each of {checked.nodes} nodes has a class and a cell{compared}",
        )
