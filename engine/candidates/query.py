"""The parts of a query: groups of resources with conditions, conditions between groups, and devices near NUMA cells."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal

import numpy as np
from msgspec import Struct

from engine.candidates.budget import Budget
from engine.candidates.columns import Rows
from engine.candidates.provider_index import ProviderIndex
from engine.inventories import AggregateId, ProviderId, ResourceAmount

# Devices near the NUMA cells of a guest: some slots (parts of the query) get a place at or below that of one of others.
#
# Like `same_subtree`, such a condition is removed before the search: it is split into parts, by which cell the device is near,
# and which place that cell gets. In each part the condition only makes domains smaller.


# Sets of places (providers of one tree) as bits of an integer; and bipartite matching: can each slot (part of the query)
# get a place of its own?


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


UNSUFFIXED = ""


class Preferred(Struct, frozen=True):
    """A trait that is optional, and what a provider that has it is worth; a negative weight avoids it."""

    trait: str
    weight: float = 1.0


class Group(Struct, frozen=True):
    """One group of requested resources. Of each tuple in `required` and in `member_of`, any one member is enough.

    The group without a suffix may take each class from another provider of one tree, or from one that shares with that
    tree. These providers together must have the required traits. If a tree's root is a member of an aggregate, all
    providers of the tree count as its members.

    A group with a suffix takes everything from one provider, which must meet all conditions by itself. It may ask for no
    resources: then it must require a trait or an aggregate (otherwise nothing meets it), and the provider `in_tree` only has
    to exist. Both rules are Placement's.
    """

    suffix: str = UNSUFFIXED
    resources: Mapping[str, int] = {}
    required: tuple[tuple[str, ...], ...] = ()
    forbidden: tuple[str, ...] = ()
    preferred: tuple[Preferred, ...] = ()
    member_of: tuple[tuple[AggregateId, ...], ...] = ()
    forbidden_aggregates: tuple[AggregateId, ...] = ()
    in_tree: ProviderId | None = None


class CandidatesQuery(Struct, frozen=True):
    """A query for candidates: the needs that each of them must meet. The `groups` have different suffixes; a group without a suffix asks for resources.

    With `isolate`, no two groups with suffixes get the same provider. `same_subtree` has tuples of suffixes: among the
    providers of these groups, one is at or above all others. `root_required` and `root_forbidden` are traits of the
    candidate's root. With `one_provider_per_tree` (microversions before 1.29) no candidate takes from two providers of one
    tree. Without `limit` all candidates are wanted.

    `cells` are the suffixes of groups that are NUMA cells of a guest: no two of them get the same provider. Each group in `near`
    gets one near that of a cell (`NearSlots`).
    """

    groups: tuple[Group, ...]
    group_policy: Literal["none", "isolate"] | None = None
    same_subtree: tuple[tuple[str, ...], ...] = ()
    root_required: tuple[str, ...] = ()
    root_forbidden: tuple[str, ...] = ()
    limit: int | None = None
    one_provider_per_tree: bool = False
    cells: tuple[str, ...] = ()
    near: tuple[tuple[str, Nearness], ...] = ()


# The result of a search for candidates. Thousands of candidates differ only in their providers, so those with the same
# amounts and groups are kept as one table (`Block`): one line a candidate, one column a provider.


class CandidatePattern(Struct, frozen=True):
    """What all candidates of a `Block` have in common. `amounts` has what the provider in each column gives (nothing, if it
    only serves a group without resources). `mappings` has the suffix of each group, and the columns that serve the group.
    """

    amounts: tuple[Mapping[str, int], ...]
    mappings: tuple[tuple[str, tuple[int, ...]], ...]


class Block(Struct, frozen=True):
    """A table of candidates with one pattern: one line a candidate, one column a provider (row of the index). No provider
    is twice in a line.

    `preference` is the weight of the preferred traits that each candidate's providers have.
    """

    pattern: CandidatePattern
    rows: Rows
    preference: float = 0.0


class FoundCandidate(Struct, frozen=True):
    """One candidate as an answer shows it: amounts, and the providers of each request group."""

    amounts: tuple[ResourceAmount, ...]
    mappings: Mapping[str, tuple[ProviderId, ...]]
    preference: float = 0.0


class FoundCandidates:
    """Candidates, in the order in which they were found."""

    def __init__(self, blocks: tuple[Block, ...]) -> None:
        self.blocks = blocks

    def __len__(self) -> int:
        return sum(len(block.rows) for block in self.blocks)

    @cached_property
    def giving(self) -> Rows:
        """The rows of all providers that give something in any candidate, each once."""
        columns = [
            block.rows[:, column]
            for block in self.blocks
            for column, amounts in enumerate(block.pattern.amounts)
            if amounts
        ]
        rows = np.concatenate(columns) if columns else np.zeros(0, dtype=np.intp)
        # Flags are set in a tenth of the time that sorting takes.
        flags = np.zeros(rows.max(initial=-1) + 1, dtype=np.bool_)
        flags[rows] = True
        return np.flatnonzero(flags)

    def written_out(self, index: ProviderIndex) -> Iterator[FoundCandidate]:
        for block in self.blocks:
            for rows in block.rows.tolist():
                ids = [index.state(row).id for row in rows]
                yield FoundCandidate(
                    amounts=tuple(
                        ResourceAmount(provider=provider, resource=resource, amount=amount)
                        for provider, amounts in zip(ids, block.pattern.amounts, strict=True)
                        for resource, amount in amounts.items()
                    ),
                    mappings={
                        suffix: tuple(ids[column] for column in columns)
                        for suffix, columns in block.pattern.mappings
                    },
                    preference=block.preference,
                )
