"""Which hosts stand in for one that fails, and what is said of a host that was chosen."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bus.messages.cell import Choice
from bus.messages.placement import ResourceAmount, ShapeSeen, Share
from placement_worker.core.candidates.columns import Ints, Rows
from scheduler_worker.core.choosing.compounds import Filling, Gift
from scheduler_worker.core.choosing.host_columns import Draft
from scheduler_worker.core.requests import InstanceSpec

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

    def __init__(self, choices: "Choices", ranked: Ranked, open_rows: Rows, alternates: int) -> None:
        self._choices = choices
        self._cell = choices.columns.cell
        self._ranked = ranked
        self._alternates = alternates
        self._benches: dict[int, list[int]] = {}
        self._next: dict[int, int] = {}
        cells = self._cell[open_rows]
        for cell in np.unique(cells).tolist():
            in_cell = open_rows[cells == cell][: BENCH + alternates].tolist()
            self._benches[cell] = choices.open_among(in_cell)

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
        return self._choices.open_among(best)


class Choices(dict[int, Choice]):
    """Hosts as they are told of, by row: with the share that a spec takes there. Each is written once, when needed;
    compound ones as they are when that is.
    """

    def __init__(
        self, draft: Draft, spec: InstanceSpec, filling: Filling | None, instances_max: int = 0
    ) -> None:
        super().__init__()
        self._instances_max = instances_max
        self.columns = draft.columns
        self._picture = draft.picture
        self._filling = filling
        self._spec = spec

    def open_among(self, rows: list[int]) -> list[int]:
        """Those that could still take one more, of such as could by their columns."""
        filling = self._filling
        if filling is None:
            return rows
        return [row for row in rows if not filling.flags[row] or filling.offer(row) is not None]

    def __missing__(self, row: int) -> Choice:
        if self._filling is not None and self._filling.flags[row]:
            gifts = self._filling.offer(row)
            assert gifts is not None, "who is told of qualifies"
            choice = self.given(row, gifts)
        else:
            host = self.columns.ids[row]
            choice = self._choice(
                row,
                [
                    ResourceAmount(provider=host, resource=resource, amount=amount)
                    for resource, amount in self._spec.amounts
                ],
            )
        self[row] = choice
        return choice

    def given(self, row: int, gifts: Sequence[Gift]) -> Choice:
        """A compound host, with this share. Who shares with it has a shape of its own."""
        index = self._picture.index
        amounts = [
            ResourceAmount(provider=index.state(gift.row).id, resource=gift.resource, amount=gift.amount)
            for gift in gifts
        ]
        roots = dict.fromkeys(index.state(gift.row).root for gift in gifts)
        others = [root for root in roots if root != self.columns.ids[row]]
        return self._choice(row, amounts, [ShapeSeen(root, self._picture.shape_of(root)) for root in others])

    def _choice(
        self, row: int, amounts: Sequence[ResourceAmount], others: Sequence[ShapeSeen] = ()
    ) -> Choice:
        columns = self.columns
        host = columns.ids[row]
        shapes = (ShapeSeen(root=host, shape=columns.shapes[row]), *others)
        share = Share(host=host, amounts=tuple(amounts), shapes=shapes, instances_max=self._instances_max)
        return Choice(
            name=columns.names[row],
            share=share,
            qualities=columns.qualities[row],
            kind=columns.kinds[row],
        )
