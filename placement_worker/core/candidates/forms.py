"""Trees of one form: who stands under whom is the same in all of them, so that one look at it serves all.

Places are numbered from the root down: place 0 is the root, and whoever stands under another has a higher number.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from placement_worker.core.candidates.columns import Rows

TREES_AT_FIRST = 4


class Form:
    """`parents` has the place that each place stands under, -1 for the root. `under` has the places at and under each,
    as bits.
    """

    def __init__(self, parents: tuple[int, ...]) -> None:
        self.parents = parents
        under = [1 << place for place in range(len(parents))]
        for place in range(len(parents) - 1, 0, -1):
            under[parents[place]] |= under[place]
        self.under = tuple(under)
        self._rows = np.zeros((TREES_AT_FIRST, len(parents)), dtype=np.intp)
        self._count = 0

    def copy(self) -> "Form":
        other = Form(self.parents)
        other._rows, other._count = self._rows.copy(), self._count
        return other

    def __len__(self) -> int:
        """How many trees there are of it."""
        return self._count

    @property
    def rows(self) -> Rows:
        """One line a tree, one column a place."""
        return self._rows[: self._count]

    def add(self, rows: Sequence[int]) -> int:
        """The line that the tree has now."""
        if self._count == len(self._rows):
            self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)))
        self._rows[self._count] = rows
        self._count += 1
        return self._count - 1

    def remove(self, line: int) -> int:
        """The last tree takes this line; the row of its root."""
        self._count -= 1
        self._rows[line] = self._rows[self._count]
        return int(self._rows[line, 0])


class Planted(NamedTuple):
    """Where a tree was planted: in which form, on which line."""

    form: Form
    line: int
