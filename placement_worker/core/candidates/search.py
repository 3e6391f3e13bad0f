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

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np

from placement_worker.core.candidates.blocks import BlockMaker
from placement_worker.core.candidates.budget import Budget
from placement_worker.core.candidates.fitting import EVERYTHING, FittingProviders, SearchScope, fit
from placement_worker.core.candidates.found import Block, FoundCandidates
from placement_worker.core.candidates.packings import packings_of
from placement_worker.core.candidates.provider_index import ProviderIndex
from placement_worker.core.candidates.query import CandidatesQuery
from placement_worker.core.candidates.slot_problems import ClassProblem, ProblemBuilder
from placement_worker.core.candidates.slot_solver import solutions
from placement_worker.core.candidates.tree_classes import tree_classes

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
