"""Find the ways of hosts: from which providers of its tree, and of its pools, could a host give an instance its amounts?

A way must take something from the host's own tree. The tree's own providers are tried before pools.

There are two searches. `ways_of_trees` searches all trees at once, by classes of equal trees, as the search for candidates
does. `TreeSearch` searches single trees, for each boot, so it may not read columns as a whole. Only traits, aggregates and
trees are read for all providers, once for all requests of a batch that ask for the same. Trees of the same hardware and room
state the same problem, and each problem is solved once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import NamedTuple

import numpy as np
from msgspec import structs

from engine.candidates.budget import Budget, CutError, SharedBudget
from engine.candidates.columns import Rows, Stock, TreeLayout
from engine.candidates.provider_index import ProviderIndex
from engine.candidates.query import Block, CandidatePattern, CandidatesQuery, Group
from engine.candidates.search import BlockMaker, Patterns, problems_of
from engine.candidates.slot_solver import SlotProblem, solutions
from engine.candidates.slots import ProblemBuilder
from engine.candidates.suitable import (
    Amounts,
    RowPacking,
    SearchScope,
    Slot,
    SuitableProviders,
    TreeClass,
    conditions_of,
    is_unknown,
    packed_amounts,
    possible_roots,
    slots_of,
    suitable_providers,
)


class InTrees(NamedTuple):
    """Found ways: each line of `block` is a way of the tree under the root in the same line of `roots` (rows)."""

    roots: Rows
    block: Block


class CutInTrees(NamedTuple):
    """Trees, given by their roots, whose search was cut after so many `steps`: they may have a way or not."""

    roots: Rows
    steps: int


def ways_of_trees(
    index: ProviderIndex, query: CandidatesQuery, scope: SearchScope, shared: SharedBudget, *, ways: int = 1
) -> Iterator[InTrees | CutInTrees]:
    """Search all trees in the scope for up to `ways` ways each. Trees whose search was cut before it found any come as
    `CutInTrees`.
    """
    # This part costs as many passes over the columns as the query has parts, so the default budget is enough.
    found = problems_of(index, query, scope, Budget())
    if found is None:
        return
    # Classes that differ in their pools alone often are one problem: it is solved once.
    alike = dict[SlotProblem, list[TreeClass]]()
    for each in found.of_classes:
        problem = structs.replace(each.problem, needs_own=True)
        alike.setdefault(problem, []).append(each.tree_class)
    slots = found.fitting.slots
    for problem, classes in alike.items():
        budget = shared.for_a_tree(len(slots))
        making = BlockMaker(index, slots, budget)
        roots = np.concatenate([each.rows[:, 0] for each in classes])
        found_here = 0
        try:
            for solution in islice(_taking_from_tree(problem, budget), ways):
                block = making.candidates(classes, problem, solution)
                found_here += 1
                yield InTrees(roots, block)
        except CutError:
            if not found_here:
                yield CutInTrees(roots, budget.steps)
        shared.settle(budget, len(slots))


class TreeWay(NamedTuple):
    """One way of a tree: the rows of the providers that are used, one for each column of the pattern, and the weight of their
    preferred traits.
    """

    pattern: CandidatePattern
    rows: tuple[int, ...]
    preference: float


class TreeSearch:
    """Searches single trees of an index for ways, and keeps what several searches of one batch need.

    The index must not change meanwhile. `taken` is what is reserved beside the usage in the index, by resource class and
    row; the caller may add to it between searches.
    """

    def __init__(
        self,
        index: ProviderIndex,
        taken: dict[str, dict[int, int]],
        shared: SharedBudget,
    ) -> None:
        index.attach_trees()
        self._index = index
        self._taken = taken
        self._shared = shared
        self._suited: dict[tuple[object, ...], _SuitablePlaces] = {}
        # By root and barred pools: the layout, its rows and its pools.
        self._trees: dict[tuple[int, frozenset[int]], tuple[TreeLayout, list[int], list[int]] | None] = {}
        # The first solutions of each problem, as many as were asked for.
        self._solved: dict[tuple[SlotProblem, int], tuple[tuple[int, ...], ...]] = {}

    def ways_of(
        self, query: CandidatesQuery, most: int, *, pools_may_suffice: bool = False
    ) -> Callable[[int, frozenset[int]], list[TreeWay]]:
        """A function that finds up to `most` ways of the tree under a root (row), without the pools in its second argument.
        If the search is cut before it finds any, there are none.

        With `pools_may_suffice` a way may also take from pools alone: the query is then only a part of what the instance
        takes.
        """
        index = self._index
        if any(is_unknown(index, group) for group in query.groups):
            return lambda _root, _barred: []
        parts = [(group, self._suited_for(group)) for group in query.groups]
        slots = [
            self._slot(group, resources, suited) for group, suited in parts for resources in slots_of(group)
        ]
        having_traits = next(
            (suited.suits.having_traits for _, suited in parts if suited.suits.having_traits), ()
        )
        packings = [
            RowPacking(amounts, _RoomAt(index, resource, self._taken.setdefault(resource, {})))
            for resource, amounts in packed_amounts(slots, isolate=query.group_policy == "isolate")
        ]
        builder = ProblemBuilder(index, query, slots, having_traits, packings)
        roots, patterns = possible_roots(index, query), Patterns(slots)
        table_of = cache(patterns.of)

        def ways(root: int, barred: frozenset[int]) -> list[TreeWay]:
            tree = self._tree(root, barred) if roots[root] else None
            if tree is None:
                return []
            layout, own, pools = tree
            problem = builder.of_tree(layout, own, pools, needs_own=not pools_may_suffice)
            if not all(problem.domains):
                return []
            rows = (*own, *pools)
            found = []
            for solution in self._solutions(problem, most):
                table = table_of(solution)
                providers = tuple([rows[place] for place in table.places])
                found.append(TreeWay(table.pattern, providers, problem.preference(solution)))
            return found

        return ways

    def _tree(self, root: int, barred: frozenset[int]) -> tuple[TreeLayout, list[int], list[int]] | None:
        known = self._trees.get((root, barred))
        if known is None and (found := self._index.tree_of(root)) is not None:
            pools = [row for row in self._index.pools_of(root) if row not in barred]
            known = self._trees[root, barred] = *found, pools
        return known

    def _suited_for(self, group: Group) -> "_SuitablePlaces":
        """The providers that suit a group by all conditions but amounts. Groups that differ only in amounts share the result."""
        conditions = conditions_of(group)
        found = self._suited.get(conditions)
        if found is None:
            found = self._suited[conditions] = _SuitablePlaces(suitable_providers(self._index, group))
        return found

    def _slot(self, group: Group, resources: Amounts, suited: "_SuitablePlaces") -> Slot:
        asked = [
            (self._index.stocks[resource], amount, self._taken.setdefault(resource, {}))
            for resource, amount in resources
        ]
        return _TreeSlot(group.suffix, resources, suited.suits.worth, suited, asked)

    def _solutions(self, problem: SlotProblem, most: int) -> Sequence[tuple[int, ...]]:
        key = problem, most
        solved = self._solved.get(key)
        if solved is None:
            slots = len(problem.domains)
            budget = self._shared.for_a_tree(slots)
            search = _taking_from_tree if problem.needs_own else solutions
            solved = self._solved[key] = tuple(_until_cut(islice(search(problem, budget), most)))
            self._shared.settle(budget, slots)
        return solved


class _SuitablePlaces:
    """The providers of each tree that suit a group by all conditions but amounts, read once for all requests of a batch."""

    __slots__ = ("_known", "suits")

    def __init__(self, suits: SuitableProviders) -> None:
        self.suits = suits
        self._known: dict[tuple[int, ...], list[tuple[int, int]]] = {}

    def places(self, rows: tuple[int, ...], own: int) -> list[tuple[int, int]]:
        """The providers of a tree that suit the group, each as a bit and a row. Bit n stands for rows[n]: first the tree's
        `own` providers, then its pools.
        """
        places = self._known.get(rows)
        if places is None:
            there, shared = self.suits.own, self.suits.shared
            places = self._known[rows] = [
                (1 << place, row)
                for place, row in enumerate(rows)
                if (there[row] if place < own else shared is not None and shared[row])
            ]
        return places


class _TreeSlot(Slot, frozen=True):
    """A slot (part of the query) in a search of single trees: it looks only at the inventories of that tree's providers."""

    suited: _SuitablePlaces
    asked: Sequence[tuple[Stock, int, Mapping[int, int]]]

    def domain(self, rows: tuple[int, ...], own: int) -> int:
        domain = 0
        for bit, row in self.suited.places(rows, own):
            for stock, amount, taken in self.asked:
                if not stock.gives(amount, row, taken.get(row, 0)):
                    break
            else:
                domain |= bit
        return domain


class _RoomAt:
    """How much each provider can give of one resource class to all slots of a query together. The amount of a provider (row)
    is computed when it is asked for.
    """

    __slots__ = ("_stock", "_taken")

    def __init__(self, index: ProviderIndex, resource: str, taken: Mapping[int, int]) -> None:
        self._stock = index.stocks[resource]
        self._taken = taken

    def __getitem__(self, row: int) -> int:
        return self._stock.room_at(row, self._taken.get(row, 0))


def _taking_from_tree(problem: SlotProblem, budget: Budget) -> Iterator[tuple[int, ...]]:
    """The solutions in which a slot takes resources from the tree itself. In others only groups without resources get places
    of the tree.
    """
    for solution in solutions(problem, budget):
        if any(problem.own >> solution[slot] & 1 for slot in problem.taking):
            yield solution


def _until_cut(found: Iterator[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    try:
        yield from found
    except CutError:
        return
