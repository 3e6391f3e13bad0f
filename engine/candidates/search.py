"""Find all candidates of a query, or as many as its limit allows.

The search groups equal trees into classes, and solves the query once for each class. It goes in rounds: the first solution
of each class, then the second of each class that has one, and so on. So each tree has one candidate before any has two. A
tree with many solutions hides no other tree, and with a limit little more is computed than is returned.

By preferred traits, each round is put in order: the classes with the better solutions first. So a limit keeps the best trees,
and cuts off none of them for a second candidate of another. What is kept is then put in order as a whole. Within one tree
the search takes the best place of each slot in turn, so its first solution need not be its best one.

A candidate that takes from pools alone is the same candidate under each root that these pools share with. The first class of
trees in which certain pools fit the parts of the query finds these candidates. A later class with the same pools looks
only for candidates that take something from its trees.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from engine.candidates.budget import ROWS_PER_STEP, Budget
from engine.candidates.columns import Rows
from engine.candidates.provider_index import ProviderIndex
from engine.candidates.query import Block, CandidatePattern, CandidatesQuery, FoundCandidates
from engine.candidates.slot_solver import SlotProblem, solutions
from engine.candidates.slots import ClassProblem, ProblemBuilder
from engine.candidates.suitable import (
    EVERYTHING,
    FittingProviders,
    SearchScope,
    Slot,
    TreeClass,
    fit,
    packings_of,
    tree_classes,
)

# Turn a solution that was found once for a group of equal trees (TreeClass) into candidates: one for each of the trees.


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


# A class of trees, and its solutions still to come.
_Waiting = tuple[ClassProblem, Iterator[tuple[int, ...]]]


def find_candidates(
    index: ProviderIndex, query: CandidatesQuery, budget: Budget | None = None
) -> FoundCandidates:
    """The candidates of a query, up to its limit. Their order is the same as long as the index is the same.

    Raises CutError when the budget is spent. Without `budget` the default limits apply.
    """
    left = query.limit
    blocks: list[Block] = []
    for block in _all_blocks(index, query, budget or Budget()):
        rows = block.rows
        if left is not None:
            rows = rows[:left]
            left -= len(rows)
        if len(rows):
            blocks.append(Block(block.pattern, rows, block.preference))
        if left == 0:
            break
    if _prefers(query):
        blocks.sort(key=_best_first)
    return FoundCandidates(_joined(blocks))


def _prefers(query: CandidatesQuery) -> bool:
    return any(group.preferred for group in query.groups)


def _best_first(block: Block) -> float:
    return -block.preference


def _joined(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """Put neighbouring blocks of candidates together if they have the same pattern and are worth the same. Each
    solution of a tree makes a block of its own.
    """
    joined = []
    for (_, preference), alike in groupby(blocks, key=lambda block: (id(block.pattern), block.preference)):
        neighbours = list(alike)
        rows = (
            neighbours[0].rows
            if len(neighbours) == 1
            else np.concatenate([block.rows for block in neighbours])
        )
        joined.append(Block(neighbours[0].pattern, rows, preference))
    return tuple(joined)


def _all_blocks(index: ProviderIndex, query: CandidatesQuery, budget: Budget) -> Iterator[Block]:
    found = problems_of(index, query, EVERYTHING, budget)
    if found is None:
        return
    fitting, builder, problems = found
    # Each class with a certain choice of pools counts, in this order.
    class_problem: Iterable[ClassProblem] = map(builder.without_repeated, problems)
    making = BlockMaker(index, fitting.slots, budget)
    for found_now in _rounds(class_problem, budget):
        made = (making.new_candidates(each, solution) for each, solution in found_now)
        yield from sorted(made, key=_best_first) if _prefers(query) else made


class Problems(NamedTuple):
    fitting: FittingProviders
    builder: ProblemBuilder
    of_classes: Iterable[ClassProblem]


def problems_of(
    index: ProviderIndex, query: CandidatesQuery, scope: SearchScope, budget: Budget
) -> Problems | None:
    """For each class of equal trees, the problem that `slot_solver` solves, built when it is needed. None if there is certainly
    no candidate.
    """
    index.attach_trees()
    fitting = fit(index, query, scope, budget)
    if fitting is None:
        return None
    isolate = query.group_policy == "isolate"
    packings = packings_of(index, fitting.slots, budget, isolate=isolate, taken=scope.taken)
    builder = ProblemBuilder(index, query, fitting.slots, fitting.having_traits, packings)
    classes = tree_classes(index, fitting, packings, budget)
    return Problems(fitting, builder, (builder.of_class(each, budget) for each in classes))


def _rounds(
    class_problem: Iterable[ClassProblem], budget: Budget
) -> Iterator[Iterator[tuple[ClassProblem, tuple[int, ...]]]]:
    """The first solution of each problem, then the second of each problem that has one, and so on. Each is computed when it
    is needed. A round must be read before the next one.
    """
    waiting: Iterator[_Waiting] = ((each, solutions(each.problem, budget)) for each in class_problem)
    while True:
        stayed: list[_Waiting] = []
        yield _round(waiting, stayed, budget)
        if not stayed:
            return
        waiting = iter(stayed)


def _round(
    waiting: Iterator[_Waiting], stayed: list[_Waiting], budget: Budget
) -> Iterator[tuple[ClassProblem, tuple[int, ...]]]:
    """The next solution of each problem that has one; these are added to `stayed`."""
    for each, found in waiting:
        solution = next(found, None)
        if solution is not None:
            budget.progress()
            yield each, solution
            stayed.append((each, found))
        else:
            budget.let_go(each.size)
