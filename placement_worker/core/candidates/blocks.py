"""A solution of a stand, carried over to all its trees."""

from collections.abc import Sequence

import numpy as np

from placement_worker.core.candidates.budget import ROWS_PER_STEP, Budget
from placement_worker.core.candidates.columns import Rows
from placement_worker.core.candidates.fitting import Slot
from placement_worker.core.candidates.found import Block, Shape
from placement_worker.core.candidates.stands import Stand
from placement_worker.core.candidates.stating import Stated
from placement_worker.core.candidates.woods import Woods

# What Python's tables take, by their entries.
_BLOCK_BYTES, _SEEN_BYTES, _SHAPE_BYTES, _PER_SLOT_BYTES = 400, 150, 500, 300


class BlockMaker:
    """For all solutions of one question: it remembers shapes, and which candidates took from pools alone."""

    def __init__(self, woods: Woods, slots: Sequence[Slot], budget: Budget) -> None:
        self._woods = woods
        self._budget = budget
        self._slots = slots
        self._shapes: dict[tuple[int, ...], Shape] = {}
        self._seen: set[tuple[int, ...]] = set()

    def block(self, stated: Stated, solution: tuple[int, ...]) -> Block:
        """Without the lines that were told before."""
        block, columns = self._whole(stated, solution)
        if not self._woods.sharing:
            return block
        return Block(block.shape, self._not_seen(block.rows, columns), block.preference)

    def whole(self, stated: Stated, solution: tuple[int, ...]) -> Block:
        """One line for each tree of the stand, if the tree gives anything."""
        return self._whole(stated, solution)[0]

    def _whole(self, stated: Stated, solution: tuple[int, ...]) -> tuple[Block, tuple[int, ...]]:
        column_of = {place: column for column, place in enumerate(dict.fromkeys(solution))}
        places = tuple(column_of)
        columns = tuple([column_of[place] for place in solution])
        self._budget.spend(4 * len(columns))
        shape = self._shapes.get(columns)
        if shape is None:
            self._budget.spend(10 * len(columns))
            self._budget.hold(_SHAPE_BYTES + _PER_SLOT_BYTES * len(columns))
            shape = self._shapes[columns] = _shape(self._slots, columns)
        worth = stated.puzzle.worth
        preference = sum(worth[slot][place] for slot, place in enumerate(solution)) if worth else 0.0
        block = Block(shape, _rows(stated.stand, places), preference)
        self._budget.spend(block.rows.size // ROWS_PER_STEP)
        self._budget.hold(_BLOCK_BYTES + block.rows.nbytes)
        return block, columns

    def _not_seen(self, rows: Rows, columns: tuple[int, ...]) -> Rows:
        """What takes from those who share alone is found under each root that these reach."""
        shared = np.flatnonzero(self._woods.shares[rows].all(axis=1))
        if not len(shared):
            return rows
        wanted = np.ones(len(rows), dtype=np.bool_)
        for line in shared.tolist():
            self._budget.spend(len(columns))
            self._budget.hold(_SEEN_BYTES + 8 * len(columns))
            of_slots = rows[line].tolist()
            candidate = tuple(of_slots[column] for column in columns)
            wanted[line] = candidate not in self._seen
            self._seen.add(candidate)
        return rows[wanted]


def _rows(stand: Stand, places: Sequence[int]) -> Rows:
    first = stand.rows.shape[1]
    if all(place >= first for place in places):
        # The same in all its trees.
        return np.array([[stand.pools[place - first] for place in places]], dtype=np.intp)
    rows = np.empty((len(stand.rows), len(places)), dtype=np.intp)
    for column, place in enumerate(places):
        rows[:, column] = stand.rows[:, place] if place < first else stand.pools[place - first]
    return rows


def _shape(slots: Sequence[Slot], columns: Sequence[int]) -> Shape:
    amounts: list[dict[str, int]] = [{} for _ in range(max(columns) + 1)]
    mappings: dict[str, dict[int, None]] = {}
    for slot, column in zip(slots, columns, strict=True):
        for resource, amount in slot.resources:
            amounts[column][resource] = amounts[column].get(resource, 0) + amount
        mappings.setdefault(slot.suffix, {})[column] = None
    return Shape(tuple(amounts), tuple((suffix, tuple(of)) for suffix, of in mappings.items()))
