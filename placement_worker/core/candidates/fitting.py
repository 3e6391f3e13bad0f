"""Which providers fit each slot (part of the query), taken alone; and the trees under which roots may have candidates?

This takes one pass over the columns for each property that is asked for. Conditions between slots (one provider below
another, what is left when two take from one provider) are checked later, by slot_solver.py.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np
from msgspec import Struct

from placement_worker.core.candidates.budget import ROWS_PER_STEP, Budget
from placement_worker.core.candidates.columns import Flags, Floats, Rows
from placement_worker.core.candidates.near_slots import CELL_TRAIT
from placement_worker.core.candidates.provider_index import ProviderIndex
from placement_worker.core.candidates.query import UNSUFFIXED, CandidatesQuery, Group
from placement_worker.core.candidates.suitable import (
    Amounts,
    is_unknown,
    possible_roots,
    slots_of,
    suitable_providers,
)

# The only layout there is, if all providers are roots.
_ONLY_ROOTS = {(-1,)}

# By resource class and row.
Taken = Mapping[str, Mapping[int, int]]
Value_co = TypeVar("Value_co", covariant=True)


class ByRow(Protocol[Value_co]):
    """A value for each provider (row): a column, or an object that computes the value of a row when it is asked for."""

    def __getitem__(self, row: int, /) -> Value_co: ...


class Slot(Struct, frozen=True):
    """A part of the query that one provider must give: a group with a suffix, or one class of the group without.

    `worth` has, for each provider (row), the weight of the preferred traits that it has; None if none are preferred.
    """

    suffix: str
    resources: Amounts
    worth: Floats | None

    @property
    def is_suffixed(self) -> bool:
        return self.suffix != UNSUFFIXED

    @abstractmethod
    def domain(self, rows: tuple[int, ...], own: int) -> int:
        """Which of these providers of one tree fit the slot? Bit n stands for rows[n]. The first `own` rows are the tree's own
        providers, the others its pools.
        """


class ColumnSlot(Slot, frozen=True):
    """A slot (part of the query) in a search of all trees: columns tell which providers fit.

    `fits` has the providers that fit in a candidate of their own tree. `shared` has those that fit in the trees that they
    share with; None if no provider can.
    """

    fits: Flags
    shared: Flags | None

    def domain(self, rows: tuple[int, ...], own: int) -> int:
        domain, fits, shared = 0, self.fits, self.shared
        for place, row in enumerate(rows):
            if fits[row] if place < own else shared is not None and shared[row]:
                domain |= 1 << place
        return domain


class FittingProviders(Struct, frozen=True):
    """For each slot (part of the query) the providers that fit it, and what else a search of all trees needs.

    `having_traits` has a column for each set of traits of which the group without a suffix needs one: which providers have
    any of them? `roots` are the roots of the trees in which at least one provider fits each slot. `pools` are the sharing
    providers that fit a slot (by row), each with the roots of the trees that it shares with. `cells` has the NUMA cells of
    hosts, if the query has devices near them.
    """

    slots: tuple[ColumnSlot, ...]
    having_traits: tuple[Flags, ...]
    roots: Flags
    pools: Mapping[int, Rows]
    cells: Flags | None = None


class SearchScope(Struct, frozen=True):
    """Which part of the index is searched: the trees of these `roots` (None: all), without the pools in `barred`. `taken`
    has what is reserved beside the usage in the index, by resource class and row.
    """

    roots: Flags | None = None
    barred: frozenset[int] = frozenset()
    taken: Taken = {}


EVERYTHING = SearchScope()


def fit(
    index: ProviderIndex, query: CandidatesQuery, scope: SearchScope, budget: Budget
) -> FittingProviders | None:
    """The providers that fit each slot (part of the query), and the roots of trees with one for every slot; None if no tree
    has.
    """
    if any(is_unknown(index, group) for group in query.groups):
        return None
    roots = possible_roots(index, query)
    if scope.roots is not None:
        roots = roots & scope.roots
    slots: list[ColumnSlot] = []
    having_traits: tuple[Flags, ...] = ()
    for group in query.groups:
        _charge(index, group, budget)
        suits = suitable_providers(index, group)
        having_traits = suits.having_traits or having_traits
        for resources in slots_of(group):
            fits, shared = suits.own, suits.shared
            for resource, amount in resources:
                giving = _giving(index, resource, amount, scope.taken)
                fits = fits & giving
                shared = None if shared is None else shared & giving
            slots.append(ColumnSlot(group.suffix, resources, suits.worth, fits, shared))
    pools = _fitting_pools(index, slots, scope)
    for slot in slots:
        roots = roots & _served(index, slot, pools)
    if not roots.any():
        return None
    cells = index.traits.having_any((CELL_TRAIT,), index.everywhere) if query.near else None
    return FittingProviders(tuple(slots), having_traits, roots, pools, cells)


def _fitting_pools(
    index: ProviderIndex, slots: Sequence[ColumnSlot], scope: SearchScope
) -> Mapping[int, Rows]:
    return {
        row: index.reached_from(row)
        for row in sorted(index.sharing - scope.barred)
        if any(slot.shared is not None and slot.shared[row] for slot in slots)
    }


def _charge(index: ProviderIndex, group: Group, budget: Budget) -> None:
    """Charge the budget for one group of the query: each property costs a pass over a column, and results hold memory."""
    slots = 1 if group.suffix else len(group.resources)
    passes = 4 + 4 * len(group.resources) + 2 * slots + len(group.required) + len(group.preferred)
    named = sum(map(len, group.required)) + len(group.forbidden)
    aggregates = len(group.forbidden_aggregates) + sum(map(len, group.member_of))
    budget.spend(passes * (10 + index.rows // ROWS_PER_STEP) + named + 10 * aggregates)
    budget.hold(slots * index.rows * (2 + 8 * bool(group.preferred)))
    budget.hold(index.rows * len(group.required) if not group.suffix else 0)


def _giving(index: ProviderIndex, resource: str, amount: int, taken: Taken) -> Flags:
    stock = index.stocks[resource]
    giving = stock.giving(amount, index.rows)
    for row, less in taken.get(resource, {}).items():
        giving[row] = stock.gives(amount, row, less)
    return giving


def _served(index: ProviderIndex, slot: ColumnSlot, pools: Mapping[int, Rows]) -> Flags:
    """Flags of the roots for which a provider of the tree, or a pool that shares with it, fits the slot."""
    if index.layouts.keys() == _ONLY_ROOTS:
        served = slot.fits.copy()
    else:
        served = np.zeros(index.rows, dtype=np.bool_)
        served[index.root[: index.rows][slot.fits]] = True
    if slot.shared is not None:
        for row, reached in pools.items():
            if slot.shared[row]:
                served[reached] = True
    return served
