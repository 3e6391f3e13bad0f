"""The problem to solve for each class of equal trees: for each slot of the query, the places (providers) of the tree that suit
it, read from the columns of all providers. slot_solver.py solves it, and explains slots and places.
"""

from collections.abc import Sequence

from msgspec import Struct, structs

from placement_worker.core.candidates.budget import Budget
from placement_worker.core.candidates.columns import Flags
from placement_worker.core.candidates.coupling import Coupled
from placement_worker.core.candidates.fitting import Slot
from placement_worker.core.candidates.layouts import TreeLayout
from placement_worker.core.candidates.matching import places_in
from placement_worker.core.candidates.provider_index import ProviderIndex
from placement_worker.core.candidates.query import CandidatesQuery
from placement_worker.core.candidates.slot_solver import Packing, SlotProblem
from placement_worker.core.candidates.tree_classes import TreeClass


class ClassProblem(Struct, frozen=True):
    """`worth_at_most` is the value of a solution in which each slot has its best place; `size` is the memory of all this."""

    tree_class: TreeClass
    problem: SlotProblem
    worth_at_most: float
    size: int


class ProblemBuilder:
    """Builds the problems of one query. The places of a tree are those of its layout, and after them its pools."""

    def __init__(
        self,
        provider_index: ProviderIndex,
        query: CandidatesQuery,
        slots: Sequence[Slot],
        together: Sequence[Flags],
        couplings: Sequence[Coupled],
    ) -> None:
        self._index = provider_index
        self._slots = slots
        self._bearing = together
        self._couplings = couplings
        self._subtrees = tuple(
            tuple(index for index, slot in enumerate(slots) if slot.is_suffixed and slot.suffix in suffixes)
            for suffixes in dict.fromkeys(query.same_subtree)
        )
        self._suffixed = frozenset(index for index, slot in enumerate(slots) if slot.is_suffixed)
        self._unsuffixed = frozenset(range(len(slots))) - self._suffixed
        self._isolates = query.group_policy == "isolate"
        self._taking = frozenset(index for index, slot in enumerate(slots) if slot.resources)
        self._bars = query.one_provider_per_tree
        self._some_are_preferred = any(slot.worth is not None for slot in slots)
        self._met: set[tuple[frozenset[int], ...]] = set()

    def of_class(self, tree_class: TreeClass, budget: Budget) -> ClassProblem:
        # All trees of a class are alike, so the first one stands for them.
        own, pools = tree_class.rows[0].tolist(), tree_class.pools
        size = self._charge(tree_class, len(own) + len(pools), budget)
        problem = self.of_tree(tree_class.layout, own, pools)
        return ClassProblem(tree_class, problem, self._worth_at_most(problem.domains, problem.worth), size)

    def of_tree(
        self, layout: TreeLayout, own: Sequence[int], pools: Sequence[int], *, needs: int = 0
    ) -> SlotProblem:
        """The problem of assigning one tree's providers, and the sharing ones in `pools`, to the parts of the query."""
        rows, places = (*own, *pools), len(own)
        # Lists are faster to make than to draw from generators, and single trees are searched for each boot.
        return SlotProblem(
            domains=tuple([slot.domain(rows, places) for slot in self._slots]),
            under=(*layout.under, *self._under_pools(pools, places)) if pools else layout.under,
            differing=self._suffixed if self._isolates else frozenset(),
            subtrees=self._subtrees,
            packings=tuple(
                [
                    Packing(coupling.amounts, tuple([int(coupling.room[row]) for row in rows]))
                    for coupling in self._couplings
                ]
            ),
            together=self._unsuffixed,
            has_traits=tuple([self._traits_at(row) for row in rows]) if self._bearing else (),
            wanted=(1 << len(self._bearing)) - 1,
            taking=self._taking,
            barred=self._barred(pools, places) if self._bars else (),
            needs=needs,
            worth=self._preferences(rows),
        )

    def _traits_at(self, row: int) -> int:
        return sum([1 << number for number, bearing in enumerate(self._bearing) if bearing[row]])

    def without_met(self, each: ClassProblem) -> ClassProblem:
        """Leave out what is taken from sharing providers alone, where another class already finds it."""
        rows = (*each.tree_class.rows[0].tolist(), *each.tree_class.pools)
        own = (1 << len(each.tree_class.layout.parents)) - 1
        needs = self._needs(each.problem.domains, rows, own)
        return structs.replace(each, problem=structs.replace(each.problem, needs=needs)) if needs else each

    def _charge(self, tree_class: TreeClass, places: int, budget: Budget) -> int:
        """Charge the budget for stating the problem of a class of trees. Returns the memory charged."""
        slots, pools = len(self._slots), len(tree_class.pools)
        looks = slots * places + pools * pools + places * (len(self._bearing) + 2 * len(self._couplings))
        size = 1_000 + 40 * slots + tree_class.rows.nbytes + places * (100 + 40 * len(self._couplings))
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

    def _barred(self, pools: Sequence[int], first: int) -> tuple[int, ...]:
        """For each place (a provider of the tree or a sharing one), the other places in the same tree, as bits."""
        own, root = (1 << first) - 1, self._index.root
        barred = [own & ~(1 << place) for place in range(first)]
        for pool, row in enumerate(pools):
            barred.append(
                sum(
                    1 << first + other
                    for other, beside in enumerate(pools)
                    if other != pool and root[beside] == root[row]
                )
            )
        return tuple(barred)

    def _needs(self, domains: Sequence[int], rows: Sequence[int], own: int) -> int:
        """The tree's own places, if another class already finds all that is taken from sharing providers alone."""
        if not self._index.sharing:
            return 0
        asked = 0
        for domain in domains:
            asked |= domain
        if any(self._index.shares[rows[place]] for place in places_in(asked & own)):
            # A sharing provider is no pool in its own tree, so another class may lack some of these.
            return 0
        choice = tuple(frozenset(rows[place] for place in places_in(domain & ~own)) for domain in domains)
        if choice not in self._met:
            self._met.add(choice)
            return 0
        return own

    def _preferences(self, rows: Sequence[int]) -> tuple[tuple[float, ...], ...]:
        if not self._some_are_preferred:
            return ()
        return tuple(
            tuple(0.0 if slot.worth is None else float(slot.worth[row]) for row in rows)
            for slot in self._slots
        )

    def _worth_at_most(self, domains: Sequence[int], worth: tuple[tuple[float, ...], ...]) -> float:
        if not worth:
            return 0.0
        return sum(
            max((of_slot[place] for place in places_in(domain)), default=0.0)
            for domain, of_slot in zip(domains, worth, strict=True)
        )
