"""Which providers would do for each part of the question, one by one, and under which roots anything may be found.

One pass over the columns for each thing asked. What holds between parts (who stands under whom, how much is left when two
take from one provider) is not looked at here.
"""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from placement_worker.core.candidates.budget import ROWS_PER_STEP, Budget
from placement_worker.core.candidates.columns import Flags, Floats, Rows
from placement_worker.core.candidates.query import UNSUFFIXED, CandidatesQuery, Group
from placement_worker.core.candidates.woods import Woods

# The forms of woods in which everybody is a root.
_LONE_ROOTS = {(-1,)}

# By class and row.
Taken = Mapping[str, Mapping[int, int]]


class Slot(Struct, frozen=True):
    """A part of the question that is given to one provider: a group with a suffix, or one class of the group without.

    `fits` are those that will do in their own tree; `shared`, if anyone shares, those that will do in every tree they
    share with. `worth` is what each is worth by preferred traits, if there are such.
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
    """`together` has who bears any of each set of traits that the slots without suffix must bear together. `anchors` are
    the roots of trees in which each slot has somebody; `pools` are those who share, each with the roots it reaches.
    """

    slots: tuple[Slot, ...]
    together: tuple[Flags, ...]
    anchors: Flags
    pools: Mapping[int, Rows]


class Scope(Struct, frozen=True):
    """What of the woods is searched: the trees of these `roots` (None: of all), without the pools in `barred`. `taken` is
    what cannot be had beside what the stocks say is used, by class and row.
    """

    roots: Flags | None = None
    barred: frozenset[int] = frozenset()
    taken: Taken = {}


EVERYTHING = Scope()


def fit(woods: Woods, query: CandidatesQuery, scope: Scope, budget: Budget) -> Fitting | None:
    """None if it takes no search to see that nothing is to be found."""
    if any(resource not in woods.stocks for group in query.groups for resource in group.resources):
        return None
    anchors = _may_anchor(woods, query)
    if scope.roots is not None:
        anchors &= scope.roots
    slots: list[Slot] = []
    together: tuple[Flags, ...] = ()
    for group in query.groups:
        _account(woods, group, budget)
        if group.in_tree is not None and woods.row_of(group.in_tree) is None:
            return None
        if group.suffix == UNSUFFIXED:
            slots += _slots_of_unsuffixed(woods, group, scope.taken)
            together = tuple(woods.traits.bearing_any(names, woods.rows) for names in group.required)
            if group.forbidden_aggregates:
                anchors &= ~woods.members(group.forbidden_aggregates)
        else:
            slots.append(_slot_of_suffixed(woods, group, scope.taken))
    pools = {
        row: woods.reached_from(row)
        for row in sorted(woods.sharing - scope.barred)
        if any(slot.shared is not None and slot.shared[row] for slot in slots)
    }
    for slot in slots:
        anchors &= _served(woods, slot, pools)
    return Fitting(tuple(slots), together, anchors, pools) if anchors.any() else None


def _account(woods: Woods, group: Group, budget: Budget) -> None:
    """Each of its slots keeps flags, and what providers are worth; to find them out takes a pass for each thing asked."""
    slots = 1 if group.suffix else len(group.resources)
    passes = 4 + 4 * len(group.resources) + 2 * slots + len(group.required) + len(group.preferred)
    named = sum(map(len, group.required)) + len(group.forbidden)
    aggregates = len(group.forbidden_aggregates) + sum(map(len, group.member_of))
    budget.spend(passes * (10 + woods.rows // ROWS_PER_STEP) + named + 10 * aggregates)
    budget.hold(slots * woods.rows * (2 + 8 * bool(group.preferred)))
    budget.hold(woods.rows * len(group.required) if not group.suffix else 0)


def _may_anchor(woods: Woods, query: CandidatesQuery) -> Flags:
    rows = woods.rows
    anchors: Flags = woods.planted[:rows] & (woods.parent[:rows] < 0)
    for trait in query.root_required:
        anchors &= woods.traits.bearing_any((trait,), rows)
    if query.root_forbidden:
        anchors &= ~woods.traits.bearing_any(query.root_forbidden, rows)
    return anchors


def _slots_of_unsuffixed(woods: Woods, group: Group, taken: Taken) -> list[Slot]:
    """An aggregate of the root is one of all its tree; who shares must be in it by itself."""
    root = woods.root[: woods.rows]
    own = _not_forbidden(woods, group)
    shared = own & woods.shares[: woods.rows] if woods.sharing and group.in_tree is None else None
    if group.member_of:
        # It by itself is in all that is asked for, or its root is: not one in this and the other in that.
        inside = np.logical_and.reduce([woods.members(aggregates) for aggregates in group.member_of])
        own &= inside | inside[root]
        if shared is not None:
            shared &= inside
    if group.forbidden_aggregates:
        inside = woods.members(group.forbidden_aggregates)
        own &= ~(inside | inside[root])
        if shared is not None:
            shared &= ~inside
    own &= _in_tree(woods, group)
    worth = _worth(woods, group, len(group.resources))
    slots = []
    for resource, amount in sorted(group.resources.items()):
        giving = _giving(woods, resource, amount, taken)
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


def _slot_of_suffixed(woods: Woods, group: Group, taken: Taken) -> Slot:
    fits = _not_forbidden(woods, group)
    for names in group.required:
        fits &= woods.traits.bearing_any(names, woods.rows)
    for aggregates in group.member_of:
        fits &= woods.members(aggregates)
    if group.forbidden_aggregates:
        fits &= ~woods.members(group.forbidden_aggregates)
    for resource, amount in group.resources.items():
        fits &= _giving(woods, resource, amount, taken)
    if group.resources:
        fits &= _in_tree(woods, group)
    elif not group.required and not group.member_of:
        fits[:] = False
    return Slot(
        suffix=group.suffix,
        resources=tuple(sorted(group.resources.items())),
        fits=fits,
        shared=fits & woods.shares[: woods.rows] if woods.sharing else None,
        worth=_worth(woods, group, 1),
    )


def _not_forbidden(woods: Woods, group: Group) -> Flags:
    planted = woods.planted[: woods.rows].copy()
    if group.forbidden:
        planted &= ~woods.traits.bearing_any(group.forbidden, woods.rows)
    return planted


def _in_tree(woods: Woods, group: Group) -> Flags | np.bool_:
    row = None if group.in_tree is None else woods.row_of(group.in_tree)
    return np.True_ if row is None else woods.root[: woods.rows] == woods.root[row]


def _giving(woods: Woods, resource: str, amount: int, taken: Taken) -> Flags:
    stock = woods.stocks.get(resource)
    if stock is None:
        return np.zeros(woods.rows, dtype=np.bool_)
    giving = stock.giving(amount, woods.rows)
    for row, less in taken.get(resource, {}).items():
        giving[row] &= stock.free[row] - less >= amount
    return giving


def _worth(woods: Woods, group: Group, slots: int) -> Floats | None:
    """A group that takes from several providers is worth the mean of them, by classes."""
    if not group.preferred:
        return None
    worth = np.zeros(woods.rows)
    for preferred in group.preferred:
        worth += woods.traits.bearing_any((preferred.trait,), woods.rows) * (preferred.weight / slots)
    return worth


def _served(woods: Woods, slot: Slot, pools: Mapping[int, Rows]) -> Flags:
    """Under which roots is there anybody who will do?"""
    if woods.forms.keys() == _LONE_ROOTS:
        served = slot.fits.copy()
    else:
        served = np.zeros(woods.rows, dtype=np.bool_)
        served[woods.root[: woods.rows][slot.fits]] = True
    if slot.shared is not None:
        for row, reached in pools.items():
            if slot.shared[row]:
                served[reached] = True
    return served
