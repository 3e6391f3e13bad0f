"""Which providers have everything that a query asks for? Each is judged by itself."""

from collections.abc import Iterable, Iterator

from bus.messages.placement import ProviderState
from placement_worker.api.queries import ProviderQuery
from placement_worker.core.candidates.columns import Flags
from placement_worker.core.candidates.provider_index import ProviderIndex
from placement_worker.replica import Replica


def providers_that(replica: Replica, query: ProviderQuery) -> Iterator[ProviderState]:
    having = _having(replica.index, query)
    for state in _found(replica, query):
        row = replica.index.row_of(state.id)
        if having is None or (row is not None and having[row]):
            yield state


def _found(replica: Replica, query: ProviderQuery) -> Iterable[ProviderState]:
    """Narrow down by name, id or tree first, since they leave few providers."""
    found: Iterable[ProviderState] = replica
    if query.id is not None:
        state = replica.get(query.id)
        found = () if state is None else (state,)
    elif query.name:
        state = replica.named(query.name)
        found = () if state is None else (state,)
    elif query.in_tree is not None:
        return replica.tree_of(query.in_tree)
    if query.name:
        found = [state for state in found if state.name == query.name]
    if query.in_tree is not None:
        inside = {state.id.int for state in replica.tree_of(query.in_tree)}
        found = [state for state in found if state.id.int in inside]
    return found


def _having(index: ProviderIndex, query: ProviderQuery) -> Flags | None:
    """For each row, whether it has what is asked for; None if nothing is asked."""
    rows = index.rows
    conditions: list[Flags] = []
    for resource, amount in query.resources.items():
        stock = index.stocks.get(resource)
        conditions.append(index.members(()) if stock is None else stock.giving(amount, rows))
    conditions += [index.traits.having_any(any_of, rows) for any_of in query.required]
    conditions += [index.members(any_of) for any_of in query.member_of]
    if query.forbidden:
        conditions.append(~index.traits.having_any(query.forbidden, rows))
    if query.forbidden_aggregates:
        conditions.append(~index.members(query.forbidden_aggregates))
    if not conditions:
        return None
    having = conditions[0]
    for condition in conditions[1:]:
        having = having & condition
    return having
