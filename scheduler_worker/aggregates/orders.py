"""Handlers of orders about aggregates. An order is checked against fresh data, then its metadata is committed, then
placement is told of its members. Each step may be repeated, so an order that comes again after a crash completes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta

from msgspec import structs

from bus.message import Message
from bus.messages.aggregates import (
    Aggregate,
    AggregateChanged,
    AggregateDeleted,
    AggregateSet,
    AggregateState,
    DeleteAggregate,
    SetAggregate,
)
from bus.messages.build import BuildRejected
from bus.workers.handling import Answer, Handlers, Received, Said, Tell
from scheduler_worker.aggregates.membership import Membership
from scheduler_worker.core.aggregates.metadata import Problem
from scheduler_worker.core.aggregates.orders import changed, second_zone, still_has
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.outbox.outbox import OutboxTransaction
from scheduler_worker.requests.answering import rejected
from scheduler_worker.store import SchedulerStore

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class AggregateOrders:
    """`make_sure` returns when the picture has every provider, host and aggregate that was written before the call.
    `multipliers` are the metadata keys of the active weighers.
    """

    def __init__(
        self,
        store: SchedulerStore,
        picture: Picture,
        membership: Membership,
        clock: Callable[[], datetime],
        *,
        make_sure: Callable[[], Awaitable[None]],
        multipliers: Collection[str],
    ) -> None:
        self._store = store
        self._picture = picture
        self._membership = membership
        self._clock = clock
        self._make_sure = make_sure
        self._multipliers = multipliers
        # Two orders of one process never check by what the other is about to change.
        self._one_at_a_time = asyncio.Lock()

    def handlers(self) -> Handlers:
        return {SetAggregate: self._on_set, DeleteAggregate: self._on_delete}

    async def _on_set(self, asks: Sequence[Received[SetAggregate]], _: OutboxTransaction) -> list[Said]:
        said: list[Said] = []
        async with self._one_at_a_time:
            for ask in asks:
                await self._make_sure()
                outcome = await self._set(ask.message)
                if isinstance(outcome, Problem):
                    said += _refused(ask, outcome)
                else:
                    state = _state(outcome, len(self._membership.hosts_in(outcome.id)))
                    said += [
                        Answer(ask, AggregateSet(aggregate=state)),
                        Tell(AggregateChanged(aggregate=outcome), ask),
                    ]
        return said

    async def _set(self, order: SetAggregate) -> Aggregate | Problem:
        for host in order.add_hosts:
            if host in order.remove_hosts:
                return Problem("remove_hosts", host, "the order adds it, too")
        add = self._membership.find("add_hosts", order.add_hosts)
        remove = self._membership.find("remove_hosts", order.remove_hosts)
        if isinstance(add, Problem):
            return add
        if isinstance(remove, Problem):
            return remove
        leaving = {*remove.values()}
        staying = {
            name: host
            for name, host in self._membership.hosts_in(order.aggregate).items()
            if host not in leaving
        }
        # Committed before placement is asked: SQLite has one writer at a time, and placement may be waiting for it.
        async with self._store.transaction() as transaction:
            rows = await transaction.lock_aggregates()
            after = changed(order, rows, self._multipliers, self._now_us())
            if isinstance(after, Problem):
                return after
            members = self._membership.of({**staying, **add})
            if problem := second_zone(after, rows, members, add.keys()):
                return problem
            if after not in rows:
                await transaction.save_aggregate(after)
        self._picture.put_aggregates((after,))

        async def check(added: Collection[str]) -> Problem | None:
            members = self._membership.of({name: add[name] for name in added})
            return second_zone(after, await self._store.aggregates(), members, added)

        return await self._membership.change(order.aggregate, add, remove, check) or after

    async def _on_delete(self, asks: Sequence[Received[DeleteAggregate]], _: OutboxTransaction) -> list[Said]:
        said: list[Said] = []
        async with self._one_at_a_time:
            await self._make_sure()
            for ask in asks:
                said += await self._delete(ask)
        return said

    async def _delete(self, ask: Received[DeleteAggregate]) -> list[Said]:
        aggregate = ask.message.aggregate
        hosts = [*self._membership.hosts_in(aggregate)]
        async with self._store.transaction() as transaction:
            rows = {each.id: each for each in await transaction.lock_aggregates()}
            known = rows.get(aggregate)
            if known is None:
                return [Answer(ask, AggregateDeleted(aggregate=aggregate, was_there=False))]
            if hosts:
                return _refused(ask, Problem("aggregate", str(aggregate), still_has(hosts)))
            await transaction.delete_aggregate(aggregate)
        gone = structs.replace(known, sequence=max(self._now_us(), known.sequence + 1))
        self._picture.remove_aggregate(gone)
        return [
            Answer(ask, AggregateDeleted(aggregate=aggregate, was_there=True)),
            Tell(AggregateChanged(aggregate=gone, deleted=True), ask),
        ]

    def _now_us(self) -> int:
        return (self._clock() - _EPOCH) // timedelta(microseconds=1)


def _state(aggregate: Aggregate, hosts: int) -> AggregateState:
    return AggregateState(
        id=aggregate.id,
        name=aggregate.name,
        metadata=aggregate.metadata,
        sequence=aggregate.sequence,
        hosts_count=hosts,
    )


def _refused(ask: Received[Message], problem: Problem) -> list[Said]:
    why = BuildRejected(request_id=None, field=problem.field, value=problem.value, reason=problem.reason)
    return [*rejected(ask, why)]
