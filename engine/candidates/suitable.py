"""Which providers suit a group of the query: they meet its conditions on traits, aggregates and tree. Amounts come later."""

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Protocol, TypeVar

import numpy as np
from msgspec import Struct

from engine.candidates.budget import ROWS_PER_STEP, Budget
from engine.candidates.columns import At, Flags, Floats, Ints, Rows, TreeLayout
from engine.candidates.provider_index import ProviderIndex
from engine.candidates.query import CELL_TRAIT, UNSUFFIXED, CandidatesQuery, Group

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
    own, *others = index.cached(asked, lambda at: of(index, group, at).flags)
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
    (roots,) = index.cached(asked, lambda at: (_possible_roots(index, query, at),))
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
    pools = {
        row: index.reached_from(row)
        for row in sorted(index.sharing - scope.barred)
        if any(slot.shared is not None and slot.shared[row] for slot in slots)
    }
    for slot in slots:
        roots = roots & _served(index, slot, pools)
    if not roots.any():
        return None
    cells = index.traits.having_any((CELL_TRAIT,), index.everywhere) if query.near else None
    return FittingProviders(tuple(slots), having_traits, roots, pools, cells)


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


# Classes of trees that a query cannot tell apart: a solution for one of them is a solution for all.
#
# A cloud has thousands of trees and few kinds of hardware. Two trees have the same solutions if three things are equal:
# their layout (which provider is the parent of which), their pools, and which of their providers fit which slots (parts of
# the query), with how much room. Only room that the query can use up counts. So the solver, which is slow Python, runs once
# for each class. A single tree costs only a few bits in a few arrays, a number made of them, and a sort.


# Packings: resource classes that several slots (parts of the query) may take from one provider, and the room for them.
#
# The room matters only as far as the query can use it. If three slots ask for 2 each, a provider with room for 5 is like
# one with room for 4. So the room is rounded down to a sum of amounts, and trees with the same rounded room are alike.


SUMS_MAX = 1024


class RowPacking(Struct, frozen=True):
    """One resource class that several slots may take from one provider. `amounts` is what each slot takes of it (or 0);
    `room` is what each provider (row) has for all of them together.
    """

    amounts: tuple[int, ...]
    room: ByRow[int]


class ColumnPacking(RowPacking, frozen=True):
    """A packing as columns of all providers. `room` is rounded down to a sum of some slots' amounts; `level` is the number of
    that sum, counted from the smallest one (0).
    """

    level: Ints


def packings_of(
    index: ProviderIndex, slots: Sequence[Slot], budget: Budget, *, isolate: bool, taken: Taken
) -> list[ColumnPacking]:
    """The resource classes that several slots (parts of the query) may take from one provider, with the room of all
    providers. With `isolate`, two groups with suffixes never take from one provider.
    """
    packings = []
    budget.spend(sum(len(slot.resources) for slot in slots))
    for resource, amounts in packed_amounts(slots, isolate=isolate):
        # The search also makes temporary arrays, which are freed afterwards.
        budget.hold(2 * 8 * index.rows)
        budget.spend(len(slots) + SUMS_MAX + 8 * index.rows // ROWS_PER_STEP)
        stock = index.stocks[resource]
        room = stock.room(index.rows)
        for row, less in taken.get(resource, {}).items():
            room[row] = stock.room_at(row, less)
        packings.append(_column_packing(room, amounts))
    return packings


def packed_amounts(slots: Sequence[Slot], *, isolate: bool) -> list[tuple[str, tuple[int, ...]]]:
    """The classes that several slots (parts of the query) may take from one provider, each with the amounts of all slots."""
    takers: dict[str, list[int]] = {}
    for number, slot in enumerate(slots):
        for resource, _ in slot.resources:
            takers.setdefault(resource, []).append(number)
    return [
        (resource, tuple([dict(slot.resources).get(resource, 0) for slot in slots]))
        for resource, numbers in sorted(takers.items())
        if len(numbers) > 1 and not (isolate and all(slots[number].is_suffixed for number in numbers))
    ]


def _column_packing(room: Ints, amounts: tuple[int, ...]) -> ColumnPacking:
    total = sum(amounts)
    sums = {0}
    for amount in amounts:
        sums |= {each + amount for each in sums}
        if len(sums) > SUMS_MAX:
            # Too many sums: tell each unit apart. That gives more classes of trees, and the same solutions.
            room, sums = np.clip(room, 0, total), set(np.clip(room, 0, total).tolist())
            break
    steps = np.array(sorted(sums), dtype=np.int64)
    level = np.maximum(np.searchsorted(steps, room, side="right") - 1, 0)
    return ColumnPacking(amounts, steps[level], level)


CODE_BITS = 62


class TreeClass(Struct, frozen=True):
    """Trees of one layout that a query cannot tell apart. `rows` has the rows of their providers: one line a tree, one
    column a place (position in the tree). `pools` share with each of these trees, and are in none of them.
    """

    layout: TreeLayout
    rows: Rows
    pools: tuple[int, ...]


def tree_classes(
    index: ProviderIndex, fitting: FittingProviders, packings: Sequence[ColumnPacking], budget: Budget
) -> Iterator[TreeClass]:
    """The trees in which a provider fits each slot (part of the query), grouped into classes that the query cannot tell apart."""
    pools = _sets_of_pools(index, fitting)
    for layout in list(index.layouts.values()):
        rows = layout.rows[fitting.roots[layout.rows[:, 0]]]
        if len(rows):
            told = len(fitting.slots) + len(fitting.having_traits) + len(packings) + len(fitting.pools)
            budget.spend(told * (20 + 4 * rows.size // ROWS_PER_STEP))
            for lines in _alike(rows, fitting, packings, pools):
                near = index.pools_of(int(rows[lines[0], 0]))
                shared = tuple([row for row in near if row in fitting.pools])
                yield TreeClass(layout, rows[lines], shared)


def _alike(
    rows: Rows,
    fitting: FittingProviders,
    packings: Sequence[ColumnPacking],
    pools: Ints | None,
) -> Iterator[Rows]:
    """Group trees of one layout (the lines of `rows`) by everything that the query can tell apart. Returns the lines of each
    group.
    """
    labels = _Labels(len(rows))
    asked = np.zeros(rows.shape, dtype=np.bool_)
    unsuffixed = np.zeros(rows.shape, dtype=np.bool_)
    for slot in fitting.slots:
        fits = slot.fits[rows]
        labels.tell_apart(fits)
        asked |= fits
        if not slot.is_suffixed:
            unsuffixed |= fits
        if slot.worth is not None:
            _, worth = np.unique(np.where(fits, slot.worth[rows], 0.0), return_inverse=True)
            labels.tell_apart(worth.reshape(rows.shape))
    for bearing in fitting.having_traits:
        labels.tell_apart(bearing[rows] & unsuffixed)
    for packing in packings:
        labels.tell_apart(np.where(asked, packing.level[rows], 0))
    if fitting.cells is not None:
        labels.tell_apart(fitting.cells[rows])
    if pools is not None:
        labels.tell_apart(pools[rows[:, :1]])
    return labels.alike()


def _sets_of_pools(index: ProviderIndex, fitting: FittingProviders) -> Ints | None:
    """A number for each root (row). Two roots have the same number if the same pools share with their trees. None if there
    are no pools.
    """
    if not fitting.pools:
        return None
    sets, count = np.zeros(index.rows, dtype=np.int64), 1
    for row, reached in fitting.pools.items():
        # In its own tree a sharing provider is a place, not a pool.
        roots = np.unique(reached[reached != index.root[row]])
        kinds, before = np.unique(sets[roots], return_inverse=True)
        sets[roots] = count + before
        count += len(kinds)
    return sets


class _Labels:
    """Groups the lines of a table: it gives each line one number, made of all columns that were passed to it. Two lines have
    the same number if they are equal in all of these columns.
    """

    def __init__(self, lines: int) -> None:
        self._codes: Ints = np.zeros(lines, dtype=np.int64)
        self._bits = 0

    def tell_apart(self, table: Flags | Ints) -> None:
        """Add the columns of this table, with flags or numbers from 0 on, to the numbers of the lines."""
        columns = np.ascontiguousarray(table.T)
        top = columns.max(axis=1)
        for place in np.flatnonzero(top > columns.min(axis=1)).tolist():
            bits = int(top[place]).bit_length()
            if self._bits + bits > CODE_BITS:
                kinds, self._codes = np.unique(self._codes, return_inverse=True)
                self._bits = len(kinds).bit_length()
            self._codes = self._codes << bits | columns[place]
            self._bits += bits

    def alike(self) -> Iterator[Rows]:
        """The groups of lines that no column told apart."""
        if not self._bits:
            yield np.arange(len(self._codes))
            return
        order = np.argsort(self._codes, kind="stable")
        edges = np.flatnonzero(np.diff(self._codes[order])) + 1
        for start, end in pairwise((0, *edges.tolist(), len(order))):
            yield order[start:end]
