"""Turn a solution that was found once for a group of equal trees (TreeClass) into candidates: one for each of the trees."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from placement_worker.core.candidates.budget import ROWS_PER_STEP, Budget
from placement_worker.core.candidates.columns import Rows
from placement_worker.core.candidates.fitting import Slot
from placement_worker.core.candidates.found import Block, CandidatePattern
from placement_worker.core.candidates.provider_index import ProviderIndex
from placement_worker.core.candidates.slot_problems import ClassProblem
from placement_worker.core.candidates.slot_solver import SlotProblem
from placement_worker.core.candidates.tree_classes import TreeClass

# Estimated size of the entries in Python's dictionaries and sets.
_BLOCK_BYTES, _SEEN_BYTES, _PATTERN_BYTES, _PER_SLOT_BYTES = 400, 150, 500, 300


class SolutionTable(NamedTuple):
    """How the candidates of one solution are laid out as a table: one line for each tree, one column for each provider used.

    `places` has the place (position in the tree) for each column; `column_of_slot` the column that each slot takes from.
    """

    pattern: CandidatePattern
    places: tuple[int, ...]
    column_of_slot: tuple[int, ...]


class Patterns:
    """The patterns of one query's solutions: solutions in which the same slots share a provider have one pattern, made once."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._patterns: dict[tuple[int, ...], CandidatePattern] = {}

    def __len__(self) -> int:
        return len(self._patterns)

    def of(self, solution: tuple[int, ...]) -> SolutionTable:
        column_of = {place: column for column, place in enumerate(dict.fromkeys(solution))}
        columns = tuple([column_of[place] for place in solution])
        pattern = self._patterns.get(columns)
        if pattern is None:
            pattern = self._patterns[columns] = _pattern(self._slots, columns)
        return SolutionTable(pattern, tuple(column_of), columns)


class BlockMaker:
    """Makes the candidates of all solutions of one query. A candidate that takes from sharing providers alone may come from
    several trees: those that were already returned are remembered.
    """

    def __init__(self, index: ProviderIndex, slots: Sequence[Slot], budget: Budget) -> None:
        self._index = index
        self._budget = budget
        self._patterns = Patterns(slots)
        self._seen: set[tuple[int, ...]] = set()

    def new_candidates(self, class_problem: ClassProblem, solution: tuple[int, ...]) -> Block:
        """The candidates of a solution in all trees of a class, without those already returned for another tree."""
        block = self.candidates((class_problem.tree_class,), class_problem.problem, solution)
        if not self._index.sharing:
            return block
        rows = self._not_seen(block.rows, self._patterns.of(solution).column_of_slot)
        return Block(block.pattern, rows, block.preference)

    def candidates(
        self, classes: Sequence[TreeClass], problem: SlotProblem, solution: tuple[int, ...]
    ) -> Block:
        """The candidates of a solution, one for each tree of these classes. All of the classes have this `problem`."""
        self._budget.spend(4 * len(solution))
        known = len(self._patterns)
        pattern, places, columns = self._patterns.of(solution)
        if len(self._patterns) > known:
            self._budget.spend(10 * len(columns))
            self._budget.hold(_PATTERN_BYTES + _PER_SLOT_BYTES * len(columns))
        rows = [_rows(each, places) for each in classes]
        block = Block(
            pattern, rows[0] if len(rows) == 1 else np.concatenate(rows), problem.preference(solution)
        )
        self._budget.spend(block.rows.size // ROWS_PER_STEP)
        self._budget.hold(_BLOCK_BYTES + block.rows.nbytes)
        return block

    def _not_seen(self, rows: Rows, columns: tuple[int, ...]) -> Rows:
        """Of candidates that take from sharing providers alone, keep those that were not returned before."""
        shared = np.flatnonzero(self._index.shares[rows].all(axis=1))
        if not len(shared):
            return rows
        wanted = np.ones(len(rows), dtype=np.bool_)
        for line in shared.tolist():
            self._budget.spend(len(columns))
            self._budget.hold(_SEEN_BYTES + 8 * len(columns))
            providers = rows[line].tolist()
            candidate = tuple(providers[column] for column in columns)
            wanted[line] = candidate not in self._seen
            self._seen.add(candidate)
        return rows[wanted]


def _rows(tree_class: TreeClass, places: Sequence[int]) -> Rows:
    first = tree_class.rows.shape[1]
    if all(place >= first for place in places):
        # All places are pools: the candidate is the same for all trees of the class.
        return np.array([[tree_class.pools[place - first] for place in places]], dtype=np.intp)
    rows = np.empty((len(tree_class.rows), len(places)), dtype=np.intp)
    for column, place in enumerate(places):
        rows[:, column] = tree_class.rows[:, place] if place < first else tree_class.pools[place - first]
    return rows


def _pattern(slots: Sequence[Slot], columns: Sequence[int]) -> CandidatePattern:
    amounts: list[dict[str, int]] = [{} for _ in range(max(columns) + 1)]
    mappings: dict[str, dict[int, None]] = {}
    for slot, column in zip(slots, columns, strict=True):
        for resource, amount in slot.resources:
            amounts[column][resource] = amounts[column].get(resource, 0) + amount
        mappings.setdefault(slot.suffix, {})[column] = None
    return CandidatePattern(tuple(amounts), tuple((suffix, tuple(of)) for suffix, of in mappings.items()))
