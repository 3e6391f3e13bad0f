"""Handlers of orders about aggregates.

An order is checked against fresh data, then the aggregate's metadata is committed, then placement is told which hosts
join or leave. Each step may be repeated, so an order that is delivered again after a crash completes.

All schedulers together follow one order at a time. Otherwise two orders could each find that a host has one zone, and
together give it two. Or an aggregate could get its metadata from one order and its hosts from the other.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple, TypeVar

from msgspec import structs

from bus.message import AggregateId, Message, ProviderId
from bus.messages.aggregates import (
    Aggregate,
    AggregateChanged,
    AggregateDeleted,
    AggregateSet,
    DeleteAggregate,
    SetAggregate,
)
from bus.moments import microseconds
from bus.workers.handling import Answer, Handlers, Received, Said, Tell
from scheduler_worker.aggregates.membership import AggregateMembership
from scheduler_worker.aggregates.questions import state_of
from scheduler_worker.core.aggregates.kept import KeptAggregate, OrderSeen, done, seen, with_order
from scheduler_worker.core.aggregates.metadata import AggregateProblem
from scheduler_worker.core.aggregates.orders import changed, second_zone, still_has
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.outbox.outbox import OutboxTransaction
from scheduler_worker.requests.answering import rejected, rejection
from scheduler_worker.store import SchedulerStore, SchedulerTransaction

Order = TypeVar("Order", SetAggregate, DeleteAggregate)

_OVERTAKEN = "a later order about it came before this one was done: look at the aggregate, and send this order again if it still holds"


class AggregateOrders:
    """The handlers of orders about aggregates.

    `make_sure` returns when the picture has every provider, host and aggregate that was written before the call.
    `multipliers` are the metadata keys that set a weigher's multiplier. A deleted aggregate is remembered for the time
    `horizon`.
    """

    def __init__(
        self,
        store: SchedulerStore,
        picture: Picture,
        membership: AggregateMembership,
        clock: Callable[[], datetime],
        *,
        make_sure: Callable[[], Awaitable[None]],
        multipliers: Collection[str],
        horizon: timedelta,
    ) -> None:
        self._store = store
        self._picture = picture
        self._membership = membership
        self._clock = clock
        self._make_sure = make_sure
        self._multipliers = multipliers
        self._horizon = horizon

    def handlers(self) -> Handlers:
        return {
            SetAggregate: partial(self._one_by_one, self._on_set),
            DeleteAggregate: partial(self._one_by_one, self._on_delete),
        }

    async def _one_by_one(
        self,
        follow: Callable[[Received[Order]], Awaitable[list[Said]]],
        asks: Sequence[Received[Order]],
        _: OutboxTransaction,
    ) -> list[Said]:
        said: list[Said] = []
        for ask in asks:
            async with self._store.ordering_aggregates():
                await self._make_sure()
                said += await follow(ask)
        return said

    async def _on_set(self, ask: Received[SetAggregate]) -> list[Said]:
        outcome = await self._set(ask.message, ask.id)
        if isinstance(outcome, AggregateProblem):
            return _refused(ask, outcome)
        hosts = len(self._membership.hosts_in(ask.message.aggregate))
        answer = AggregateSet(aggregate=state_of(outcome, hosts))
        return [Answer(ask, answer), Tell(AggregateChanged(aggregate=outcome), ask)]

    async def _set(self, order: SetAggregate, id_: str) -> Aggregate | AggregateProblem:
        hosts = self._hosts_of(order)
        if isinstance(hosts, AggregateProblem):
            return hosts
        # Committed before placement is asked: SQLite has one writer at a time, and placement may be waiting for it.
        async with self._store.transaction() as transaction:
            rows = await self._lock_rows(transaction)
            if (known := _repeated(rows.get(order.aggregate), order, id_)) is not None:
                return known
            after = self._decide(order, hosts, rows)
            if isinstance(after, AggregateProblem):
                return after
            before = rows.get(order.aggregate)
            kept = with_order(after, before, id_, is_done=not (hosts.add or hosts.remove))
            if kept != before:
                await transaction.save_aggregate(kept)
        self._picture.put_aggregates((after,))
        return await self._move(after, hosts, id_) or after

    def _hosts_of(self, order: SetAggregate) -> "_Hosts | AggregateProblem":
        for host in order.add_hosts:
            if host in order.remove_hosts:
                return AggregateProblem("remove_hosts", host, "the order adds it, too")
        add = self._membership.find("add_hosts", order.add_hosts)
        remove = self._membership.find("remove_hosts", order.remove_hosts)
        if isinstance(add, AggregateProblem):
            return add
        return remove if isinstance(remove, AggregateProblem) else _Hosts(add, remove)

    def _decide(
        self, order: SetAggregate, hosts: "_Hosts", rows: Mapping[AggregateId, KeptAggregate]
    ) -> Aggregate | AggregateProblem:
        after = changed(order, rows.values(), self._multipliers, microseconds(self._clock()))
        if isinstance(after, AggregateProblem):
            return after
        leaving = {*hosts.remove.values()}
        members = {
            name: host
            for name, host in self._membership.hosts_in(order.aggregate).items()
            if host not in leaving
        }
        memberships = self._membership.of({**members, **hosts.add})
        living = [each.told for each in rows.values() if not each.deleted_us]
        return second_zone(after, living, memberships, hosts.add.keys()) or after

    async def _move(self, aggregate: Aggregate, hosts: "_Hosts", id_: str) -> AggregateProblem | None:
        """Add and remove the order's hosts, and mark the order as done. Returns the problem, if there is one."""
        add, remove = hosts
        if not (add or remove):
            return None

        async def check(added: Collection[str]) -> AggregateProblem | None:
            members = self._membership.of({name: add[name] for name in added})
            return second_zone(aggregate, await self._store.aggregates(), members, added)

        problem = await self._membership.change(aggregate.id, add, remove, check)
        async with self._store.transaction() as transaction:
            rows = await self._lock_rows(transaction)
            await transaction.save_aggregate(done(rows[aggregate.id], id_))
        return problem

    async def _on_delete(self, ask: Received[DeleteAggregate]) -> list[Said]:
        aggregate = ask.message.aggregate
        hosts = [*self._membership.hosts_in(aggregate)]
        async with self._store.transaction() as transaction:
            known = (await self._lock_rows(transaction)).get(aggregate)
            before = seen(known, ask.id)
            if (
                known is None
                or (known.deleted_us and before is not OrderSeen.LAST)
                or before is OrderSeen.PAST
            ):
                return [
                    Answer(ask, AggregateDeleted(aggregate=aggregate, was_there=before is OrderSeen.PAST))
                ]
            if hosts and not known.deleted_us:
                return _refused(ask, AggregateProblem("aggregate", str(aggregate), still_has(hosts)))
            now_us = microseconds(self._clock())
            gone = structs.replace(known.told, sequence=max(now_us, known.sequence + 1))
            await transaction.save_aggregate(
                with_order(gone, known, ask.id, is_done=True, deleted_us=known.deleted_us or now_us)
            )
        self._picture.remove_aggregate(gone)
        return [
            Answer(ask, AggregateDeleted(aggregate=aggregate, was_there=True)),
            Tell(AggregateChanged(aggregate=gone, deleted=True), ask),
        ]

    async def _lock_rows(self, transaction: SchedulerTransaction) -> dict[AggregateId, KeptAggregate]:
        """Lock the rows of all aggregates, and delete those of aggregates that were deleted longer ago than the
        horizon. Returns the others.
        """
        rows = {each.id: each for each in await transaction.lock_aggregates()}
        forgotten_us = microseconds(self._clock() - self._horizon)
        for kept in [each for each in rows.values() if 0 < each.deleted_us < forgotten_us]:
            await transaction.forget_aggregate(kept.id)
            del rows[kept.id]
        return rows


class _Hosts(NamedTuple):
    """The hosts that an order adds to an aggregate and removes from it, by the words with which the order names them."""

    add: Mapping[str, ProviderId]
    remove: Mapping[str, ProviderId]


def _repeated(
    kept: KeptAggregate | None, order: SetAggregate, id_: str
) -> Aggregate | AggregateProblem | None:
    """The answer to an order that comes again, although a newer order about the same aggregate came after it.

    To follow it again would undo the newer order. Returns None if the order is new, or is the last one: that may be
    followed again.
    """
    before = seen(kept, id_)
    if before is OrderSeen.PAST and kept is not None and not kept.deleted_us:
        return kept.told
    if before in (OrderSeen.PAST, OrderSeen.OVERTAKEN):
        return AggregateProblem("aggregate", str(order.aggregate), _OVERTAKEN)
    return None


def _refused(ask: Received[Message], problem: AggregateProblem) -> list[Said]:
    return [*rejected(ask, rejection(*problem))]
