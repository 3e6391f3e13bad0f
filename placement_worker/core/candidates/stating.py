"""The puzzle of a stand: what the columns say of its places, put as sets of places."""

from collections.abc import Sequence

from msgspec import Struct

from placement_worker.core.candidates.budget import Budget
from placement_worker.core.candidates.coupling import Coupling
from placement_worker.core.candidates.fitting import Fitting, Slot
from placement_worker.core.candidates.matching import places_in
from placement_worker.core.candidates.puzzle import Packing, Puzzle
from placement_worker.core.candidates.query import CandidatesQuery
from placement_worker.core.candidates.stands import Stand
from placement_worker.core.candidates.woods import Woods


class Stated(Struct, frozen=True):
    """`worth_at_most` is what a solution could be worth if every slot had its best place; `size` is what all this takes."""

    stand: Stand
    puzzle: Puzzle
    worth_at_most: float
    size: int


class Stating:
    """For all stands of one question. Places of a stand are those of its form, and after them its pools."""

    def __init__(
        self,
        woods: Woods,
        query: CandidatesQuery,
        fitting: Fitting,
        couplings: Sequence[Coupling],
        budget: Budget,
    ) -> None:
        slots = fitting.slots
        self._budget = budget
        self._woods = woods
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

    def state(self, stand: Stand) -> Stated:
        # All trees of a stand are alike: the first speaks for them.
        rows = (*stand.rows[0].tolist(), *stand.pools)
        own = (1 << len(stand.form.parents)) - 1
        size = self._account(stand, len(rows))
        domains = tuple(self._domain(slot, rows, own) for slot in self._slots)
        worth = self._worth(rows)
        puzzle = Puzzle(
            domains=domains,
            under=(*stand.form.under, *self._under_pools(stand)),
            differing=self._suffixed if self._isolates else frozenset(),
            subtrees=self._subtrees,
            packings=tuple(
                Packing(coupling.amounts, tuple(int(coupling.room[row]) for row in rows))
                for coupling in self._couplings
            ),
            together=self._unsuffixed,
            bears=tuple(
                sum(1 << index for index, bearing in enumerate(self._bearing) if bearing[row]) for row in rows
            ),
            wanted=(1 << len(self._bearing)) - 1,
            taking=self._taking,
            barred=self._barred(stand, own) if self._bars else (),
            needs=self._needs(domains, rows, own),
            worth=worth,
        )
        return Stated(stand, puzzle, self._worth_at_most(domains, worth), size)

    def _account(self, stand: Stand, places: int) -> int:
        """Every slot looks at every place, and pools at each other."""
        slots, pools = len(self._slots), len(stand.pools)
        looks = slots * places + pools * pools + places * (len(self._bearing) + 2 * len(self._couplings))
        size = 1_000 + 40 * slots + stand.rows.nbytes + places * (100 + 40 * len(self._couplings))
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

    def _under_pools(self, stand: Stand) -> list[int]:
        first = len(stand.form.parents)
        return [
            sum(
                1 << first + other
                for other, row in enumerate(stand.pools)
                if self._woods.is_under(row, above)
            )
            for above in stand.pools
        ]

    def _barred(self, stand: Stand, own: int) -> tuple[int, ...]:
        """The other places in the same tree."""
        first, root = len(stand.form.parents), self._woods.root
        barred = [own & ~(1 << place) for place in range(first)]
        for pool, row in enumerate(stand.pools):
            barred.append(
                sum(
                    1 << first + other
                    for other, beside in enumerate(stand.pools)
                    if other != pool and root[beside] == root[row]
                )
            )
        return tuple(barred)

    def _needs(self, domains: Sequence[int], rows: Sequence[int], own: int) -> int:
        """The tree's places, if all that is taken from those who share alone was found in another stand."""
        if not self._woods.sharing:
            return 0
        asked = 0
        for domain in domains:
            asked |= domain
        if any(self._woods.shares[rows[place]] for place in places_in(asked & own)):
            # In its own tree, who shares is nobody's pool: another stand need not have all of these.
            return 0
        choice = tuple(frozenset(rows[place] for place in places_in(domain & ~own)) for domain in domains)
        if choice not in self._met:
            self._met.add(choice)
            return 0
        return own

    def _worth(self, rows: Sequence[int]) -> tuple[tuple[float, ...], ...]:
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
