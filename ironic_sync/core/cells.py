"""Which cell does a node belong to, and what happens when that changes?

The operator maps shards and conductor groups to cells. A shard goes before a group; the default cell takes the rest.

Placement gives a tree of providers to one cell. A report of another cell is refused until the tree has no provider
left. A node that nothing holds therefore moves in two steps: its provider is removed in the old cell, then made in the
new one. A node with an instance stays: its instance is a row of the old cell's conductor.
"""

from collections.abc import Mapping

from msgspec import Struct

from ironic_sync.core.node import Node
from ironic_sync.core.rows import NodeRow


class CellMap(Struct, frozen=True, kw_only=True):
    """The operator's tables. Without `default`, a node that no table names has no cell."""

    groups: Mapping[str, str] = {}
    shards: Mapping[str, str] = {}
    default: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Every cell that a node may be in."""
        named = {*self.groups.values(), *self.shards.values(), self.default}
        return tuple(sorted(named - {""}))


class CellStays(Struct, frozen=True):
    """Nothing to do."""

    cell: str


class CellNamed(Struct, frozen=True):
    """The node had no cell, and has one now."""

    cell: str


class CellMoves(Struct, frozen=True):
    """Remove the provider with a report of the `former` cell, then report the node in `cell`.

    Placement refuses the removal if a claim came first: then the node stays where it is.
    """

    former: str
    cell: str
    reason: str


class CellKept(Struct, frozen=True):
    """The tables name another cell, `wanted`, or none. The node stays, and an operator should know."""

    cell: str
    wanted: str
    reason: str


class CellUnknown(Struct, frozen=True):
    """Nothing can be reported of the node until it has a cell."""

    reason: str


CellDecision = CellStays | CellNamed | CellMoves | CellKept | CellUnknown


def cell_of(node: Node, cells: CellMap) -> str:
    """The cell that the tables name for this node; empty if none."""
    if node.shard and node.shard in cells.shards:
        return cells.shards[node.shard]
    return cells.groups.get(node.conductor_group, cells.default)


def decide_cell(row: NodeRow, cells: CellMap, *, can_read: bool) -> CellDecision:
    """The cell of this row from now on. A node that can be read is read before it gets a cell: Ironic sends no shard."""
    node = row.node
    if node is None:
        return _undecided(row, "nothing is known of the node yet")
    if cells.shards and can_read and not row.read_at_us:
        return _undecided(row, "the node was not read yet, and Ironic's notifications have no shard")
    wanted = cell_of(node, cells)
    if not wanted:
        return _without_table(row, f"{_signs_of(node)}: no table names its cell")
    if wanted == row.cell:
        return CellStays(row.cell)
    if not row.cell:
        return CellNamed(wanted)
    return _other_cell(row, wanted, _signs_of(node))


def _undecided(row: NodeRow, reason: str) -> CellDecision:
    return CellStays(row.cell) if row.cell else CellUnknown(reason)


def _without_table(row: NodeRow, reason: str) -> CellDecision:
    return CellKept(row.cell, "", f"{reason}, it stays in {row.cell!r}") if row.cell else CellUnknown(reason)


def _other_cell(row: NodeRow, wanted: str, signs: str) -> CellDecision:
    if row.holds_instance:
        return CellKept(row.cell, wanted, f"{signs}: it stays in {row.cell!r} while an instance is on it")
    return CellMoves(row.cell, wanted, f"{signs}: it moves from {row.cell!r} to {wanted!r}")


def _signs_of(node: Node) -> str:
    """The keys by which the tables were searched."""
    shard = f"shard {node.shard!r} and " if node.shard else ""
    return f"the node has {shard}conductor group {node.conductor_group!r}"
