"""Which providers have everything that a query asks for? Each is judged by itself."""

from collections.abc import Iterable, Iterator

import numpy as np

from bus.messages.placement import ProviderState
from placement_worker.api.grammar.queries import ProviderQuery
from placement_worker.core.candidates.columns import Flags
from placement_worker.core.candidates.provider_index import ProviderIndex
from placement_worker.core.candidates.query import Group
from placement_worker.replica import ProviderReplica


def providers_that(replica: ProviderReplica, query: ProviderQuery) -> Iterator[ProviderState]:
    having = _having(replica.index, query.group)
    for state in _found(replica, query):
        row = replica.index.row_of(state.id)
        if having is None or (row is not None and having[row]):
            yield state


def _found(replica: ProviderReplica, query: ProviderQuery) -> Iterable[ProviderState]:
    """The providers with the requested id, name and tree. Few are left to which the other conditions must be applied."""
    in_tree = query.group.in_tree
    found: Iterable[ProviderState | None] = replica if in_tree is None else replica.tree_of(in_tree)
    if query.id is not None:
        found = (replica.get(query.id),)
    elif query.name:
        found = (replica.named(query.name),)
    tree = None if in_tree is None else replica.get(in_tree)
    return [
        state
        for state in found
        if state is not None
        and query.name in ("", state.name)
        and (in_tree is None or (tree is not None and state.root == tree.root))
    ]


def _having(index: ProviderIndex, group: Group) -> Flags | None:
    """For each row of the index, whether that provider has what the query asks for; None if it asks for nothing."""
    rows = index.rows
    conditions: list[Flags] = []
    for resource, amount in group.resources.items():
        stock = index.stocks.get(resource)
        conditions.append(index.members(()) if stock is None else stock.giving(amount, rows))
    conditions += [index.traits.having_any(any_of, index.everywhere) for any_of in group.required]
    conditions += [index.members(any_of) for any_of in group.member_of]
    if group.forbidden:
        conditions.append(~index.traits.having_any(group.forbidden, index.everywhere))
    if group.forbidden_aggregates:
        conditions.append(~index.members(group.forbidden_aggregates))
    return np.logical_and.reduce(conditions) if conditions else None
