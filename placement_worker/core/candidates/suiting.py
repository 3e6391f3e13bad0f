"""Which providers suit a group of the query by everything but amounts: traits, aggregates, and the tree."""

import numpy as np
from msgspec import Struct

from placement_worker.core.candidates.columns import Flags, Floats
from placement_worker.core.candidates.provider_index import ProviderIndex
from placement_worker.core.candidates.query import UNSUFFIXED, CandidatesQuery, Group

Amounts = tuple[tuple[str, int], ...]


class Suiting(Struct, frozen=True):
    """`own` are the rows that suit in their own tree. `shared` are those that suit in each tree they share with, if any
    provider shares. `worth` is the weight of preferred traits of each row, if there are any. `together` has the rows with
    any of each set of traits that the slots without suffix need together.
    """

    own: Flags
    shared: Flags | None
    worth: Floats | None
    together: tuple[Flags, ...] = ()


def suiting(index: ProviderIndex, group: Group) -> Suiting:
    return _of_unsuffixed(index, group) if group.suffix == UNSUFFIXED else _of_suffixed(index, group)


def slots_of(group: Group) -> tuple[Amounts, ...]:
    """What each slot of a group asks for: all, or one class where each class may come from another provider."""
    resources = tuple(sorted(group.resources.items()))
    return (resources,) if group.suffix != UNSUFFIXED else tuple([(each,) for each in resources])


def may_anchor(index: ProviderIndex, query: CandidatesQuery) -> Flags:
    """Flags of the providers (rows) that may be the root of a candidate's tree."""
    rows = index.rows
    anchors: Flags = index.attached[:rows] & (index.parent[:rows] < 0)
    for trait in query.root_required:
        anchors &= index.traits.having_any((trait,), rows)
    if query.root_forbidden:
        anchors &= ~index.traits.having_any(query.root_forbidden, rows)
    for group in query.groups:
        if group.suffix == UNSUFFIXED and group.forbidden_aggregates:
            anchors &= ~index.members(group.forbidden_aggregates)
    return anchors


def _of_unsuffixed(index: ProviderIndex, group: Group) -> Suiting:
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
    together = tuple([index.traits.having_any(names, index.rows) for names in group.required])
    return Suiting(own, shared, _preferences(index, group, len(group.resources)), together)


def _of_suffixed(index: ProviderIndex, group: Group) -> Suiting:
    own = _not_forbidden(index, group)
    for names in group.required:
        own &= index.traits.having_any(names, index.rows)
    for aggregates in group.member_of:
        own &= index.members(aggregates)
    if group.forbidden_aggregates:
        own &= ~index.members(group.forbidden_aggregates)
    if group.resources:
        own &= _in_tree(index, group)
    elif not group.required and not group.member_of:
        own[:] = False
    shared = own & index.shares[: index.rows] if index.sharing else None
    return Suiting(own, shared, _preferences(index, group, 1))


def _not_forbidden(index: ProviderIndex, group: Group) -> Flags:
    fits = index.attached[: index.rows].copy()
    if group.forbidden:
        fits &= ~index.traits.having_any(group.forbidden, index.rows)
    return fits


def _in_tree(index: ProviderIndex, group: Group) -> Flags | np.bool_:
    row = None if group.in_tree is None else index.row_of(group.in_tree)
    return np.True_ if row is None else index.root[: index.rows] == index.root[row]


def _preferences(index: ProviderIndex, group: Group, slots: int) -> Floats | None:
    """A group that takes from several providers is worth the mean of their weights, by class."""
    if not group.preferred:
        return None
    worth = np.zeros(index.rows)
    for preferred in group.preferred:
        worth += index.traits.having_any((preferred.trait,), index.rows) * (preferred.weight / slots)
    return worth
