"""State the problem that slot_solver.py solves for a tree, or for a class of equal trees: which providers of the tree and its
pools fit each slot (part of the query), and all conditions between slots.
"""

from collections.abc import Sequence

from msgspec import Struct, structs

from engine.candidates.budget import Budget
from engine.candidates.columns import Flags, TreeLayout
from engine.candidates.provider_index import ProviderIndex
from engine.candidates.query import CELL_TRAIT, CandidatesQuery, NearSlots, places_in
from engine.candidates.slot_solver import Packing, SlotProblem
from engine.candidates.suitable import RowPacking, Slot, TreeClass


class ClassProblem(Struct, frozen=True):
    """A class of equal trees, and the problem to solve for it. `size` is the memory of all this in bytes, as charged to the
    budget.
    """

    tree_class: TreeClass
    problem: SlotProblem
    size: int


class ProblemBuilder:
    """Builds the problems of one query for many trees. In a problem the places are the providers of a tree from the root
    down, then the pools that share with it.
    """

    def __init__(
        self,
        provider_index: ProviderIndex,
        query: CandidatesQuery,
        slots: Sequence[Slot],
        having_traits: Sequence[Flags],
        packings: Sequence[RowPacking],
    ) -> None:
        self._index = provider_index
        self._slots = slots
        self._having_traits = having_traits
        self._packings = packings
        self._subtrees = tuple(
            tuple(index for index, slot in enumerate(slots) if slot.is_suffixed and slot.suffix in suffixes)
            for suffixes in dict.fromkeys(query.same_subtree)
        )
        self._suffixed = frozenset(index for index, slot in enumerate(slots) if slot.is_suffixed)
        self._unsuffixed = frozenset(range(len(slots))) - self._suffixed
        by_suffix = {slot.suffix: index for index, slot in enumerate(slots) if slot.is_suffixed}
        cells = tuple([by_suffix[suffix] for suffix in query.cells])
        self._differing = self._suffixed if query.group_policy == "isolate" else frozenset(cells)
        self._near = tuple([NearSlots(by_suffix[suffix], cells, nearness) for suffix, nearness in query.near])
        everywhere = provider_index.everywhere
        self._cells = provider_index.traits.having_any((CELL_TRAIT,), everywhere) if query.near else None
        self._taking = frozenset(index for index, slot in enumerate(slots) if slot.resources)
        self._one_per_tree = query.one_provider_per_tree
        self._some_are_preferred = any(slot.worth is not None for slot in slots)
        self._choices_of_pools: set[tuple[frozenset[int], ...]] = set()

    def of_class(self, tree_class: TreeClass, budget: Budget) -> ClassProblem:
        # All trees of a class are alike, so the first one stands for them.
        own, pools = tree_class.rows[0].tolist(), tree_class.pools
        size = self._charge(tree_class, len(own) + len(pools), budget)
        return ClassProblem(tree_class, self.of_tree(tree_class.layout, own, pools), size)

    def of_tree(
        self, layout: TreeLayout, own: Sequence[int], pools: Sequence[int], *, needs_own: bool = False
    ) -> SlotProblem:
        """The problem of giving each slot (part of the query) one of the tree's `own` providers or of its `pools` (rows).

        With `needs_own` at least one slot must get one of the tree's own providers.
        """
        rows, places = (*own, *pools), len(own)
        # Lists are faster to make than to draw from generators, and single trees are searched for each boot.
        return SlotProblem(
            domains=tuple([slot.domain(rows, places) for slot in self._slots]),
            under=(*layout.under, *self._under_pools(pools, places)) if pools else layout.under,
            differing=self._differing,
            subtrees=self._subtrees,
            packings=tuple(
                [
                    Packing(packing.amounts, tuple([int(packing.room[row]) for row in rows]))
                    for packing in self._packings
                ]
            ),
            unsuffixed=self._unsuffixed,
            has_traits=tuple([self._traits_at(row) for row in rows]) if self._having_traits else (),
            wanted=(1 << len(self._having_traits)) - 1,
            taking=self._taking,
            excludes=self._excludes(pools, places) if self._one_per_tree else (),
            needs_own=needs_own,
            worth=self._preferences(rows),
            near=self._near,
            in_cells=self._in_cells(layout, own),
        )

    def _in_cells(self, layout: TreeLayout, own: Sequence[int]) -> int:
        """The places of a tree that are at or below a NUMA cell, as bits."""
        if self._cells is None:
            return 0
        inside = 0
        for place, row in enumerate(own):
            if self._cells[row]:
                inside |= layout.under[place]
        return inside

    def _traits_at(self, row: int) -> int:
        return sum([1 << number for number, bearing in enumerate(self._having_traits) if bearing[row]])

    def without_repeated(self, each: ClassProblem) -> ClassProblem:
        """The problem without the solutions that take from pools alone, if another class of trees already finds them."""
        rows = (*each.tree_class.rows[0].tolist(), *each.tree_class.pools)
        if not self._is_repeated(each.problem, rows):
            return each
        return structs.replace(each, problem=structs.replace(each.problem, needs_own=True))

    def _charge(self, tree_class: TreeClass, places: int, budget: Budget) -> int:
        """Charge the budget for the problem of a class of trees before it is built. Returns the bytes of memory charged."""
        slots, pools = len(self._slots), len(tree_class.pools)
        looks = slots * places + pools * pools + places * (len(self._having_traits) + 2 * len(self._packings))
        size = 1_000 + 40 * slots + tree_class.rows.nbytes + places * (100 + 40 * len(self._packings))
        if any(slot.worth is not None for slot in self._slots):
            looks += slots * places
            size += 32 * slots * places
        budget.spend(looks)
        budget.hold(size)
        return size

    def _under_pools(self, pools: Sequence[int], first: int) -> list[int]:
        if len(pools) == 1:
            # Most trees have one or none.
            return [1 << first]
        return [
            sum([1 << first + other for other, row in enumerate(pools) if self._index.is_under(row, above)])
            for above in pools
        ]

    def _excludes(self, pools: Sequence[int], first: int) -> tuple[int, ...]:
        """For each place (provider of the tree, or pool), the other places in the same tree as bits: with
        `one_provider_per_tree` it excludes them.
        """
        own, root = (1 << first) - 1, self._index.root
        excludes = [own & ~(1 << place) for place in range(first)]
        for pool, row in enumerate(pools):
            excludes.append(
                sum(
                    1 << first + other
                    for other, beside in enumerate(pools)
                    if other != pool and root[beside] == root[row]
                )
            )
        return tuple(excludes)

    def _is_repeated(self, problem: SlotProblem, rows: Sequence[int]) -> bool:
        """Does an earlier class of trees already find all solutions of this problem that take from pools alone? `rows` are the
        providers of the places.
        """
        if not self._index.sharing:
            return False
        domains, own = problem.domains, problem.own
        asked = 0
        for domain in domains:
            asked |= domain
        if any(self._index.shares[rows[place]] for place in places_in(asked & own)):
            # A sharing provider is no pool in its own tree, so another class may lack some of these.
            return False
        choice = tuple(frozenset(rows[place] for place in places_in(domain & ~own)) for domain in domains)
        if choice in self._choices_of_pools:
            return True
        self._choices_of_pools.add(choice)
        return False

    def _preferences(self, rows: Sequence[int]) -> tuple[tuple[float, ...], ...]:
        if not self._some_are_preferred:
            return ()
        return tuple(
            tuple(0.0 if slot.worth is None else float(slot.worth[row]) for row in rows)
            for slot in self._slots
        )
