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
from msgspec import structs

from placement_worker.core.candidates.blocks import BlockMaker
from placement_worker.core.candidates.budget import Budget, CutError, SharedBudget
from placement_worker.core.candidates.columns import Rows
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


def find_candidates(
    index: ProviderIndex, query: CandidatesQuery, skip: int = 0, budget: Budget | None = None
) -> Candidates:
    """As many as the query allows, after the first `skip`; the order does not change while the index does not change.

    Raises CutError when the budget is spent. Without `budget` it is the default one.
    """
    left = query.limit
    blocks: list[Block] = []
    for block in _all_blocks(index, query, budget or Budget()):
        rows = block.rows
        if skip:
            rows, skip = rows[skip:], max(0, skip - len(rows))
        if left is not None:
            rows = rows[:left]
            left -= len(rows)
        if len(rows):
            blocks.append(Block(block.pattern, rows, block.preference))
        if left == 0:
            break
    return Candidates(_joined(blocks))


class InTrees(NamedTuple):
    """Candidates of one pattern, one for each of these trees (by their roots)."""

    roots: Rows
    block: Block


class CutInTrees(NamedTuple):
    """Trees that may have a candidate or not: to find out would cost too much."""

    roots: Rows
    steps: int


def find_ways_in_each_tree(
    index: ProviderIndex,
    query: CandidatesQuery,
    scope: Scope,
    shared: SharedBudget,
    *,
    ways: int = 1,
    may_be_shared_whole: bool = False,
) -> Iterator[InTrees | CutInTrees]:
    """For a consumer that will live in a tree, and so must take something from it: up to so many candidates for each tree
    that has any. The tree's own resources come before what is shared with it. A tree is told to be cut only if no
    candidate was found before.

    `may_be_shared_whole`: the query is a part of what the consumer takes, and may come from sharing providers alone.
    """
    # This part costs as many passes over the columns as the query has parts, so the default budget is enough.
    found = _problems_of(index, query, scope, Budget())
    if found is None:
        return
    fitting, problems = found
    taking = [number for number, slot in enumerate(fitting.slots) if slot.resources]
    for class_problem in problems:
        places = len(class_problem.tree_class.layout.parents)
        own = 0 if may_be_shared_whole else (1 << places) - 1
        budget = shared.for_a_tree(len(fitting.slots))
        roots = class_problem.tree_class.rows[:, 0]
        found_here = 0
        try:
            for solution in solutions(structs.replace(class_problem.problem, needs=own), budget):
                # A place of the tree may also be one that nothing is taken from.
                if may_be_shared_whole or any(solution[slot] < places for slot in taking):
                    block = BlockMaker(index, fitting.slots, budget).whole(class_problem, solution)
                    found_here += 1
                    yield InTrees(roots, block)
                    if found_here == ways:
                        break
        except CutError:
            if not found_here:
                yield CutInTrees(roots, budget.steps)
        shared.settle(budget, len(fitting.slots))


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
    found = _problems_of(index, query, EVERYTHING, budget)
    if found is None:
        return
    fitting, class_problem = found
    if any(group.preferred for group in query.groups):
        class_problem = sorted(class_problem, key=lambda each: -each.worth_at_most)
    making = BlockMaker(index, fitting.slots, budget)
    for each, solution in _rounds(class_problem, budget):
        yield making.block(each, solution)


def _problems_of(
    index: ProviderIndex, query: CandidatesQuery, scope: Scope, budget: Budget
) -> tuple[Fitting, Iterable[ClassProblem]] | None:
    """The problem of each class of trees, built when it is needed; None if there is certainly no candidate."""
    index.attach_trees()
    fitting = fit(index, query, scope, budget)
    if fitting is None:
        return None
    isolate = query.group_policy == "isolate"
    couplings = couplings_of(index, fitting.slots, budget, isolate=isolate, taken=scope.taken)
    builder = ProblemBuilder(index, query, fitting, couplings, budget)
    return fitting, map(builder.build, tree_classes(index, fitting, couplings, budget))


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
