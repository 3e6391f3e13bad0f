"""How much all hosts and pools of each cell have of each resource class, and how much of that is in use."""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from placement_worker.core.candidates.columns import Flags, Ints
from placement_worker.core.capacity import capacity_of
from scheduler_worker.core.picture.picture import Picture


class CellCapacity(Struct):
    """Amounts of one class in one cell. `open` is what is free on hosts that take new instances, and in pools."""

    capacity: int = 0
    used: int = 0
    open: int = 0

    def add(self, capacity: int, used: int, free: int) -> None:
        self.capacity += capacity
        self.used += used
        self.open += free


Capacities = Mapping[tuple[str, str], CellCapacity]


def capacities(picture: Picture) -> Capacities:
    """By cell and resource class; without cells that have nothing of a class."""
    columns = picture.columns
    rows = slice(columns.rows)
    there = columns.present[rows] & columns.provided[rows]
    cell = columns.cell[rows]
    is_down = np.isin(cell, [*columns.cells_down])
    takes_new = there & columns.registered[rows] & columns.up[rows] & columns.enabled[rows] & ~is_down
    names = columns.cells.names
    found: dict[tuple[str, str], CellCapacity] = {}
    for resource, stock in columns.stocks.items():
        capacity = _by_cell(cell, stock.capacity[rows], there, len(names))
        used = _by_cell(cell, stock.used[rows], there, len(names))
        free = _by_cell(cell, np.maximum(stock.free[rows], 0), takes_new, len(names))
        for code in np.flatnonzero(capacity | used).tolist():
            sums = found.setdefault((names[code], resource), CellCapacity())
            sums.add(int(capacity[code]), int(used[code]), int(free[code]))
    _add_pools(picture, found)
    return found


def _add_pools(picture: Picture, found: dict[tuple[str, str], CellCapacity]) -> None:
    """Add the sharing providers that belong to no host: the columns do not have them."""
    for row in sorted(picture.index.sharing):
        pool = picture.index.state(row)
        if picture.row_of(pool.root) >= 0:
            continue
        used = picture.trees.used(pool)
        for resource, inventory in pool.inventories.items():
            capacity, taken = capacity_of(inventory), used.get(resource, 0)
            sums = found.setdefault((pool.cell, resource), CellCapacity())
            sums.add(capacity, taken, max(capacity - taken, 0))


def _by_cell(cell: Ints, amounts: Ints, counted: Flags, cells: int) -> Ints:
    sums = np.zeros(cells, dtype=np.int64)
    np.add.at(sums, cell[counted], amounts[counted])
    return sums
