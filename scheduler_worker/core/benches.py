"""Which hosts stand in for one that fails, and what is said of a host that was chosen."""

from typing import NamedTuple

import numpy as np

from bus.messages.cell import Choice
from bus.messages.placement import ResourceAmount, ShapeSeen, Share
from scheduler_worker.core.columns import Columns, Ints
from scheduler_worker.core.hosts import Rows
from scheduler_worker.core.requests import Wish

# Enough that no host is everyone's alternate; to write down more of them would cost more than it helps.
BENCH = 32


class Ranked(NamedTuple):
    """All hosts that qualified, what they were worth, and which of them are the pool."""

    rows: Rows
    worths: Ints
    pool: Rows


def the_best(worths: Ints, count: int) -> Rows:
    """Where the highest of them are, in their order."""
    if count < len(worths):
        best = np.argpartition(worths, len(worths) - count)[len(worths) - count :]
    else:
        best = np.arange(len(worths))
    # Equals are rare, with their hashes in the worths, and stand as their rows do.
    return best[np.lexsort((best, -worths[best]))]


class Benches:
    """Hosts that could take one more, by cell, best first. Each who asks is given the next ones, round and round."""

    def __init__(self, columns: Columns, ranked: Ranked, open_rows: Rows, alternates: int) -> None:
        self._cell = columns.cell
        self._ranked = ranked
        self._alternates = alternates
        self._benches: dict[int, list[int]] = {}
        self._next: dict[int, int] = {}
        cells = self._cell[open_rows]
        for cell in np.unique(cells).tolist():
            self._benches[cell] = open_rows[cells == cell][: BENCH + alternates].tolist()

    def next_for(self, row: int, cell: int) -> list[int]:
        bench = self._benches.get(cell, [])
        if cell not in self._next:
            self._next[cell] = 0
            if len(bench) <= self._alternates:
                bench = self._benches[cell] = bench + self._best_outside(cell)
        start = self._next[cell]
        if start + self._alternates >= len(bench):
            start = 0
        end = start + self._alternates
        found = bench[start:end]
        if row in found:
            found.remove(row)
            found += bench[end : end + 1]
            end += 1
        self._next[cell] = end
        return found

    def _best_outside(self, cell: int) -> list[int]:
        """The pool has the best of all cells: of one cell it may have few."""
        rows, worths, pool = self._ranked
        outside = np.equal(self._cell[rows], cell)
        outside[pool] = False
        found = np.flatnonzero(outside)
        best: list[int] = rows[found[the_best(worths[found], self._alternates + 1)]].tolist()
        return best


class Choices(dict[int, Choice]):
    """Hosts as they are told of, by row: with the share that a wish takes there. Each is written once, when needed."""

    def __init__(self, columns: Columns, wish: Wish) -> None:
        super().__init__()
        self._columns = columns
        self._amounts = wish.amounts

    def __missing__(self, row: int) -> Choice:
        columns = self._columns
        host = columns.ids[row]
        elsewhere = columns.elsewhere[row]
        amounts = [
            ResourceAmount(provider=elsewhere.get(resource, host), resource=resource, amount=amount)
            for resource, amount in self._amounts
        ]
        shapes = (ShapeSeen(root=host, shape=columns.shapes[row]),)
        share = Share(host=host, amounts=tuple(amounts), shapes=shapes)
        choice = self[row] = Choice(name=columns.names[row], share=share, qualities=columns.qualities[row])
        return choice
