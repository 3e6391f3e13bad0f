"""The problem to solve for each class of trees: what the columns say about its places, as sets of places."""

from collections.abc import Sequence

from msgspec import Struct

from placement_worker.core.candidates.budget import Budget
from placement_worker.core.candidates.coupling import Coupling
from placement_worker.core.candidates.fitting import Fitting, Slot
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
        fitting: Fitting,
        couplings: Sequence[Coupling],
        budget: Budget,
    ) -> None:
        slots = fitting.slots
        self._budget = budget
        self._index = provider_index
        self._slots = slots
        self._bearing = fitting.together
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
        self._met: set[tuple[frozenset[int], ...]] = set()

    def build(self, tree_class: TreeClass) -> ClassProblem:
        # All trees of a class are alike, so the first one stands for them.
        rows = (*tree_class.rows[0].tolist(), *tree_class.pools)
        own = (1 << len(tree_class.layout.parents)) - 1
        size = self._charge(tree_class, len(rows))
        domains = tuple(self._domain(slot, rows, own) for slot in self._slots)
        worth = self._preferences(rows)
        problem = SlotProblem(
            domains=domains,
            under=(*tree_class.layout.under, *self._under_pools(tree_class)),
            differing=self._suffixed if self._isolates else frozenset(),
            subtrees=self._subtrees,
            packings=tuple(
                Packing(coupling.amounts, tuple(int(coupling.room[row]) for row in rows))
                for coupling in self._couplings
            ),
            together=self._unsuffixed,
            has_traits=tuple(
                sum(1 << index for index, bearing in enumerate(self._bearing) if bearing[row]) for row in rows
            ),
            wanted=(1 << len(self._bearing)) - 1,
            taking=self._taking,
            barred=self._barred(tree_class, own) if self._bars else (),
            needs=self._needs(domains, rows, own),
            worth=worth,
        )
        return ClassProblem(tree_class, problem, self._worth_at_most(domains, worth), size)

    def _charge(self, tree_class: TreeClass, places: int) -> int:
        """Charge the budget: each slot looks at each place, and pools at each other."""
        slots, pools = len(self._slots), len(tree_class.pools)
        looks = slots * places + pools * pools + places * (len(self._bearing) + 2 * len(self._couplings))
        size = 1_000 + 40 * slots + tree_class.rows.nbytes + places * (100 + 40 * len(self._couplings))
        if any(slot.worth is not None for slot in self._slots):
            looks += slots * places
            size += 32 * slots * places
        self._budget.spend(looks)
        self._budget.hold(size)
        return size

    def _domain(self, slot: Slot, rows: Sequence[int], own: int) -> int:
        domain = 0
        for place, row in enumerate(rows):
            if slot.fits[row] if own >> place & 1 else slot.shared is not None and slot.shared[row]:
                domain |= 1 << place
        return domain

    def _under_pools(self, tree_class: TreeClass) -> list[int]:
        first = len(tree_class.layout.parents)
        return [
            sum(
                1 << first + other
                for other, row in enumerate(tree_class.pools)
                if self._index.is_under(row, above)
            )
            for above in tree_class.pools
        ]

    def _barred(self, tree_class: TreeClass, own: int) -> tuple[int, ...]:
        """For each place, the other places in the same tree."""
        first, root = len(tree_class.layout.parents), self._index.root
        barred = [own & ~(1 << place) for place in range(first)]
        for pool, row in enumerate(tree_class.pools):
            barred.append(
                sum(
                    1 << first + other
                    for other, beside in enumerate(tree_class.pools)
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
        if all(slot.worth is None for slot in self._slots):
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
