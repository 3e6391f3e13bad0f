"""Which providers suit a group of the query: they meet its conditions on traits, aggregates and tree. Amounts come later."""

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np
from msgspec import Struct

from engine.candidates.budget import ROWS_PER_STEP, Budget
from engine.candidates.columns import At, Flags, Floats, Rows
from engine.candidates.near_slots import CELL_TRAIT
from engine.candidates.provider_index import ProviderIndex
from engine.candidates.query import UNSUFFIXED, CandidatesQuery, Group

Amounts = tuple[tuple[str, int], ...]

# Of how many sets of required traits a group's columns are kept.
KEPT_REQUIRED_MAX = 8


class SuitableProviders(Struct, frozen=True):
    """The providers that meet all conditions of a group but the amounts, as columns of all providers.

    `own` has those that suit in a candidate of their own tree. `shared` has the sharing providers that suit in the trees
    that they share with; None if no provider can. `worth` is the weight of the preferred traits that each provider has; None
    if none are preferred. `having_traits` is for the group without a suffix, whose providers need the traits only
    together: for each set of required traits, the providers that have one of them.
    """

    own: Flags
    shared: Flags | None
    worth: Floats | None
    having_traits: tuple[Flags, ...] = ()

    @property
    def flags(self) -> tuple[Flags, ...]:
        return (self.own, *(() if self.shared is None else (self.shared,)), *self.having_traits)


def suitable_providers(index: ProviderIndex, group: Group) -> SuitableProviders:
    """The providers that suit this group. The columns are kept for the next group of the same conditions, so nobody may write
    into them.

    Columns of one tree are not kept, since the next request names another tree. Nor are large ones, since anybody may send
    queries: preferred traits take eight bytes for each provider, and each set of required traits takes one.
    """
    of = _of_unsuffixed if group.suffix == UNSUFFIXED else _of_suffixed
    if group.in_tree is not None or group.preferred or len(group.required) > KEPT_REQUIRED_MAX:
        return of(index, group, index.everywhere)
    may_share = bool(index.sharing)
    asked = "suits", may_share, *conditions_of(group)
    own, *others = index.kept(asked, lambda at: of(index, group, at).flags)
    shared = others.pop(0) if may_share else None
    return SuitableProviders(own, shared, None, tuple(others))


def conditions_of(group: Group) -> tuple[Hashable, ...]:
    """All of a group but the amounts of its classes: groups that differ in these alone are suited by the same providers."""
    return (
        *(group.suffix == UNSUFFIXED, len(group.resources), group.required, group.forbidden),
        *(group.preferred, group.member_of, group.forbidden_aggregates, group.in_tree),
    )


def slots_of(group: Group) -> tuple[Amounts, ...]:
    """The slots of a group: what must come from one provider. A group with a suffix is one slot; the group without a suffix has
    one slot for each resource class.
    """
    resources = tuple(sorted(group.resources.items()))
    return (resources,) if group.suffix != UNSUFFIXED else tuple([(each,) for each in resources])


def is_unknown(index: ProviderIndex, group: Group) -> bool:
    """Does the group ask for a tree or a resource class that no provider has?"""
    return (group.in_tree is not None and index.row_of(group.in_tree) is None) or not (
        group.resources.keys() <= index.stocks.keys()
    )


def possible_roots(index: ProviderIndex, query: CandidatesQuery) -> Flags:
    """Flags of the roots whose trees may have candidates, by the conditions that the query puts on the root itself."""
    barred = tuple([group.forbidden_aggregates for group in query.groups if group.suffix == UNSUFFIXED])
    asked = "roots", query.root_required, query.root_forbidden, barred
    (roots,) = index.kept(asked, lambda at: (_possible_roots(index, query, at),))
    return roots


def _possible_roots(index: ProviderIndex, query: CandidatesQuery, at: At) -> Flags:
    roots: Flags = index.attached[at] & (index.parent[at] < 0)
    for trait in query.root_required:
        roots &= index.traits.having_any((trait,), at)
    if query.root_forbidden:
        roots &= ~index.traits.having_any(query.root_forbidden, at)
    for group in query.groups:
        if group.suffix == UNSUFFIXED and group.forbidden_aggregates:
            roots &= ~index.members(group.forbidden_aggregates)[at]
    return roots


def _of_unsuffixed(index: ProviderIndex, group: Group, at: At) -> SuitableProviders:
    """For the group without a suffix: all providers of a tree count as members of the root's aggregates. Only a provider that
    shares with another tree must be a member itself.
    """
    root = index.root[at]
    own = _not_forbidden(index, group, at)
    shared = own & index.shares[at] if index.sharing and group.in_tree is None else None
    if group.member_of:
        # Either the row itself is in all aggregates that are asked for, or its root is; not some here and some there.
        inside = np.logical_and.reduce([index.members(aggregates) for aggregates in group.member_of])
        own &= inside[at] | inside[root]
        if shared is not None:
            shared &= inside[at]
    if group.forbidden_aggregates:
        inside = index.members(group.forbidden_aggregates)
        own &= ~(inside[at] | inside[root])
        if shared is not None:
            shared &= ~inside[at]
    own &= _in_tree(index, group, at)
    having_traits = tuple([index.traits.having_any(names, at) for names in group.required])
    worth = _preferences(index, group, len(group.resources), at)
    return SuitableProviders(own, shared, worth, having_traits)


def _of_suffixed(index: ProviderIndex, group: Group, at: At) -> SuitableProviders:
    own = _not_forbidden(index, group, at)
    for names in group.required:
        own &= index.traits.having_any(names, at)
    for aggregates in group.member_of:
        own &= index.members(aggregates)[at]
    if group.forbidden_aggregates:
        own &= ~index.members(group.forbidden_aggregates)[at]
    if group.resources:
        own &= _in_tree(index, group, at)
    elif not group.required and not group.member_of:
        own[:] = False
    shared = own & index.shares[at] if index.sharing else None
    return SuitableProviders(own, shared, _preferences(index, group, 1, at))


def _not_forbidden(index: ProviderIndex, group: Group, at: At) -> Flags:
    fits: Flags = index.attached[at].copy()
    if group.forbidden:
        fits &= ~index.traits.having_any(group.forbidden, at)
    return fits


def _in_tree(index: ProviderIndex, group: Group, at: At) -> Flags | np.bool_:
    row = None if group.in_tree is None else index.row_of(group.in_tree)
    return np.True_ if row is None else index.root[at] == index.root[row]


def _preferences(index: ProviderIndex, group: Group, slots: int, at: At) -> Floats | None:
    """The weight of the preferred traits that each provider has, divided by the number of the group's `slots`: a group that
    takes from several providers is worth the mean of their weights.
    """
    if not group.preferred:
        return None
    worth = np.zeros(index.rows if isinstance(at, slice) else len(at))
    for preferred in group.preferred:
        worth += index.traits.having_any((preferred.trait,), at) * (preferred.weight / slots)
    return worth


# Which providers fit each slot (part of the query), taken alone; and the trees under which roots may have candidates?
#
# This takes one pass over the columns for each property that is asked for. Conditions between slots (one provider below
# another, what is left when two take from one provider) are checked later, by slot_solver.py.


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
