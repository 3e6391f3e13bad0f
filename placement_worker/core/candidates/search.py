"""Find candidates: which providers suit (fitting), which trees are alike (tree_classes), how to assign (slot_solver).

The search goes in rounds: the first solution of each class of trees, then the second of each class that has one, and so
on. So each tree has one candidate before any has two. A tree with many solutions hides no other, and with a limit
nothing more is computed than is returned.

Trees are independent, except for pools: what is taken from pools alone is the same candidate under each root that they
reach. The first class with a certain choice of pools finds those candidates. Other classes with the same choice look only
for candidates that take something from the tree.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np

from placement_worker.core.candidates.blocks import BlockMaker
from placement_worker.core.candidates.budget import Budget
from placement_worker.core.candidates.coupling import couplings_of
from placement_worker.core.candidates.fitting import EVERYTHING, Fitting, Scope, fit
from placement_worker.core.candidates.found import Block, Candidates
from placement_worker.core.candidates.provider_index import ProviderIndex
from placement_worker.core.candidates.query import CandidatesQuery
from placement_worker.core.candidates.slot_problems import ClassProblem, ProblemBuilder
from placement_worker.core.candidates.slot_solver import solutions
from placement_worker.core.candidates.tree_classes import tree_classes

# A class of trees, and its solutions still to come.
_Waiting = tuple[ClassProblem, Iterator[tuple[int, ...]]]


def find_candidates(index: ProviderIndex, query: CandidatesQuery, budget: Budget | None = None) -> Candidates:
    """As many as the query allows; the order does not change while the index does not change.

    Raises CutError when the budget is spent. Without `budget` it is the default one.
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
    return Candidates(_joined(blocks))


def _joined(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """Join neighbouring blocks of one pattern: a tree of many solutions returns them one by one."""
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
    class_problem: Iterable[ClassProblem] = map(builder.without_met, problems)
    if any(group.preferred for group in query.groups):
        class_problem = sorted(class_problem, key=lambda each: -each.worth_at_most)
    making = BlockMaker(index, fitting.slots, budget)
    for each, solution in _rounds(class_problem, budget):
        yield making.block(each, solution)


class Problems(NamedTuple):
    fitting: Fitting
    builder: ProblemBuilder
    of_classes: Iterable[ClassProblem]


def problems_of(
    index: ProviderIndex, query: CandidatesQuery, scope: Scope, budget: Budget
) -> Problems | None:
    """The problem of each class of trees, built when it is needed; None if there is certainly no candidate."""
    index.attach_trees()
    fitting = fit(index, query, scope, budget)
    if fitting is None:
        return None
    isolate = query.group_policy == "isolate"
    couplings = couplings_of(index, fitting.slots, budget, isolate=isolate, taken=scope.taken)
    builder = ProblemBuilder(index, query, fitting.slots, fitting.together, couplings)
    classes = tree_classes(index, fitting, couplings, budget)
    return Problems(fitting, builder, (builder.of_class(each, budget) for each in classes))


def _rounds(
    class_problem: Iterable[ClassProblem], budget: Budget
) -> Iterator[tuple[ClassProblem, tuple[int, ...]]]:
    """One solution of each, then another of each that has more. None is computed before it is needed."""
    waiting: Iterator[_Waiting] = ((each, solutions(each.problem, budget)) for each in class_problem)
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
