"""Classes of trees that a query cannot tell apart: a solution for one of them is a solution for all.

A cloud has thousands of trees and few kinds of hardware. Two trees have the same solutions if three things are equal:
their layout (which provider is the parent of which), their pools, and which of their providers fit which slots (parts of
the query), with how much room. Only room that the query can use up counts. So the solver, which is slow Python, runs once
for each class. A single tree costs only a few bits in a few arrays, a number made of them, and a sort.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from engine.candidates.budget import ROWS_PER_STEP, Budget
from engine.candidates.columns import Flags, Ints, Rows, TreeLayout
from engine.candidates.provider_index import ProviderIndex
from engine.candidates.suitable import ByRow, FittingProviders, Slot, Taken

# Packings: resource classes that several slots (parts of the query) may take from one provider, and the room for them.
#
# The room matters only as far as the query can use it. If three slots ask for 2 each, a provider with room for 5 is like
# one with room for 4. So the room is rounded down to a sum of amounts, and trees with the same rounded room are alike.


SUMS_MAX = 1024


class RowPacking(Struct, frozen=True):
    """One resource class that several slots may take from one provider. `amounts` is what each slot takes of it (or 0);
    `room` is what each provider (row) has for all of them together.
    """

    amounts: tuple[int, ...]
    room: ByRow[int]


class ColumnPacking(RowPacking, frozen=True):
    """A packing as columns of all providers. `room` is rounded down to a sum of some slots' amounts; `level` is the number of
    that sum, counted from the smallest one (0).
    """

    level: Ints


def packings_of(
    index: ProviderIndex, slots: Sequence[Slot], budget: Budget, *, isolate: bool, taken: Taken
) -> list[ColumnPacking]:
    """The resource classes that several slots (parts of the query) may take from one provider, with the room of all
    providers. With `isolate`, two groups with suffixes never take from one provider.
    """
    packings = []
    budget.spend(sum(len(slot.resources) for slot in slots))
    for resource, amounts in packed_amounts(slots, isolate=isolate):
        # The search also makes temporary arrays, which are freed afterwards.
        budget.hold(2 * 8 * index.rows)
        budget.spend(len(slots) + SUMS_MAX + 8 * index.rows // ROWS_PER_STEP)
        stock = index.stocks[resource]
        room = stock.room(index.rows)
        for row, less in taken.get(resource, {}).items():
            room[row] = stock.room_at(row, less)
        packings.append(_column_packing(room, amounts))
    return packings


def packed_amounts(slots: Sequence[Slot], *, isolate: bool) -> list[tuple[str, tuple[int, ...]]]:
    """The classes that several slots (parts of the query) may take from one provider, each with the amounts of all slots."""
    takers: dict[str, list[int]] = {}
    for number, slot in enumerate(slots):
        for resource, _ in slot.resources:
            takers.setdefault(resource, []).append(number)
    return [
        (resource, tuple([dict(slot.resources).get(resource, 0) for slot in slots]))
        for resource, numbers in sorted(takers.items())
        if len(numbers) > 1 and not (isolate and all(slots[number].is_suffixed for number in numbers))
    ]


def _column_packing(room: Ints, amounts: tuple[int, ...]) -> ColumnPacking:
    total = sum(amounts)
    sums = {0}
    for amount in amounts:
        sums |= {each + amount for each in sums}
        if len(sums) > SUMS_MAX:
            # Too many sums: tell each unit apart. That gives more classes of trees, and the same solutions.
            room, sums = np.clip(room, 0, total), set(np.clip(room, 0, total).tolist())
            break
    steps = np.array(sorted(sums), dtype=np.int64)
    level = np.maximum(np.searchsorted(steps, room, side="right") - 1, 0)
    return ColumnPacking(amounts, steps[level], level)


CODE_BITS = 62


class TreeClass(Struct, frozen=True):
    """Trees of one layout that a query cannot tell apart. `rows` has the rows of their providers: one line a tree, one
    column a place (position in the tree). `pools` share with each of these trees, and are in none of them.
    """

    layout: TreeLayout
    rows: Rows
    pools: tuple[int, ...]


def tree_classes(
    index: ProviderIndex, fitting: FittingProviders, packings: Sequence[ColumnPacking], budget: Budget
) -> Iterator[TreeClass]:
    """The trees in which a provider fits each slot (part of the query), grouped into classes that the query cannot tell apart."""
    pools = _sets_of_pools(index, fitting)
    for layout in list(index.layouts.values()):
        rows = layout.rows[fitting.roots[layout.rows[:, 0]]]
        if len(rows):
            told = len(fitting.slots) + len(fitting.having_traits) + len(packings) + len(fitting.pools)
            budget.spend(told * (20 + 4 * rows.size // ROWS_PER_STEP))
            for lines in _alike(rows, fitting, packings, pools):
                near = index.pools_of(int(rows[lines[0], 0]))
                shared = tuple([row for row in near if row in fitting.pools])
                yield TreeClass(layout, rows[lines], shared)


def _alike(
    rows: Rows,
    fitting: FittingProviders,
    packings: Sequence[ColumnPacking],
    pools: Ints | None,
) -> Iterator[Rows]:
    """Group trees of one layout (the lines of `rows`) by everything that the query can tell apart. Returns the lines of each
    group.
    """
    labels = _Labels(len(rows))
    asked = np.zeros(rows.shape, dtype=np.bool_)
    unsuffixed = np.zeros(rows.shape, dtype=np.bool_)
    for slot in fitting.slots:
        fits = slot.fits[rows]
        labels.tell_apart(fits)
        asked |= fits
        if not slot.is_suffixed:
            unsuffixed |= fits
        if slot.worth is not None:
            _, worth = np.unique(np.where(fits, slot.worth[rows], 0.0), return_inverse=True)
            labels.tell_apart(worth.reshape(rows.shape))
    for bearing in fitting.having_traits:
        labels.tell_apart(bearing[rows] & unsuffixed)
    for packing in packings:
        labels.tell_apart(np.where(asked, packing.level[rows], 0))
    if fitting.cells is not None:
        labels.tell_apart(fitting.cells[rows])
    if pools is not None:
        labels.tell_apart(pools[rows[:, :1]])
    return labels.alike()


def _sets_of_pools(index: ProviderIndex, fitting: FittingProviders) -> Ints | None:
    """A number for each root (row). Two roots have the same number if the same pools share with their trees. None if there
    are no pools.
    """
    if not fitting.pools:
        return None
    sets, count = np.zeros(index.rows, dtype=np.int64), 1
    for row, reached in fitting.pools.items():
        # In its own tree a sharing provider is a place, not a pool.
        roots = np.unique(reached[reached != index.root[row]])
        kinds, before = np.unique(sets[roots], return_inverse=True)
        sets[roots] = count + before
        count += len(kinds)
    return sets


class _Labels:
    """Groups the lines of a table: it gives each line one number, made of all columns that were passed to it. Two lines have
    the same number if they are equal in all of these columns.
    """

    def __init__(self, lines: int) -> None:
        self._codes: Ints = np.zeros(lines, dtype=np.int64)
        self._bits = 0

    def tell_apart(self, table: Flags | Ints) -> None:
        """Add the columns of this table, with flags or numbers from 0 on, to the numbers of the lines."""
        columns = np.ascontiguousarray(table.T)
        top = columns.max(axis=1)
        for place in np.flatnonzero(top > columns.min(axis=1)).tolist():
            bits = int(top[place]).bit_length()
            if self._bits + bits > CODE_BITS:
                kinds, self._codes = np.unique(self._codes, return_inverse=True)
                self._bits = len(kinds).bit_length()
            self._codes = self._codes << bits | columns[place]
            self._bits += bits

    def alike(self) -> Iterator[Rows]:
        """The groups of lines that no column told apart."""
        if not self._bits:
            yield np.arange(len(self._codes))
            return
        order = np.argsort(self._codes, kind="stable")
        edges = np.flatnonzero(np.diff(self._codes[order])) + 1
        for start, end in pairwise((0, *edges.tolist(), len(order))):
            yield order[start:end]
