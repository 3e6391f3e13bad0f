"""Find candidates: what would do (fitting), which trees are alike (stands), how it goes in each kind (puzzle).

Found in rounds: the first solution of every stand, in all its trees, then the second of every stand that has one, and so
on. So every tree has one candidate before any has two, a tree of many solutions hides nobody, and with a limit no more is
worked out than what is given.

Pools are the exception to trees being independent: what is taken from pools alone is the same candidate under each root
that they reach. The first stand that has certain pools to choose from finds those candidates; others with the same
choice look only for what takes something from the tree.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np
from msgspec import structs

from placement_worker.core.candidates.blocks import BlockMaker
from placement_worker.core.candidates.budget import Budget, CutError, SharedBudget
from placement_worker.core.candidates.columns import Rows
from placement_worker.core.candidates.coupling import couplings_of
from placement_worker.core.candidates.fitting import EVERYTHING, Fitting, Scope, fit
from placement_worker.core.candidates.found import Block, Candidates
from placement_worker.core.candidates.puzzle import solutions
from placement_worker.core.candidates.query import CandidatesQuery
from placement_worker.core.candidates.stands import stands
from placement_worker.core.candidates.stating import Stated, Stating
from placement_worker.core.candidates.woods import Woods

# A stand, and what is still to be found in it.
_Turn = tuple[Stated, Iterator[tuple[int, ...]]]


def find_candidates(
    woods: Woods, query: CandidatesQuery, skip: int = 0, budget: Budget | None = None
) -> Candidates:
    """As many as the query allows, after the first `skip`: the order is the same while the woods are. Raises CutError when
    the budget is spent, which is the default one where none is given.
    """
    left = query.limit
    blocks: list[Block] = []
    for block in _all_blocks(woods, query, budget or Budget()):
        rows = block.rows
        if skip:
            rows, skip = rows[skip:], max(0, skip - len(rows))
        if left is not None:
            rows = rows[:left]
            left -= len(rows)
        if len(rows):
            blocks.append(Block(block.shape, rows, block.preference))
        if left == 0:
            break
    return Candidates(_joined(blocks))


class InTrees(NamedTuple):
    """Candidates of one shape, one for each of these trees; by their roots."""

    roots: Rows
    block: Block


class CutInTrees(NamedTuple):
    """Trees of which nobody knows whether they have a candidate: the search of them would have cost too much."""

    roots: Rows
    steps: int


def find_one_in_each_tree(
    woods: Woods, query: CandidatesQuery, scope: Scope, shared: SharedBudget
) -> Iterator[InTrees | CutInTrees]:
    """For who is to live in a tree, and so must take something from it: a candidate that does so, of each tree that has
    one. What the tree itself gives comes before what is shared with it.
    """
    # What is said of all trees costs as many passes over columns as the question has parts, and no more.
    found = _state(woods, query, scope, Budget())
    if found is None:
        return
    fitting, all_stated = found
    for stated in all_stated:
        own = (1 << len(stated.stand.form.parents)) - 1
        budget = shared.for_a_tree(len(fitting.slots))
        roots = stated.stand.rows[:, 0]
        try:
            solution = next(solutions(structs.replace(stated.puzzle, needs=own), budget), None)
        except CutError:
            yield CutInTrees(roots, budget.steps)
        else:
            if solution is not None:
                yield InTrees(roots, BlockMaker(woods, fitting.slots, budget).whole(stated, solution))
        shared.settle(budget, len(fitting.slots))


def _joined(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """Neighbours of one shape as one block: a tree of many solutions tells them one by one."""
    joined = []
    for (_, preference), alike in groupby(blocks, key=lambda block: (id(block.shape), block.preference)):
        neighbours = list(alike)
        rows = (
            neighbours[0].rows
            if len(neighbours) == 1
            else np.concatenate([block.rows for block in neighbours])
        )
        joined.append(Block(neighbours[0].shape, rows, preference))
    return tuple(joined)


def _all_blocks(woods: Woods, query: CandidatesQuery, budget: Budget) -> Iterator[Block]:
    found = _state(woods, query, EVERYTHING, budget)
    if found is None:
        return
    fitting, stated = found
    if any(group.preferred for group in query.groups):
        stated = sorted(stated, key=lambda each: -each.worth_at_most)
    making = BlockMaker(woods, fitting.slots, budget)
    for each, solution in _rounds(stated, budget):
        yield making.block(each, solution)


def _state(
    woods: Woods, query: CandidatesQuery, scope: Scope, budget: Budget
) -> tuple[Fitting, Iterable[Stated]] | None:
    """The puzzle of each stand, stated when it is its turn; None if there is nobody to be found."""
    woods.plant()
    fitting = fit(woods, query, scope, budget)
    if fitting is None:
        return None
    isolate = query.group_policy == "isolate"
    couplings = couplings_of(woods, fitting.slots, budget, isolate=isolate, taken=scope.taken)
    stating = Stating(woods, query, fitting, couplings, budget)
    return fitting, map(stating.state, stands(woods, fitting, couplings, budget))


def _rounds(stated: Iterable[Stated], budget: Budget) -> Iterator[tuple[Stated, tuple[int, ...]]]:
    """A solution of each, then another of each that has more. None is looked at before it is its turn."""
    waiting: Iterator[_Turn] = ((each, solutions(each.puzzle, budget)) for each in stated)
    while True:
        stayed = []
        for each, found in waiting:
            solution = next(found, None)
            if solution is not None:
                yield each, solution
                stayed.append((each, found))
            else:
                budget.let_go(each.size)
        if not stayed:
            return
        waiting = iter(stayed)
