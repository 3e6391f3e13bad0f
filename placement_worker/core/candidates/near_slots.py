"""Devices near the NUMA cells of a guest: some slots (parts of the query) get a place at or below that of one of others.

Like `same_subtree`, such a condition is removed before the search: it is split into parts, by which cell the device is near,
and which place that cell gets. In each part the condition only makes domains smaller.
"""

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from placement_worker.core.candidates.budget import Budget
from placement_worker.core.candidates.matching import places_in

# required: at or below the place of a cell. legacy: the same, but a place that is in no NUMA cell will do, too. preferred: places
# near a cell are tried first.
Nearness = Literal["required", "legacy", "preferred"]
# The trait of a provider that is a NUMA cell of its host.
CELL_TRAIT = "HW_NUMA_ROOT"


class NearSlots(Struct, frozen=True):
    """This slot gets a place near that of one of the slots in `cells`."""

    slot: int
    cells: tuple[int, ...]
    nearness: Nearness


def parts_near(
    near: tuple[NearSlots, ...],
    domains: tuple[int, ...],
    under: tuple[int, ...],
    in_cells: int,
    budget: Budget,
) -> Iterator[tuple[int, ...]]:
    """The domains that are left when each of these conditions is met in one of its ways, the nearest places first.

    `under` has, for each place, the places at and below it; `in_cells` are the places at and below NUMA cells of the host.
    """
    if not near:
        yield domains
        return
    for part in _parts(near[0], domains, under, in_cells, budget):
        yield from parts_near(near[1:], part, under, in_cells, budget)


def _parts(
    near: NearSlots, domains: tuple[int, ...], under: tuple[int, ...], in_cells: int, budget: Budget
) -> Iterator[tuple[int, ...]]:
    device = domains[near.slot]
    inside = in_cells if near.nearness == "legacy" else -1
    for cell in near.cells:
        for place in places_in(domains[cell]):
            budget.spend(1 + len(domains))
            if close := device & under[place] & inside:
                yield _with(_with(domains, cell, 1 << place), near.slot, close)
    if near.nearness == "legacy" and (outside := device & ~in_cells):
        yield _with(domains, near.slot, outside)
    elif near.nearness == "preferred":
        yield from _far_parts(near, domains, under, budget)


def _far_parts(
    near: NearSlots, domains: tuple[int, ...], under: tuple[int, ...], budget: Budget
) -> Iterator[tuple[int, ...]]:
    """The domains with this slot near none of its cells: each solution that is in none of the parts before. The slot's places near the
    same places of cells make one part, in which no cell gets one of these.
    """
    of_cells = 0
    for cell in near.cells:
        of_cells |= domains[cell]
    alike: dict[int, int] = {}
    for place in places_in(domains[near.slot]):
        budget.spend(len(under))
        above = sum(1 << each for each in places_in(of_cells) if under[each] >> place & 1)
        alike[above] = alike.get(above, 0) | 1 << place
    for above, places in alike.items():
        part = _with(domains, near.slot, places)
        for cell in near.cells:
            part = _with(part, cell, part[cell] & ~above)
        if all(part[cell] for cell in near.cells):
            yield part


def _with(domains: tuple[int, ...], slot: int, domain: int) -> tuple[int, ...]:
    return (*domains[:slot], domain, *domains[slot + 1 :])
