"""Give each slot a place: the hard part of the search for candidates, solved once for each class of equal trees.

Slots are the parts of the query. Places are the providers of one tree, and the pools that share with it. The domain of a
slot is the places that fit it alone. The hard conditions are those between slots. Some slots may not have the same place
(`isolate`). Together they may not take more of a place than it has. Some must be below one of them. Together they must
have certain traits. For 8 slots and 8 places there are 16 million products of the domains, and 40,320 solutions, or none.

So a solution grows slot by slot, the slot with the smallest domain first. Slots without a place yet are open. After each
step cheap checks follow; a partial solution that fails one of them cannot become a whole one:

- Has each open slot a place left? Places that can no longer be taken leave the domains of open slots at once (forward
  checking). So an empty domain is seen at the step that empties it.
- Can all slots that must have different places still have them? The size of domains does not tell. Nine slots with eight
  places each, or three slots that share two places, have no empty domain, and trying would take 8! steps. It is a matching
  in a bipartite graph; to extend one costs slots times edges. If this is the only condition, each matching is a solution.
  Then no step is wasted: the next solution is always a few steps away.
- Is there room for all amounts of a class together? Their sum is compared with what is left in all places open to them,
  and their number with how often the least of them fits into these places. This is repeated with the larger amounts alone,
  since small amounts hide that there are more large ones than places. Slots of which no place has room for two must all
  have different places. The question is bin packing, which is hard in general, so these checks find many dead ends but
  not all. They decide queries with equal amounts, and queries for more than half of a place.
- Is there a place left for each missing trait? And if the solution needs a place of the tree itself, is one left?

The condition `same_subtree` is removed before that. In each solution exactly one place is above all others of a
subtree: two would have to be above each other. So solutions fall into disjoint parts, by which place that is (the apex),
and which slot is the first to take it. In each part the condition only makes domains smaller. No solution appears twice,
and the matching sees domains of two or three places instead of the whole tree. Where all places of the condition's slots
lie on one path from the root down, each solution has an apex, and no split is needed.

Some packings remain that the sums allow and that still fail. They fail again and again in the same way, since siblings
are alike: if a slot fails with one of eight equal devices it fails with the others. So the search remembers a dead end by
what matters for its future: the open slots, and how many places of each kind there are. Two places are of one kind if they
are open to the same slots, have as much left and have the same traits. Counting kinds instead of places turns factorials
into polynomials. Before the first dead end this costs nothing. When the remembered dead ends fill their share of the
budget's bytes, no more are remembered.

All this spends steps of the budget, about as it takes time. The search stops when they are spent.

Solutions come one by one; nothing is computed before the caller asks for it. Preferred traits decide the order in which
a slot's places are tried; without them it is the order of the tree, with pools last.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

from engine.candidates.budget import Budget
from engine.candidates.query import NearSlots, can_all_differ, parts_near, places_in

# Estimated size of the entries of Python's tables, rather too high than too low.
_PARTIAL_BYTES, _PER_SLOT_BYTES, _PER_LOAD_BYTES = 400, 16, 160
# Describing a place costs as much as this many looks at one.
_STEPS_PER_KIND = 12
_KIND_BYTES, _DEAD_END_BYTES, _PER_PLACE_BYTES = 400, 200, 16


class Packing(Struct, frozen=True):
    """A resource class that several slots may take from one place: what each slot takes (or 0), and the room at each place."""

    amounts: tuple[int, ...]
    room: tuple[int, ...]


class SlotProblem(Struct, frozen=True):
    """All conditions on the places (providers) that the slots (parts of the query) get in one tree. Slots and places are
    numbers; sets of places and of traits are bits of an integer.

    `domains` has the places that fit each slot alone. `under` has, for each place, the places at and below it. Slots in
    `differing` must all get different places. For each tuple in `subtrees`, one of its slots gets a place at or above those
    of the others. `packings` limit what several slots take from one place.

    The slots in `unsuffixed` must together have all traits in `wanted`; `has_traits` has the traits of each place. `taking`
    are the slots that take resources. If one of them has a place, no other one may have a place that `excludes` names for it.
    With `needs_own` one of the tree's own places must be in the solution, not only pools. `worth` is the weight of preferred traits by slot and place; it is empty if there are none.
    Slots in `near` get a place near that of a guest's cell, and `in_cells` are the places in NUMA cells of the host
    (query.py).
    """

    domains: tuple[int, ...]
    under: tuple[int, ...]
    differing: frozenset[int] = frozenset()
    subtrees: tuple[tuple[int, ...], ...] = ()
    packings: tuple[Packing, ...] = ()
    unsuffixed: frozenset[int] = frozenset()
    has_traits: tuple[int, ...] = ()
    wanted: int = 0
    taking: frozenset[int] = frozenset()
    excludes: tuple[int, ...] = ()
    needs_own: bool = False
    worth: tuple[tuple[float, ...], ...] = ()
    near: tuple[NearSlots, ...] = ()
    in_cells: int = 0

    @property
    def own(self) -> int:
        """The places of the tree itself, as bits: all at and below its root. The others are pools."""
        return self.under[0]

    def preference(self, solution: Sequence[int]) -> float:
        """The weight of the preferred traits that the places (providers) of a solution have, summed over its slots."""
        return sum([self.worth[slot][place] for slot, place in enumerate(solution)]) if self.worth else 0.0


class _Partial(NamedTuple):
    """An unfinished solution: slots in `open` have no place yet. The domain of any other slot is the place that it has.

    `loads` is what is taken so far, by packing and place. `missing` are the wanted traits that no place of the solution has
    yet. `needs_one_of` are the tree's own places if the solution must still get one of them; otherwise it is 0.
    """

    open: tuple[int, ...]
    domains: tuple[int, ...]
    loads: dict[tuple[int, int], int]
    missing: int
    needs_one_of: int


class _Level:
    """One level of the solver's search: the slot (part of the query) that gets a place here, and the places to try yet."""

    __slots__ = ("is_dead_end", "partial", "places", "slot")

    def __init__(self, partial: _Partial, slot: int, places: Iterator[int]) -> None:
        self.partial = partial
        self.slot = slot
        self.places = places
        self.is_dead_end = True


def solutions(problem: SlotProblem, budget: Budget) -> Iterator[tuple[int, ...]]:
    """All solutions of a problem, one after another: the place (provider) of each slot. Raises CutError when the budget is
    spent.
    """
    return _Search(problem, budget).solutions()


class _Search:
    def __init__(self, problem: SlotProblem, budget: Budget) -> None:
        self._problem = problem
        self._budget = budget
        self._dead_ends: set[tuple[object, ...]] = set()
        # Kinds of places by number, since dead ends have most kinds in common.
        self._kind_numbers: dict[tuple[object, ...], int] = {}
        self._memo_bytes = 0
        self._larger_first = tuple(_larger_first(packing) for packing in problem.packings)
        self._steps_per_slot = 4 + 3 * len(problem.packings)
        self._steps_per_try = 4 + len(problem.under) * len(problem.packings)

    def solutions(self) -> Iterator[tuple[int, ...]]:
        problem = self._problem
        parts = self._split_by_apexes(problem.domains)
        for domains in self._split_by_cells(parts) if problem.near else parts:
            start = self._start(domains)
            if self._is_hopeful(start):
                yield from self._grow(start)

    def _split_by_cells(self, parts: Iterator[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
        problem = self._problem
        for part in parts:
            yield from parts_near(problem.near, part, problem.under, problem.in_cells, self._budget)

    def _start(self, domains: tuple[int, ...]) -> _Partial:
        problem = self._problem
        needs_one_of = problem.own if problem.needs_own else 0
        return _Partial(tuple(range(len(domains))), domains, {}, problem.wanted, needs_one_of)

    def _split_by_apexes(self, domains: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Replace the `same_subtree` conditions by smaller domains: one set of domains for each choice of an apex (the place
        above all others) and of the first slot that takes it. Each solution is in exactly one of these sets.
        """
        subtrees = [slots for slots in self._problem.subtrees if not self._is_a_chain(domains, slots)]
        if not subtrees:
            yield domains
            return
        # An explicit stack: a query may have more subtrees than Python nests calls.
        levels = [self._split(domains, subtrees[0])]
        while levels:
            part = next(levels[-1], None)
            if part is None:
                levels.pop()
            elif len(levels) == len(subtrees):
                yield part
            else:
                levels.append(self._split(part, subtrees[len(levels)]))

    def _split(self, domains: tuple[int, ...], slots: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        for apex in places_in(_all_of(domains, slots)):
            part = list(domains)
            for slot in slots:
                part[slot] &= self._problem.under[apex]
            for slot in slots:
                self._budget.spend(2 * len(slots))
                if not all(part[each] for each in slots):
                    break
                if part[slot] >> apex & 1:
                    taken = (*part[:slot], 1 << apex, *part[slot + 1 :])
                    if self._is_hopeful(self._start(taken)):
                        yield taken
                    # Solutions in which this slot takes the apex were in that part.
                    part[slot] &= ~(1 << apex)

    def _is_a_chain(self, domains: tuple[int, ...], slots: tuple[int, ...]) -> bool:
        """Are all places (providers) that these slots may get on one path from the root of the tree down?"""
        self._budget.spend(len(slots) + len(self._problem.under))
        # A place below another has a higher number.
        return all(
            self._problem.under[above] >> place & 1
            for above, place in pairwise(places_in(_all_of(domains, slots)))
        )

    def _grow(self, start: _Partial) -> Iterator[tuple[int, ...]]:
        # An explicit stack: a query may have more slots than Python nests calls.
        levels: list[_Level] = []
        partial: _Partial | None = start
        while True:
            if partial is not None and len(partial.open) == 1:
                for solution in self._finish(partial):
                    for level in levels:
                        level.is_dead_end = False
                    yield solution
            elif partial is not None and not (
                self._dead_ends and self._dead_end_key(partial) in self._dead_ends
            ):
                domains = partial.domains
                _, slot = min((domains[slot].bit_count(), slot) for slot in partial.open)
                levels.append(_Level(partial, slot, self._in_order(slot, domains[slot])))
                self._budget.hold(_bytes_of(partial))
            if not levels:
                return
            partial = self._step(levels)

    def _step(self, levels: list[_Level]) -> _Partial | None:
        """Try the next place of the last level. Returns the longer partial solution; None if it cannot become a whole one, or if
        all places of the level were tried.
        """
        level = levels[-1]
        place = next(level.places, None)
        if place is None:
            levels.pop()
            self._budget.let_go(_bytes_of(level.partial))
            if level.is_dead_end:
                self._remember(level.partial)
            return None
        after = self._take(level.partial, level.slot, place)
        return after if self._is_hopeful(after) else None

    def _remember(self, partial: _Partial) -> None:
        if self._memo_bytes >= self._budget.limits.memo_bytes_max:
            return
        known = len(self._kind_numbers)
        kinds = self._dead_end_key(partial)
        if kinds not in self._dead_ends:
            self._dead_ends.add(kinds)
            size = _DEAD_END_BYTES + _PER_PLACE_BYTES * len(self._problem.under)
            size += _KIND_BYTES * (len(self._kind_numbers) - known)
            self._memo_bytes += size
            self._budget.hold(size)

    def _finish(self, partial: _Partial) -> Iterator[tuple[int, ...]]:
        """The solutions that the places of the last open slot complete, if all wanted traits and a needed place are then there."""
        (slot,) = partial.open
        places = [domain.bit_length() - 1 for domain in partial.domains]
        has_traits = self._problem.has_traits if partial.missing and slot in self._problem.unsuffixed else ()
        self._budget.spend(partial.domains[slot].bit_count())
        for place in self._in_order(slot, partial.domains[slot]):
            missing = partial.missing & ~has_traits[place] if has_traits else partial.missing
            if not missing and (not partial.needs_one_of or partial.needs_one_of >> place & 1):
                self._budget.spend(len(places))
                places[slot] = place
                yield tuple(places)

    def _in_order(self, slot: int, domain: int) -> Iterator[int]:
        worth = self._problem.worth
        if not worth:
            return places_in(domain)
        return iter(sorted(places_in(domain), key=lambda place: -worth[slot][place]))

    def _take(self, partial: _Partial, slot: int, place: int) -> _Partial:
        problem, bit = self._problem, 1 << place
        still_open = tuple(each for each in partial.open if each != slot)
        domains = list(partial.domains)
        domains[slot] = bit
        if slot in problem.differing:
            _strike(domains, (each for each in still_open if each in problem.differing), bit)
        if problem.excludes and slot in problem.taking:
            _strike(domains, (each for each in still_open if each in problem.taking), problem.excludes[place])
        loads = partial.loads
        for index, packing in enumerate(problem.packings):
            if packing.amounts[slot]:
                load = loads.get((index, place), 0) + packing.amounts[slot]
                loads = {**loads, (index, place): load}
                left = packing.room[place] - load
                _strike(domains, (each for each in still_open if packing.amounts[each] > left), bit)
        missing = partial.missing
        if missing and slot in problem.unsuffixed:
            missing &= ~problem.has_traits[place]
        return _Partial(
            still_open,
            tuple(domains),
            loads,
            missing,
            0 if partial.needs_one_of & bit else partial.needs_one_of,
        )

    def _is_hopeful(self, partial: _Partial) -> bool:
        """Check a partial solution. False if it certainly cannot become a whole one."""
        problem, domains = self._problem, partial.domains
        # Pays for this check and for the step that led to it.
        self._budget.spend(self._steps_per_try + self._steps_per_slot * len(partial.open))
        if not all(domains[slot] for slot in partial.open):
            return False
        if partial.needs_one_of and not any(domains[slot] & partial.needs_one_of for slot in partial.open):
            return False
        if partial.missing and not self._may_have_traits(partial):
            return False
        if not all(self._may_pack(partial, index) for index in range(len(problem.packings))):
            return False
        if not problem.differing:
            return True
        return can_all_differ(
            [domains[slot] for slot in partial.open if slot in problem.differing], self._budget
        )

    def _may_have_traits(self, partial: _Partial) -> bool:
        missing = partial.missing
        for slot in partial.open:
            if slot in self._problem.unsuffixed:
                self._budget.spend(partial.domains[slot].bit_count())
                for place in places_in(partial.domains[slot]):
                    missing &= ~self._problem.has_traits[place]
                if not missing:
                    return True
        return False

    def _may_pack(self, partial: _Partial, index: int) -> bool:
        """May there be room for the amounts of one packing that open slots take? The largest are checked alone, then with smaller
        ones. A yes is no proof.
        """
        packing, domains, still_open = self._problem.packings[index], partial.domains, set(partial.open)
        asking = [slot for slot in self._larger_first[index] if slot in still_open]
        if not asking:
            return True
        left = self._left(partial, index, _all_of(domains, asking))
        if not self._may_pack_alone(packing, domains, asking, left):
            return False
        total = anywhere = 0
        for number, slot in enumerate(asking, 1):
            amount = packing.amounts[slot]
            total += amount
            anywhere |= domains[slot]
            if number < len(asking) and packing.amounts[asking[number]] == amount:
                continue
            self._budget.spend(len(left))
            room = times = 0
            for place, there in left.items():
                if anywhere >> place & 1:
                    room += there
                    times += there // amount
            if total > room or number > times:
                return False
        return True

    def _left(self, partial: _Partial, index: int, places: int) -> dict[int, int]:
        """How much of one packing's resource class each of these places (providers) has left in a partial solution."""
        room, loads = self._problem.packings[index].room, partial.loads
        return {place: room[place] - loads.get((index, place), 0) for place in places_in(places)}

    def _may_pack_alone(
        self, packing: Packing, domains: Sequence[int], asking: Sequence[int], left: dict[int, int]
    ) -> bool:
        """May there be room for two kinds of open slots, if each kind is looked at by itself? They are the slots with
        amounts so large that no place has room for two of them, and the slots that can get only one place.
        """
        most = max(left.values())
        large = [domains[slot] for slot in asking if 2 * packing.amounts[slot] > most]
        if len(large) > 1 and not can_all_differ(large, self._budget):
            return False
        forced: dict[int, int] = {}
        for slot in asking:
            domain = domains[slot]
            if not domain & domain - 1:
                place = domain.bit_length() - 1
                forced[place] = forced.get(place, 0) + packing.amounts[slot]
        return all(left[place] >= amount for place, amount in forced.items())

    def _dead_end_key(self, partial: _Partial) -> tuple[object, ...]:
        """All that decides whether a partial solution can become a whole one, as a key for the remembered dead ends. It counts
        places by kind, so it is equal for two partial solutions that use different but alike places.
        """
        problem, numbers = self._problem, self._kind_numbers
        kinds = []
        anywhere = places_in(_all_of(partial.domains, partial.open))
        for place in anywhere:
            self._budget.spend(_STEPS_PER_KIND + len(partial.open))
            open_to = tuple([slot for slot in partial.open if partial.domains[slot] >> place & 1])
            left = tuple(
                # More room than the open slots could use is as good as that much.
                min(
                    packing.room[place] - partial.loads.get((index, place), 0),
                    sum([packing.amounts[slot] for slot in open_to]),
                )
                for index, packing in enumerate(problem.packings)
            )
            has_traits = problem.has_traits[place] & partial.missing if partial.missing else 0
            # A place that bars others is a kind of its own.
            tree = place if problem.excludes and problem.excludes[place] else -1
            kind = (open_to, left, has_traits, partial.needs_one_of >> place & 1, tree)
            kinds.append(numbers.setdefault(kind, len(numbers)))
        return (partial.open, partial.missing, partial.needs_one_of, tuple(sorted(kinds)))


def _larger_first(packing: Packing) -> tuple[int, ...]:
    takers = [slot for slot, amount in enumerate(packing.amounts) if amount]
    return tuple(sorted(takers, key=lambda slot: -packing.amounts[slot]))


def _all_of(domains: Sequence[int], slots: Sequence[int]) -> int:
    anywhere = 0
    for slot in slots:
        anywhere |= domains[slot]
    return anywhere


def _bytes_of(partial: _Partial) -> int:
    return _PARTIAL_BYTES + _PER_SLOT_BYTES * len(partial.domains) + _PER_LOAD_BYTES * len(partial.loads)


def _strike(domains: list[int], slots: Iterator[int], places: int) -> None:
    for slot in slots:
        domains[slot] &= ~places
