"""Handlers of questions about aggregates."""

from collections.abc import Sequence

from bus.messages.aggregates import Aggregate, AggregatesFound, AggregateState, AskAggregates
from bus.workers.handling import Answer, Handlers, ReadOnly, Received, Said
from scheduler_worker.aggregates.membership import AggregateMembership
from scheduler_worker.store import SchedulerStore


def aggregate_questions(store: SchedulerStore, membership: AggregateMembership) -> Handlers:
    async def on_ask(asks: Sequence[Received[AskAggregates]]) -> list[Said]:
        await membership.catch_up()
        rows = await store.aggregates()
        return [Answer(ask, _answer(ask.message, rows, membership)) for ask in asks]

    return {AskAggregates: ReadOnly(on_ask)}


def _answer(
    ask: AskAggregates, rows: Sequence[Aggregate], membership: AggregateMembership
) -> AggregatesFound:
    if ask.name:
        named = [row for row in rows if ask.name in (row.name, str(row.id))]
        return _with_hosts(ask, named[0], membership) if named else AggregatesFound(aggregates=())
    found = [row for row in rows if row.name > ask.after]
    page = found[: ask.limit]
    return AggregatesFound(
        aggregates=tuple(state_of(row, len(membership.hosts_in(row.id))) for row in page),
        next=page[-1].name if len(found) > len(page) else "",
    )


def _with_hosts(ask: AskAggregates, row: Aggregate, membership: AggregateMembership) -> AggregatesFound:
    hosts = [*membership.hosts_in(row.id)]
    found = [name for name in hosts if name > ask.after]
    page = tuple(found[: ask.limit])
    return AggregatesFound(
        aggregates=(state_of(row, len(hosts), page),), next=page[-1] if len(found) > len(page) else ""
    )


def state_of(row: Aggregate, hosts_count: int, shown: tuple[str, ...] = ()) -> AggregateState:
    return AggregateState(
        id=row.id,
        name=row.name,
        metadata=row.metadata,
        sequence=row.sequence,
        hosts_count=hosts_count,
        hosts=shown,
    )
