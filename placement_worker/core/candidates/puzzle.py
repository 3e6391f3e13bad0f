"""Which place of one tree goes to which slot? The hard part of the search, for one stand.

Slots are the parts of the question, places the providers of a tree and the pools beside it. Each slot has a domain, the
places that would do for it alone. What makes it hard holds between slots: no two may be given the same place
(`isolate`), together they may not ask more of a place than it has, some must stand under one of them, together they must
bear certain traits. All products of the domains would be 16 million for 8 slots and 8 places, of which 40,320 are
solutions, or none.

So a solution is grown slot by slot, the slot with the smallest domain first, and after each step four questions are
asked that cost little and that a partial solution must pass to become a whole one:

- Has every open slot somebody left? What can no longer be taken is struck from the domains of the open slots at
  once (forward checking), so that a domain that runs empty is seen at the step that empties it.
- Can all that must differ still differ? Small domains say nothing here: nine slots with eight places each, or three
  slots that share two places, have no empty domain, and trying would take 8! steps to find out. It is a matching in a
  bipartite graph, and growing one takes slots times edges. Since a matching that exists is a solution (as far as only
  this constraint goes), no step is ever taken in vain: the next solution is always a few steps away.
- Is there room for all, as sums? The open amounts of a class against what is left in all places open to them, and their
  number against how often the least of them goes into each; and the same of the larger amounts alone, since small ones
  hide that there are more large ones than places. Slots of which no place can hold two must all differ. This is
  packing, which is hard in general, so it is a bound and no proof; it settles what is asked in equal amounts, and
  what asks for over half a place.
- Is somebody left for every trait still missing, and for a place of the tree itself where that is needed?

A tree under one provider is handled before that. In each solution exactly one place is above all others of a
`same_subtree`: two would have to stand above each other. So solutions fall into disjoint parts, by which place that
is (the apex) and which is the first slot to take it; in each part the constraint is a smaller domain, and gone. Nobody is
generated twice, and matching sees domains of two or three places where it saw all of the tree. Where all places that its slots
may have stand under one another, every solution has an apex, and nothing need be split.

What is left are packings that the sums allow and that fail nevertheless, again and again in the same way, since siblings
are alike: if a slot fails with this one of eight equal devices it fails with the others. A dead end is therefore
remembered, by what matters for the future: the open slots, and how many places of each kind there are (open to which slots,
with how much left, bearing what). Kinds, and not places: factorials become polynomials. While there was no dead end, nothing
of this is paid; and when so many are remembered that they fill their share of the budget's bytes, no more are.

All this spends steps of a budget, roughly as it takes time; a search that has spent them is cut.

Solutions come one by one, and nothing is worked out before it is asked for. By preferred traits a slot's places are tried in
the order of what they are worth, otherwise in the order of the tree, pools last.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

from placement_worker.core.candidates.budget import Budget
from placement_worker.core.candidates.matching import can_all_differ, places_in

# What Python's tables take, by their entries: rather too much than too little.
_PARTIAL_BYTES, _PER_SLOT_BYTES, _PER_LOAD_BYTES = 400, 16, 160
# To describe a place takes as long as so many looks at one.
_STEPS_PER_KIND = 12
_KIND_BYTES, _DEAD_END_BYTES, _PER_PLACE_BYTES = 400, 200, 16


class Packing(Struct, frozen=True):
    """One class that several slots take from: what each slot takes, and what each place has."""

    amounts: tuple[int, ...]
    room: tuple[int, ...]


class Puzzle(Struct, frozen=True):
    """Sets of places are bits of a number; so are sets of traits.

    `differing` are the slots that must all differ. Of each tuple in `subtrees`, all slots stand under one of them;
    `under` has the places at and under each place. The slots in `together` must bear all traits in `wanted` together,
    and `bears` says who bears which. `barred` has, for each place, the places that no other of the `taking` slots may
    have beside it. If `needs` is not empty, at least one of its places must be in the solution. `worth` is by slot and
    place, and empty if all are worth the same.
    """

    domains: tuple[int, ...]
    under: tuple[int, ...]
    differing: frozenset[int] = frozenset()
    subtrees: tuple[tuple[int, ...], ...] = ()
    packings: tuple[Packing, ...] = ()
    together: frozenset[int] = frozenset()
    bears: tuple[int, ...] = ()
    wanted: int = 0
    taking: frozenset[int] = frozenset()
    barred: tuple[int, ...] = ()
    needs: int = 0
    worth: tuple[tuple[float, ...], ...] = ()


class _Partial(NamedTuple):
    """A solution on its way. The domain of a slot that is not open any more is the place it has.

    `loads` is what was taken so far, by packing and place. `missing` are the traits that nobody bears yet; `needs` is 0
    once it is met.
    """

    open: tuple[int, ...]
    domains: tuple[int, ...]
    loads: dict[tuple[int, int], int]
    missing: int
    needs: int


class _Level:
    """A slot whose places are being tried, one after another."""

    __slots__ = ("is_dead_end", "partial", "places", "slot")

    def __init__(self, partial: _Partial, slot: int, places: Iterator[int]) -> None:
        self.partial = partial
        self.slot = slot
        self.places = places
        self.is_dead_end = True


def solutions(puzzle: Puzzle, budget: Budget) -> Iterator[tuple[int, ...]]:
    """The place of each slot, one solution after another, each once. Raises CutError when the budget is spent."""
    return _Search(puzzle, budget).solutions()


class _Search:
    def __init__(self, puzzle: Puzzle, budget: Budget) -> None:
        self._puzzle = puzzle
        self._budget = budget
        self._dead_ends: set[tuple[object, ...]] = set()
        # Kinds of places by number: dead ends have most of them in common.
        self._kind_numbers: dict[tuple[object, ...], int] = {}
        self._memo_bytes = 0
        self._larger_first = tuple(_larger_first(packing) for packing in puzzle.packings)
        self._steps_per_slot = 4 + 3 * len(puzzle.packings)
        self._steps_per_try = 4 + len(puzzle.under) * len(puzzle.packings)

    def solutions(self) -> Iterator[tuple[int, ...]]:
        for domains in self._under_one(self._puzzle.domains):
            start = self._start(domains)
            if self._is_hopeful(start):
                yield from self._grow(start)

    def _start(self, domains: tuple[int, ...]) -> _Partial:
        puzzle = self._puzzle
        return _Partial(tuple(range(len(domains))), domains, {}, puzzle.wanted, puzzle.needs)

    def _under_one(self, domains: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """The parts that solutions fall into, by the apex of each subtree and by the first slot to take it."""
        subtrees = [slots for slots in self._puzzle.subtrees if not self._is_a_chain(domains, slots)]
        if not subtrees:
            yield domains
            return
        # A stack of our own: a question may have more of them than calls may be nested.
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
                part[slot] &= self._puzzle.under[apex]
            for slot in slots:
                self._budget.spend(2 * len(slots))
                if not all(part[each] for each in slots):
                    break
                if part[slot] >> apex & 1:
                    taken = (*part[:slot], 1 << apex, *part[slot + 1 :])
                    if self._is_hopeful(self._start(taken)):
                        yield taken
                    # Those in which this slot takes the apex were in that part.
                    part[slot] &= ~(1 << apex)

    def _is_a_chain(self, domains: tuple[int, ...], slots: tuple[int, ...]) -> bool:
        """Of any two places that these slots may have, does one stand under the other?"""
        self._budget.spend(len(slots) + len(self._puzzle.under))
        # Whoever stands under another has a higher number.
        return all(
            self._puzzle.under[above] >> place & 1
            for above, place in pairwise(places_in(_all_of(domains, slots)))
        )

    def _grow(self, start: _Partial) -> Iterator[tuple[int, ...]]:
        # A stack of our own: a question may have more slots than calls may be nested.
        levels: list[_Level] = []
        partial: _Partial | None = start
        while True:
            if partial is not None and len(partial.open) == 1:
                for solution in self._finish(partial):
                    for level in levels:
                        level.is_dead_end = False
                    yield solution
            elif partial is not None and not (self._dead_ends and self._kinds(partial) in self._dead_ends):
                levels.append(self._level(partial))
                self._budget.hold(_bytes_of(partial))
            if not levels:
                return
            partial = self._step(levels)

    def _level(self, partial: _Partial) -> _Level:
        slot = min(partial.open, key=lambda each: (partial.domains[each].bit_count(), each))
        return _Level(partial, slot, self._in_order(slot, partial.domains[slot]))

    def _step(self, levels: list[_Level]) -> _Partial | None:
        """The next place of the topmost slot, if something may come of it."""
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
        kinds = self._kinds(partial)
        if kinds not in self._dead_ends:
            self._dead_ends.add(kinds)
            size = _DEAD_END_BYTES + _PER_PLACE_BYTES * len(self._puzzle.under)
            size += _KIND_BYTES * (len(self._kind_numbers) - known)
            self._memo_bytes += size
            self._budget.hold(size)

    def _finish(self, partial: _Partial) -> Iterator[tuple[int, ...]]:
        """What may still go to the last slot is a solution, but for what all slots must do together."""
        (slot,) = partial.open
        places = [domain.bit_length() - 1 for domain in partial.domains]
        bears = self._puzzle.bears if partial.missing and slot in self._puzzle.together else ()
        self._budget.spend(partial.domains[slot].bit_count())
        for place in self._in_order(slot, partial.domains[slot]):
            missing = partial.missing & ~bears[place] if bears else partial.missing
            if not missing and (not partial.needs or partial.needs >> place & 1):
                self._budget.spend(len(places))
                places[slot] = place
                yield tuple(places)

    def _in_order(self, slot: int, domain: int) -> Iterator[int]:
        worth = self._puzzle.worth
        if not worth:
            return places_in(domain)
        return iter(sorted(places_in(domain), key=lambda place: -worth[slot][place]))

    def _take(self, partial: _Partial, slot: int, place: int) -> _Partial:
        puzzle, bit = self._puzzle, 1 << place
        still_open = tuple(each for each in partial.open if each != slot)
        domains = list(partial.domains)
        domains[slot] = bit
        if slot in puzzle.differing:
            _strike(domains, (each for each in still_open if each in puzzle.differing), bit)
        if puzzle.barred and slot in puzzle.taking:
            _strike(domains, (each for each in still_open if each in puzzle.taking), puzzle.barred[place])
        loads = partial.loads
        for index, packing in enumerate(puzzle.packings):
            if packing.amounts[slot]:
                load = loads.get((index, place), 0) + packing.amounts[slot]
                loads = {**loads, (index, place): load}
                left = packing.room[place] - load
                _strike(domains, (each for each in still_open if packing.amounts[each] > left), bit)
        missing = partial.missing
        if missing and slot in puzzle.together:
            missing &= ~puzzle.bears[place]
        return _Partial(
            still_open, tuple(domains), loads, missing, 0 if partial.needs & bit else partial.needs
        )

    def _is_hopeful(self, partial: _Partial) -> bool:
        """False if it is known that nothing comes of it."""
        puzzle, domains = self._puzzle, partial.domains
        # For this, and for having come here.
        self._budget.spend(self._steps_per_try + self._steps_per_slot * len(partial.open))
        if not all(domains[slot] for slot in partial.open):
            return False
        if partial.needs and not any(domains[slot] & partial.needs for slot in partial.open):
            return False
        if partial.missing and not self._may_bear(partial):
            return False
        if puzzle.packings and not self._may_pack(partial):
            return False
        if not puzzle.differing:
            return True
        return can_all_differ(
            [domains[slot] for slot in partial.open if slot in puzzle.differing], self._budget
        )

    def _may_bear(self, partial: _Partial) -> bool:
        missing = partial.missing
        for slot in partial.open:
            if slot in self._puzzle.together:
                self._budget.spend(partial.domains[slot].bit_count())
                for place in places_in(partial.domains[slot]):
                    missing &= ~self._puzzle.bears[place]
                if not missing:
                    return True
        return False

    def _may_pack(self, partial: _Partial) -> bool:
        return all(self._may_pack_one(partial, index) for index in range(len(self._puzzle.packings)))

    def _may_pack_one(self, partial: _Partial, index: int) -> bool:
        """The larger amounts by themselves, and more and more of the smaller ones with them."""
        packing, domains, still_open = self._puzzle.packings[index], partial.domains, set(partial.open)
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
        """What each of these places has left."""
        room, loads = self._puzzle.packings[index].room, partial.loads
        return {place: room[place] - loads.get((index, place), 0) for place in places_in(places)}

    def _may_pack_alone(
        self, packing: Packing, domains: Sequence[int], asking: Sequence[int], left: dict[int, int]
    ) -> bool:
        """Those of which no place holds two, and those that have one place only."""
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

    def _kinds(self, partial: _Partial) -> tuple[object, ...]:
        """All that matters for what can still come, the same for places that could change roles."""
        puzzle, numbers = self._puzzle, self._kind_numbers
        kinds = []
        anywhere = places_in(_all_of(partial.domains, partial.open))
        for place in anywhere:
            self._budget.spend(_STEPS_PER_KIND + len(partial.open))
            open_to = tuple([slot for slot in partial.open if partial.domains[slot] >> place & 1])
            left = tuple(
                # More than all that may come there is as good as that.
                min(
                    packing.room[place] - partial.loads.get((index, place), 0),
                    sum([packing.amounts[slot] for slot in open_to]),
                )
                for index, packing in enumerate(puzzle.packings)
            )
            bears = puzzle.bears[place] & partial.missing if partial.missing else 0
            # Places that bar others are a kind each.
            tree = place if puzzle.barred and puzzle.barred[place] else -1
            kind = (open_to, left, bears, bool(partial.needs >> place & 1), tree)
            kinds.append(numbers.setdefault(kind, len(numbers)))
        return (partial.open, partial.missing, partial.needs, tuple(sorted(kinds)))


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
