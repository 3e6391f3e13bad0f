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
  number against how often the least of them goes into each. This is packing, which is hard in general, so it
  is a bound and no proof; it settles what is asked in equal amounts.
- Is somebody left for every trait still missing, and for a place of the tree itself where that is needed?

A tree under one provider is handled before that. In each solution exactly one place is above all others of a
`same_subtree`: two would have to stand above each other. So solutions fall into disjoint parts, by which place that
is (the apex) and which is the first slot to take it; in each part the constraint is a smaller domain, and gone. Nobody is
generated twice, and matching sees domains of two or three places where it saw all of the tree.

What is left are packings that the sums allow and that fail nevertheless, again and again in the same way, since siblings
are alike: if a slot fails with this one of eight equal devices it fails with the others. A dead end is therefore
remembered, by what matters for the future: the open slots, and how many places of each kind there are (open to which slots,
with how much left, bearing what). Kinds, and not places: factorials become polynomials. While there was no dead end, nothing
of this is paid.

Solutions come one by one, and nothing is worked out before it is asked for. By preferred traits a slot's places are tried in
the order of what they are worth, otherwise in the order of the tree, pools last.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from placement_worker.core.candidates.matching import can_all_differ, places_in


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


def solutions(puzzle: Puzzle) -> Iterator[tuple[int, ...]]:
    """The place of each slot, one solution after another, each once."""
    return _Search(puzzle).solutions()


class _Search:
    def __init__(self, puzzle: Puzzle) -> None:
        self._puzzle = puzzle
        self._dead_ends: set[tuple[object, ...]] = set()

    def solutions(self) -> Iterator[tuple[int, ...]]:
        puzzle = self._puzzle
        for domains in self._under_one(puzzle.domains, puzzle.subtrees):
            start = self._start(domains)
            if self._is_hopeful(start):
                yield from self._grow(start)

    def _start(self, domains: tuple[int, ...]) -> _Partial:
        puzzle = self._puzzle
        return _Partial(tuple(range(len(domains))), domains, {}, puzzle.wanted, puzzle.needs)

    def _under_one(
        self, domains: tuple[int, ...], subtrees: Sequence[tuple[int, ...]]
    ) -> Iterator[tuple[int, ...]]:
        """The parts that solutions fall into, by apex and by the first slot to take it."""
        if not subtrees:
            yield domains
            return
        slots, rest = subtrees[0], subtrees[1:]
        anywhere = 0
        for slot in slots:
            anywhere |= domains[slot]
        for apex in places_in(anywhere):
            part = list(domains)
            for slot in slots:
                part[slot] &= self._puzzle.under[apex]
            for slot in slots:
                if not all(part[each] for each in slots):
                    break
                if part[slot] >> apex & 1:
                    taken = (*part[:slot], 1 << apex, *part[slot + 1 :])
                    if self._is_hopeful(self._start(taken)):
                        yield from self._under_one(taken, rest)
                    # Those in which this slot takes the apex were in that part.
                    part[slot] &= ~(1 << apex)

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
            if level.is_dead_end:
                self._dead_ends.add(self._kinds(level.partial))
            return None
        after = self._take(level.partial, level.slot, place)
        return after if self._is_hopeful(after) else None

    def _finish(self, partial: _Partial) -> Iterator[tuple[int, ...]]:
        """What may still go to the last slot is a solution, but for what all slots must do together."""
        (slot,) = partial.open
        places = [domain.bit_length() - 1 for domain in partial.domains]
        bears = self._puzzle.bears if partial.missing and slot in self._puzzle.together else ()
        for place in self._in_order(slot, partial.domains[slot]):
            missing = partial.missing & ~bears[place] if bears else partial.missing
            if not missing and (not partial.needs or partial.needs >> place & 1):
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
        return can_all_differ([domains[slot] for slot in partial.open if slot in puzzle.differing])

    def _may_bear(self, partial: _Partial) -> bool:
        missing = partial.missing
        for slot in partial.open:
            if slot in self._puzzle.together:
                for place in places_in(partial.domains[slot]):
                    missing &= ~self._puzzle.bears[place]
        return not missing

    def _may_pack(self, partial: _Partial) -> bool:
        for index, packing in enumerate(self._puzzle.packings):
            amounts, anywhere = [], 0
            for slot in partial.open:
                if packing.amounts[slot]:
                    amounts.append(packing.amounts[slot])
                    anywhere |= partial.domains[slot]
            if not amounts:
                continue
            least, room, times = min(amounts), 0, 0
            for place in places_in(anywhere):
                left = packing.room[place] - partial.loads.get((index, place), 0)
                room += left
                times += left // least
            if sum(amounts) > room or len(amounts) > times:
                return False
        return True

    def _kinds(self, partial: _Partial) -> tuple[object, ...]:
        """All that matters for what can still come, the same for places that could change roles."""
        puzzle, anywhere = self._puzzle, 0
        for slot in partial.open:
            anywhere |= partial.domains[slot]
        kinds = []
        for place in places_in(anywhere):
            open_to = tuple(slot for slot in partial.open if partial.domains[slot] >> place & 1)
            left = tuple(
                packing.room[place] - partial.loads.get((index, place), 0)
                for index, packing in enumerate(puzzle.packings)
            )
            bears = puzzle.bears[place] & partial.missing if partial.missing else 0
            # Places that bar others are a kind each.
            tree = place if puzzle.barred and puzzle.barred[place] else -1
            kinds.append((open_to, left, bears, bool(partial.needs >> place & 1), tree))
        return (partial.open, partial.missing, partial.needs, tuple(sorted(kinds)))


def _strike(domains: list[int], slots: Iterator[int], places: int) -> None:
    for slot in slots:
        domains[slot] &= ~places
