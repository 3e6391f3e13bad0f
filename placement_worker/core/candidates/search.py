"""Find all candidates of a query, or as many as its limit allows.

The search groups equal trees into classes, and solves the query once for each class. It goes in rounds: the first solution
of each class, then the second of each class that has one, and so on. So each tree has one candidate before any has two. A
tree with many solutions hides no other tree, and with a limit little more is computed than is returned.

A candidate that takes from pools alone is the same candidate under each root that these pools share with. The first class of
trees in which certain pools fit the parts of the query finds these candidates. A later class with the same pools looks
only for candidates that take something from its trees.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np

from placement_worker.core.candidates.blocks import BlockMaker
from placement_worker.core.candidates.budget import Budget
from placement_worker.core.candidates.fitting import EVERYTHING, FittingProviders, Scope, fit
from placement_worker.core.candidates.found import Block, Candidates
from placement_worker.core.candidates.packings import packings_of
from placement_worker.core.candidates.provider_index import ProviderIndex
from placement_worker.core.candidates.query import CandidatesQuery
from placement_worker.core.candidates.slot_problems import ClassProblem, ProblemBuilder
from placement_worker.core.candidates.slot_solver import solutions
from placement_worker.core.candidates.tree_classes import tree_classes

# A class of trees, and its solutions still to come.
_Waiting = tuple[ClassProblem, Iterator[tuple[int, ...]]]


def find_candidates(index: ProviderIndex, query: CandidatesQuery, budget: Budget | None = None) -> Candidates:
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
    return Candidates(_joined(blocks))


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
    if any(group.preferred for group in query.groups):
        class_problem = sorted(class_problem, key=lambda each: -each.worth_at_most)
    making = BlockMaker(index, fitting.slots, budget)
    for each, solution in _rounds(class_problem, budget):
        yield making.new_candidates(each, solution)


class Problems(NamedTuple):
    fitting: FittingProviders
    builder: ProblemBuilder
    of_classes: Iterable[ClassProblem]


def problems_of(
    index: ProviderIndex, query: CandidatesQuery, scope: Scope, budget: Budget
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
) -> Iterator[tuple[ClassProblem, tuple[int, ...]]]:
    """The first solution of each problem, then the second of each problem that has one, and so on. Each is computed when it
    is needed.
    """
    waiting: Iterator[_Waiting] = ((each, solutions(each.problem, budget)) for each in class_problem)
    while True:
        stayed = []
        for each, found in waiting:
            solution = next(found, None)
            if solution is not None:
                budget.progress()
                yield each, solution
                stayed.append((each, found))
            else:
                budget.let_go(each.size)
        if not stayed:
            return
        waiting = iter(stayed)
