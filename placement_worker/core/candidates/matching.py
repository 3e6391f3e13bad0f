"""Sets of places (providers of one tree) as bits of an integer; and bipartite matching: can each slot (part of the query)
get a place of its own?
"""

from collections.abc import Iterator, Sequence

from placement_worker.core.candidates.budget import Budget


def places_in(places: int) -> Iterator[int]:
    """The places (numbers of providers in a tree) in a set that is given as bits, lowest first."""
    while places:
        lowest = places & -places
        yield lowest.bit_length() - 1
        places ^= lowest


def can_all_differ(domains: Sequence[int], budget: Budget) -> bool:
    """Can each slot (part of the query) get a place of its own? `domains` has, for each slot, the places it may get, as bits."""
    if all(domain.bit_count() >= len(domains) for domain in domains):
        return True
    budget.spend(len(domains))
    holders: dict[int, int] = {}
    seats: dict[int, int] = {}
    taken = 0
    for index, domain in enumerate(domains):
        free = domain & ~taken
        if free:
            seats[index] = (free & -free).bit_length() - 1
            holders[seats[index]] = index
            taken |= free & -free
        else:
            more = _augment(index, domains, holders, seats, budget)
            if not more:
                return False
            taken |= more
    return True


def _augment(
    index: int, domains: Sequence[int], holders: dict[int, int], seats: dict[int, int], budget: Budget
) -> int:
    """Find a place for the slot `index` whose places are all taken: other slots move to other places until one is free.
    Returns the free place that is now taken, as a bit; 0 if there is none.
    """
    looked_at_by: dict[int, int] = {}
    looking = [index]
    for each in looking:
        budget.spend(domains[each].bit_count())
        for place in places_in(domains[each]):
            if place in looked_at_by:
                continue
            looked_at_by[place] = each
            if place not in holders:
                _move_up(place, looked_at_by, holders, seats)
                return 1 << place
            looking.append(holders[place])
    return 0


def _move_up(
    place: int, looked_at_by: dict[int, int], holders: dict[int, int], seats: dict[int, int]
) -> None:
    """Give the free place to the slot that looked at it. The place that this slot had before is then free, and goes to
    the slot that looked at that place; and so on.
    """
    free: int | None = place
    while free is not None:
        each = looked_at_by[free]
        left = seats.get(each)
        holders[free], seats[each] = each, free
        free = left
