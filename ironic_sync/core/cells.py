"""Which cell does a node belong to, and what happens when that changes?

The operator maps shards and conductor groups to cells. A shard goes before a group; the default cell takes the rest.

Placement gives a tree of providers to one cell. A report of another cell is refused until the tree has no provider
left. A node that nothing holds therefore moves in two steps: its provider is removed in the old cell, then made in the
new one. A node with an instance stays: its instance is a row of the old cell's conductor.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ironic_sync.core.node import Node
from ironic_sync.core.rows import NodeRow

NO_TABLE = "no table names its cell"


class CellMap(Struct, frozen=True, kw_only=True):
    """The operator's tables that assign nodes to cells. Without `default`, a node that no table names has no cell."""

    groups: Mapping[str, str] = {}
    shards: Mapping[str, str] = {}
    default: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Every cell that a node may be in."""
        named = {*self.groups.values(), *self.shards.values(), self.default}
        return tuple(sorted(named - {""}))


def cell_map(
    cells: Sequence[str],
    *,
    default: str = "",
    groups: Mapping[str, str] | None = None,
    shards: Mapping[str, str] | None = None,
) -> CellMap:
    """The tables as the operator states them. `cells` are the cells of the cloud; if there is only one, it is the default."""
    only = cells[0] if len(cells) == 1 else ""
    return CellMap(groups=groups or {}, shards=shards or {}, default=default or only)


class CellPlan(Struct, frozen=True):
    """The cell of a node from now on, empty if it has none yet; and the cell that it is to go to, if it moves.

    A node moves in two steps. First a report in the name of `cell` removes its provider, then the node is reported in
    `wanted`. Placement refuses the removal if a claim came first; then the node stays. `note` says why the cell is
    unknown, or not the one that the operator's tables name.
    """

    cell: str
    wanted: str = ""
    note: str = ""


def cell_of(node: Node, cells: CellMap) -> str:
    """The cell that the operator's tables of shards and conductor groups name for this node; empty if none."""
    if node.shard and node.shard in cells.shards:
        return cells.shards[node.shard]
    return cells.groups.get(node.conductor_group, cells.default)


def decide_cell(row: NodeRow, cells: CellMap, *, can_read: bool) -> CellPlan:
    """The cell that this row's node belongs to from now on, and a note if that is undecided or not as the tables say.

    Where shards decide the cell, a node that can be read from Ironic's API is read first: notifications have no shard.
    """
    node = row.node
    if node is None:
        return _undecided(row, "nothing is known of the node yet")
    if cells.shards and can_read and not row.read_at_us:
        return _undecided(row, "the node was not read yet, and Ironic's notifications have no shard")
    wanted, signs = cell_of(node, cells), _signs_of(node)
    if not wanted:
        stays = f", it stays in {row.cell!r}" if row.cell else ""
        return CellPlan(row.cell, note=f"{signs}: {NO_TABLE}{stays}")
    if row.cell in ("", wanted):
        return CellPlan(wanted)
    if row.holds_instance:
        return CellPlan(row.cell, note=f"{signs}: it stays in {row.cell!r} while an instance is on it")
    return CellPlan(row.cell, wanted, f"{signs}: it moves from {row.cell!r} to {wanted!r}")


def _undecided(row: NodeRow, reason: str) -> CellPlan:
    return CellPlan(row.cell, note="" if row.cell else reason)


def _signs_of(node: Node) -> str:
    """The node's shard and conductor group, by which the tables were searched, as a text."""
    shard = f"shard {node.shard!r} and " if node.shard else ""
    return f"the node has {shard}conductor group {node.conductor_group!r}"
