"""Find the ways of trees to serve a consumer that will live there. Each tree has up to so many candidates.

Such a consumer must take something from the tree itself. The tree's own resources come before what is shared with it.

All trees at once are searched by classes, as candidates are. To search one tree, or a few, no column is read as a whole.
The exception are the places that suit a group whatever the amounts: they are read once for all trees and requests of a
batch. Trees of one kind have the same problem, and each problem is solved once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from msgspec import structs

from placement_worker.core.candidates.blocks import BlockMaker, Columns, Patterns
from placement_worker.core.candidates.budget import Budget, CutError, SharedBudget
from placement_worker.core.candidates.columns import Flags, Rows, Stock
from placement_worker.core.candidates.coupling import Coupled, coupled_amounts
from placement_worker.core.candidates.fitting import Scope, Slot
from placement_worker.core.candidates.found import Block, CandidatePattern
from placement_worker.core.candidates.layouts import TreeLayout
from placement_worker.core.candidates.provider_index import ProviderIndex
from placement_worker.core.candidates.query import CandidatesQuery, Group
from placement_worker.core.candidates.search import problems_of
from placement_worker.core.candidates.slot_problems import ProblemBuilder
from placement_worker.core.candidates.slot_solver import SlotProblem, solutions
from placement_worker.core.candidates.suiting import Amounts, Suiting, may_anchor, slots_of, suiting
from placement_worker.core.candidates.tree_classes import TreeClass


class InTrees(NamedTuple):
    """Candidates of one pattern, one for each of these trees (given by their roots)."""

    roots: Rows
    block: Block


class CutInTrees(NamedTuple):
    """Trees that may have a way or not: to find out would cost too much."""

    roots: Rows
    steps: int


def ways_of_trees(
    index: ProviderIndex, query: CandidatesQuery, scope: Scope, shared: SharedBudget, *, ways: int = 1
) -> Iterator[InTrees | CutInTrees]:
    """Up to `ways` candidates in each tree. A search that was cut short is reported only if it had found none."""
    # This part costs as many passes over the columns as the query has parts, so the default budget is enough.
    found = problems_of(index, query, scope, Budget())
    if found is None:
        return
    # Classes that differ in their pools alone often are one problem: it is solved once.
    alike = dict[tuple[int, SlotProblem], list[TreeClass]]()
    for each in found.of_classes:
        places = len(each.tree_class.layout.parents)
        problem = structs.replace(each.problem, needs=_own_places(places))
        alike.setdefault((places, problem), []).append(each.tree_class)
    slots = found.fitting.slots
    for (places, problem), classes in alike.items():
        budget = shared.for_a_tree(len(slots))
        making = BlockMaker(index, slots, budget)
        roots = np.concatenate([each.rows[:, 0] for each in classes])
        found_here = 0
        try:
            for solution in islice(_inhabiting(problem, places, budget), ways):
                block = making.whole(classes, problem, solution)
                found_here += 1
                yield InTrees(roots, block)
        except CutError:
            if not found_here:
                yield CutInTrees(roots, budget.steps)
        shared.settle(budget, len(slots))


class TreeWay(NamedTuple):
    """The providers that serve a query, one for each column of the pattern, and the worth of their preferred traits."""

    pattern: CandidatePattern
    rows: tuple[int, ...]
    preference: float


class TreeSearch:
    """Searches one tree of an index after another. The index does not change meanwhile, but the caller may count more as
    `taken` beside its usage: by class and row.
    """

    def __init__(self, index: ProviderIndex, taken: dict[str, dict[int, int]], shared: SharedBudget) -> None:
        index.attach_trees()
        self._index = index
        self._taken = taken
        self._shared = shared
        self._suited: dict[tuple[object, ...], _Suited] = {}
        # By root and barred pools: the layout, its rows and its pools.
        self._trees: dict[tuple[int, frozenset[int]], tuple[TreeLayout, list[int], list[int]] | None] = {}
        self._anchors: dict[tuple[object, ...], Flags] = {}
        # The first solutions of each problem, as many as were asked for.
        self._solved: dict[tuple[SlotProblem, int], tuple[tuple[int, ...], ...]] = {}

    def ways_of(
        self, query: CandidatesQuery, most: int, *, may_be_shared_whole: bool = False
    ) -> Callable[[int, frozenset[int]], list[TreeWay]]:
        """A function that gives up to so many ways of the tree under a root, without certain pools. If the search was cut
        before it found any, there are none. `may_be_shared_whole`: the query is a part of what the consumer takes, and may
        come from sharing providers alone.
        """
        index = self._index
        if any(_is_unknown(index, group) for group in query.groups):
            return lambda _root, _barred: []
        parts = [(group, self._suited_for(group)) for group in query.groups]
        slots = [
            self._slot(group, resources, suited) for group, suited in parts for resources in slots_of(group)
        ]
        together = next((suited.suits.together for _, suited in parts if suited.suits.together), ())
        coupled = [
            Coupled(amounts, _RoomAt(index, resource, self._taken.setdefault(resource, {})))
            for resource, amounts in coupled_amounts(slots, isolate=query.group_policy == "isolate")
        ]
        builder = ProblemBuilder(index, query, slots, together, coupled)
        anchors, patterns = self._may_anchor(query), Patterns(slots)
        columns: dict[tuple[int, ...], Columns] = {}

        def ways(root: int, barred: frozenset[int]) -> list[TreeWay]:
            tree = self._tree(root, barred) if anchors[root] else None
            if tree is None:
                return []
            layout, own, pools = tree
            needs = 0 if may_be_shared_whole else _own_places(len(own))
            problem = builder.of_tree(layout, own, pools, needs=needs)
            if not all(problem.domains):
                return []
            rows = (*own, *pools)
            found = []
            for solution in self._solutions(problem, len(own), most, may_be_shared_whole=may_be_shared_whole):
                if (known := columns.get(solution)) is None:
                    known = columns[solution] = patterns.of(solution)
                places = tuple([rows[place] for place in known.places])
                found.append(TreeWay(known.pattern, places, problem.preference(solution)))
            return found

        return ways

    def _tree(self, root: int, barred: frozenset[int]) -> tuple[TreeLayout, list[int], list[int]] | None:
        known = self._trees.get((root, barred))
        if known is None and (found := self._index.tree_of(root)) is not None:
            pools = [row for row in self._index.pools_of(root) if row not in barred]
            known = self._trees[root, barred] = *found, pools
        return known

    def _suited_for(self, group: Group) -> "_Suited":
        """The providers that suit a group, whatever the amounts. Groups that differ only in amounts share the result."""
        conditions = (
            *(group.suffix == "", len(group.resources), group.required, group.forbidden, group.preferred),
            *(group.member_of, group.forbidden_aggregates, group.in_tree),
        )
        found = self._suited.get(conditions)
        if found is None:
            found = self._suited[conditions] = _Suited(suiting(self._index, group))
        return found

    def _may_anchor(self, query: CandidatesQuery) -> Flags:
        barred = tuple([group.forbidden_aggregates for group in query.groups if not group.suffix])
        asked = query.root_required, query.root_forbidden, barred
        found = self._anchors.get(asked)
        if found is None:
            found = self._anchors[asked] = may_anchor(self._index, query)
        return found

    def _slot(self, group: Group, resources: Amounts, suited: "_Suited") -> Slot:
        asked = [
            (self._index.stocks[resource], amount, self._taken.setdefault(resource, {}))
            for resource, amount in resources
        ]
        return _SlotOfTrees(group.suffix, resources, suited.suits.worth, suited, asked)

    def _solutions(
        self, problem: SlotProblem, places: int, most: int, *, may_be_shared_whole: bool
    ) -> Sequence[tuple[int, ...]]:
        key = problem, most
        solved = self._solved.get(key)
        if solved is None:
            slots = len(problem.domains)
            budget = self._shared.for_a_tree(slots)
            found = (
                solutions(problem, budget) if may_be_shared_whole else _inhabiting(problem, places, budget)
            )
            solved = self._solved[key] = tuple(_until_cut(islice(found, most)))
            self._shared.settle(budget, slots)
        return solved


class _Suited:
    """The places that suit a group whatever the amounts: each tree is read once for all requests of a batch."""

    __slots__ = ("_known", "suits")

    def __init__(self, suits: Suiting) -> None:
        self.suits = suits
        self._known: dict[tuple[int, ...], list[tuple[int, int]]] = {}

    def places(self, rows: tuple[int, ...], own: int) -> list[tuple[int, int]]:
        """The providers of a tree that suit the group: each as the bit of its place, with its row."""
        places = self._known.get(rows)
        if places is None:
            there, shared = self.suits.own, self.suits.shared
            places = self._known[rows] = [
                (1 << place, row)
                for place, row in enumerate(rows)
                if (there[row] if place < own else shared is not None and shared[row])
            ]
        return places


class _SlotOfTrees(Slot, frozen=True):
    """One part of the query in a search of single trees: only the providers of that tree are asked for what they can give."""

    suited: _Suited
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
    """The amounts of one class that providers (rows) have for several parts of the query, computed one row at a time."""

    __slots__ = ("_stock", "_taken")

    def __init__(self, index: ProviderIndex, resource: str, taken: Mapping[int, int]) -> None:
        self._stock = index.stocks[resource]
        self._taken = taken

    def __getitem__(self, row: int) -> int:
        return self._stock.room_at(row, self._taken.get(row, 0))


def _is_unknown(index: ProviderIndex, group: Group) -> bool:
    """Does the group ask for a tree or a resource class that no provider has?"""
    return (group.in_tree is not None and index.row_of(group.in_tree) is None) or not (
        group.resources.keys() <= index.stocks.keys()
    )


def _own_places(places: int) -> int:
    """The places of the tree itself as bits; they come before the pools. A solution needs at least one of them."""
    return (1 << places) - 1


def _inhabiting(problem: SlotProblem, places: int, budget: Budget) -> Iterator[tuple[int, ...]]:
    """The solutions that take something from the tree: at one of its places may also be a group without resources."""
    for solution in solutions(problem, budget):
        if any(solution[slot] < places for slot in problem.taking):
            yield solution


def _until_cut(found: Iterator[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    try:
        yield from found
    except CutError:
        return
