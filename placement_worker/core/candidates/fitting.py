"""Which providers can give each part of the query, taken alone; and which roots may have candidates.

One pass over the columns for each property that is asked for. Conditions between the parts (one provider below another,
how much is left when two take from one provider) are checked later.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Protocol, TypeVar

import numpy as np
from msgspec import Struct

from placement_worker.core.candidates.budget import ROWS_PER_STEP, Budget
from placement_worker.core.candidates.columns import Flags, Floats, Rows
from placement_worker.core.candidates.provider_index import ProviderIndex
from placement_worker.core.candidates.query import UNSUFFIXED, CandidatesQuery, Group
from placement_worker.core.candidates.suiting import Amounts, may_anchor, slots_of, suiting

# The only layout there is, if all providers are roots.
_ONLY_ROOTS = {(-1,)}

# By resource class and row.
Taken = Mapping[str, Mapping[int, int]]
Value_co = TypeVar("Value_co", covariant=True)


class ByRow(Protocol[Value_co]):
    """A value for each row: a column, or something that tells it of the few rows that are asked for."""

    def __getitem__(self, row: int, /) -> Value_co: ...


class Slot(Struct, frozen=True):
    """A part of the query that one provider must give: a group with a suffix, or one class of the group without.

    `worth` is the weight of preferred traits of each row, if there are any.
    """

    suffix: str
    resources: Amounts
    worth: Floats | None

    @property
    def is_suffixed(self) -> bool:
        return self.suffix != UNSUFFIXED

    @abstractmethod
    def domain(self, rows: tuple[int, ...], own: int) -> int:
        """As bits, the places that suit and have room, of a tree with these rows: first `own` ones, then pools."""


class SlotOfAll(Slot, frozen=True):
    """`fits` tells of each row whether it suits and has room in its own tree. `shared` tells the same for each tree that the
    row shares with, if any provider shares.
    """

    fits: Flags
    shared: Flags | None

    def domain(self, rows: tuple[int, ...], own: int) -> int:
        domain, fits, shared = 0, self.fits, self.shared
        for place, row in enumerate(rows):
            if fits[row] if place < own else shared is not None and shared[row]:
                domain |= 1 << place
        return domain


class Fitting(Struct, frozen=True):
    """`together` has the rows with any of each set of traits that the slots without suffix need together. `anchors` are
    the roots of trees in which each slot has at least one row. `pools` are the sharing providers, with the roots that each reaches.
    """

    slots: tuple[SlotOfAll, ...]
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
    """The providers that suit each part of the query, and the trees with one for every part. None if there are none."""
    if any(resource not in index.stocks for group in query.groups for resource in group.resources):
        return None
    anchors = may_anchor(index, query)
    if scope.roots is not None:
        anchors &= scope.roots
    slots: list[SlotOfAll] = []
    together: tuple[Flags, ...] = ()
    for group in query.groups:
        _charge(index, group, budget)
        if group.in_tree is not None and index.row_of(group.in_tree) is None:
            return None
        suits = suiting(index, group)
        together = suits.together or together
        for resources in slots_of(group):
            fits, shared = suits.own, suits.shared
            for resource, amount in resources:
                giving = _giving(index, resource, amount, scope.taken)
                fits = fits & giving
                shared = None if shared is None else shared & giving
            slots.append(SlotOfAll(group.suffix, resources, suits.worth, fits, shared))
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


def _giving(index: ProviderIndex, resource: str, amount: int, taken: Taken) -> Flags:
    stock = index.stocks[resource]
    giving = stock.giving(amount, index.rows)
    for row, less in taken.get(resource, {}).items():
        giving[row] = stock.gives(amount, row, less)
    return giving


def _served(index: ProviderIndex, slot: SlotOfAll, pools: Mapping[int, Rows]) -> Flags:
    """Flags of the roots whose trees have, or share, a suitable provider for the slot (one part of the query)."""
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
