"""Which providers suit each part of the query, taken alone; and which roots may have candidates.

One pass over the columns for each property that is asked for. Conditions between the parts (one provider below another,
how much is left when two take from one provider) are checked later.
"""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from placement_worker.core.candidates.budget import ROWS_PER_STEP, Budget
from placement_worker.core.candidates.columns import Flags, Floats, Rows
from placement_worker.core.candidates.provider_index import ProviderIndex
from placement_worker.core.candidates.query import UNSUFFIXED, CandidatesQuery, Group

# The only layout there is, if all providers are roots.
_ONLY_ROOTS = {(-1,)}

# By resource class and row.
Taken = Mapping[str, Mapping[int, int]]


class Slot(Struct, frozen=True):
    """A part of the query that one provider must give: a group with a suffix, or one class of the group without.

    `fits` are the rows that suit in their own tree. `shared` are those that suit in each tree they share with, if any
    provider shares. `worth` is the weight of preferred traits of each row, if there are any.
    """

    suffix: str
    resources: tuple[tuple[str, int], ...]
    fits: Flags
    shared: Flags | None
    worth: Floats | None

    @property
    def is_suffixed(self) -> bool:
        return self.suffix != UNSUFFIXED


class Fitting(Struct, frozen=True):
    """`together` has the rows with any of each set of traits that the slots without suffix need together. `anchors` are
    the roots of trees in which each slot has at least one row. `pools` are the sharing providers, with the roots that each reaches.
    """

    slots: tuple[Slot, ...]
    together: tuple[Flags, ...]
    anchors: Flags
    pools: Mapping[int, Rows]


class Scope(Struct, frozen=True):
    """Which part of the index is searched: the trees of these `roots` (None: all), without the pools in `barred`. `taken`
    is what is taken beside the stocks' own usage, by class and row.
    """

    roots: Flags | None = None
    barred: frozenset[int] = frozenset()
    taken: Taken = {}


EVERYTHING = Scope()


def fit(index: ProviderIndex, query: CandidatesQuery, scope: Scope, budget: Budget) -> Fitting | None:
    """None if there is certainly no candidate."""
    if any(resource not in index.stocks for group in query.groups for resource in group.resources):
        return None
    anchors = _may_anchor(index, query)
    if scope.roots is not None:
        anchors &= scope.roots
    slots: list[Slot] = []
    together: tuple[Flags, ...] = ()
    for group in query.groups:
        _charge(index, group, budget)
        if group.in_tree is not None and index.row_of(group.in_tree) is None:
            return None
        if group.suffix == UNSUFFIXED:
            slots += _slots_of_unsuffixed(index, group, scope.taken)
            together = tuple(index.traits.having_any(names, index.rows) for names in group.required)
            if group.forbidden_aggregates:
                anchors &= ~index.members(group.forbidden_aggregates)
        else:
            slots.append(_slot_of_suffixed(index, group, scope.taken))
    pools = {
        row: index.reached_from(row)
        for row in sorted(index.sharing - scope.barred)
        if any(slot.shared is not None and slot.shared[row] for slot in slots)
    }
    for slot in slots:
        anchors &= _served(index, slot, pools)
    return Fitting(tuple(slots), together, anchors, pools) if anchors.any() else None


def _charge(index: ProviderIndex, group: Group, budget: Budget) -> None:
    """Charge the budget for a group: its slots keep flags and weights, and each property costs one pass."""
    slots = 1 if group.suffix else len(group.resources)
    passes = 4 + 4 * len(group.resources) + 2 * slots + len(group.required) + len(group.preferred)
    named = sum(map(len, group.required)) + len(group.forbidden)
    aggregates = len(group.forbidden_aggregates) + sum(map(len, group.member_of))
    budget.spend(passes * (10 + index.rows // ROWS_PER_STEP) + named + 10 * aggregates)
    budget.hold(slots * index.rows * (2 + 8 * bool(group.preferred)))
    budget.hold(index.rows * len(group.required) if not group.suffix else 0)


def _may_anchor(index: ProviderIndex, query: CandidatesQuery) -> Flags:
    rows = index.rows
    anchors: Flags = index.attached[:rows] & (index.parent[:rows] < 0)
    for trait in query.root_required:
        anchors &= index.traits.having_any((trait,), rows)
    if query.root_forbidden:
        anchors &= ~index.traits.having_any(query.root_forbidden, rows)
    return anchors


def _slots_of_unsuffixed(index: ProviderIndex, group: Group, taken: Taken) -> list[Slot]:
    """An aggregate of the root counts for its whole tree; a sharing provider must be a member itself."""
    root = index.root[: index.rows]
    own = _not_forbidden(index, group)
    shared = own & index.shares[: index.rows] if index.sharing and group.in_tree is None else None
    if group.member_of:
        # Either the row itself is in all aggregates that are asked for, or its root is; not some here and some there.
        inside = np.logical_and.reduce([index.members(aggregates) for aggregates in group.member_of])
        own &= inside | inside[root]
        if shared is not None:
            shared &= inside
    if group.forbidden_aggregates:
        inside = index.members(group.forbidden_aggregates)
        own &= ~(inside | inside[root])
        if shared is not None:
            shared &= ~inside
    own &= _in_tree(index, group)
    worth = _preferences(index, group, len(group.resources))
    slots = []
    for resource, amount in sorted(group.resources.items()):
        giving = _giving(index, resource, amount, taken)
        slots.append(
            Slot(
                suffix=UNSUFFIXED,
                resources=((resource, amount),),
                fits=own & giving,
                shared=None if shared is None else shared & giving,
                worth=worth,
            )
        )
    return slots


def _slot_of_suffixed(index: ProviderIndex, group: Group, taken: Taken) -> Slot:
    fits = _not_forbidden(index, group)
    for names in group.required:
        fits &= index.traits.having_any(names, index.rows)
    for aggregates in group.member_of:
        fits &= index.members(aggregates)
    if group.forbidden_aggregates:
        fits &= ~index.members(group.forbidden_aggregates)
    for resource, amount in group.resources.items():
        fits &= _giving(index, resource, amount, taken)
    if group.resources:
        fits &= _in_tree(index, group)
    elif not group.required and not group.member_of:
        fits[:] = False
    return Slot(
        suffix=group.suffix,
        resources=tuple(sorted(group.resources.items())),
        fits=fits,
        shared=fits & index.shares[: index.rows] if index.sharing else None,
        worth=_preferences(index, group, 1),
    )


def _not_forbidden(index: ProviderIndex, group: Group) -> Flags:
    fits = index.attached[: index.rows].copy()
    if group.forbidden:
        fits &= ~index.traits.having_any(group.forbidden, index.rows)
    return fits


def _in_tree(index: ProviderIndex, group: Group) -> Flags | np.bool_:
    row = None if group.in_tree is None else index.row_of(group.in_tree)
    return np.True_ if row is None else index.root[: index.rows] == index.root[row]


def _giving(index: ProviderIndex, resource: str, amount: int, taken: Taken) -> Flags:
    stock = index.stocks.get(resource)
    if stock is None:
        return np.zeros(index.rows, dtype=np.bool_)
    giving = stock.giving(amount, index.rows)
    for row, less in taken.get(resource, {}).items():
        giving[row] &= stock.free[row] - less >= amount
    return giving


def _preferences(index: ProviderIndex, group: Group, slots: int) -> Floats | None:
    """A group that takes from several providers is worth the mean of their weights, by class."""
    if not group.preferred:
        return None
    worth = np.zeros(index.rows)
    for preferred in group.preferred:
        worth += index.traits.having_any((preferred.trait,), index.rows) * (preferred.weight / slots)
    return worth


def _served(index: ProviderIndex, slot: Slot, pools: Mapping[int, Rows]) -> Flags:
    """Under which roots does the slot have a suitable provider?"""
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
