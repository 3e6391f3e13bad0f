"""Which providers suit a group of the query: they meet its conditions on traits, aggregates and tree. Amounts come later."""

from collections.abc import Hashable

import numpy as np
from msgspec import Struct

from placement_worker.core.candidates.columns import At, Flags, Floats
from placement_worker.core.candidates.provider_index import ProviderIndex
from placement_worker.core.candidates.query import UNSUFFIXED, CandidatesQuery, Group

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
