"""Layouts of trees. Trees of one layout have the same parent-child relations, so one check covers all of them.

A place is a position in a layout. Places are numbered from the root down: place 0 is the root, and a child has a higher
number than its parent.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from placement_worker.core.candidates.columns import Rows

TREES_AT_FIRST = 4


class TreeLayout:
    """A layout, and the table of all trees that have it.

    `parents` has the parent of each place (position in the tree), -1 for the root. `under` has, for each place, the places
    at and below it, as bits.
    """

    def __init__(self, parents: tuple[int, ...]) -> None:
        self.parents = parents
        under = [1 << place for place in range(len(parents))]
        for place in range(len(parents) - 1, 0, -1):
            under[parents[place]] |= under[place]
        self.under = tuple(under)
        self._rows = np.zeros((TREES_AT_FIRST, len(parents)), dtype=np.intp)
        self._count = 0

    def copy(self) -> "TreeLayout":
        other = TreeLayout(self.parents)
        other._rows, other._count = self._rows.copy(), self._count
        return other

    def __len__(self) -> int:
        """How many trees have this layout."""
        return self._count

    @property
    def rows(self) -> Rows:
        """The table of these trees: one line for each tree, one column for each place (position in the tree)."""
        return self._rows[: self._count]

    def add(self, rows: Sequence[int]) -> int:
        """Add a tree, given by the rows of its providers. Returns its line in the table."""
        if self._count == len(self._rows):
            self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)))
        self._rows[self._count] = rows
        self._count += 1
        return self._count - 1

    def remove(self, line: int) -> int:
        """Remove the tree at this line of the table, and move the last tree to this line. Returns the row of the root of the
        tree that was moved.
        """
        self._count -= 1
        self._rows[line] = self._rows[self._count]
        return int(self._rows[line, 0])


class TreeLine(NamedTuple):
    """Where a tree is stored: its layout, which has a table of the trees with that layout, and the line in the table."""

    layout: TreeLayout
    line: int
