"""Aggregates: orders and questions about them, and how each scheduler learns of their metadata.

The rules are in core/aggregates/.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple, TypeVar

from msgspec import structs

from bus.message import Message
from bus.messages.books import (
    GenerationMoved,
    ProviderWritten,
    SetAggregates,
    UnknownProvider,
    WriteAnswered,
)
from bus.messages.hosts import (
    AggregateChanged,
    AggregateDeleted,
    AggregateSet,
    AggregatesFound,
    AggregateState,
    AskAggregates,
    DeleteAggregate,
    SetAggregate,
)
from bus.workers.handlers import Answer, Handlers, ReadOnly, Received, Said, Tell
from engine.hosts import Aggregate, AggregateProblem, cell_and_name, names_clash
from engine.inventories import AggregateId, ProviderId
from engine.picture.picture import Picture
from engine.refusals import NotAllowed
from kit.clock import microseconds
from kit.errors import Transient, WrongAnswer
from scheduler_worker.core.aggregates import (
    KeptAggregate,
    OrderSeen,
    changed,
    done,
    second_zone,
    seen,
    still_has,
    with_order,
)
from scheduler_worker.host_orders import host_id_in
from scheduler_worker.outbox import OutboxTransaction
from scheduler_worker.requests.reading import AskAll, rejected, rejection
from scheduler_worker.store_sql import SchedulerStore, SchedulerTransaction

# Adds hosts to an aggregate and removes them. Placement stores which hosts these are: each provider names its
# aggregates.
#
# A write replaces all aggregates of a provider. So the write names the provider's generation from the picture: if
# somebody else has changed the provider meanwhile, placement refuses the write, and it is made anew.


# Claims move generations, too: on a busy host some tries fail.
TRIES_MAX = 20
AGGREGATES_PER_PROVIDER_MAX = 400


class AggregateMembership:
    def __init__(self, picture: Picture, ask_all: AskAll, catch_up: Callable[[], Awaitable[None]]) -> None:
        self._picture = picture
        self._ask_all = ask_all
        self.catch_up = catch_up

    def find(self, field: str, named: Iterable[str]) -> dict[str, ProviderId] | AggregateProblem:
        """The hosts with these names or ids, by the words with which the order names them; or the first problem with
        one of them.
        """
        found: dict[str, ProviderId] = {}
        for each in named:
            hosts = self._hosts(each)
            if len(hosts) != 1:
                cells = self._picture.cells_named(each)
                reason = (
                    f"{len(hosts)} hosts have this name: give the id"
                    if len(hosts) > 1 and len(cells) <= 1
                    else names_clash(each, cells)
                    if hosts
                    else self._picture.no_host(each)
                )
                return AggregateProblem(field, each, reason)
            if not self._picture.has_provider(hosts[0]):
                return AggregateProblem(field, each, "placement has no provider of it yet")
            found[each] = hosts[0]
        return found

    def _hosts(self, named: str) -> list[ProviderId]:
        columns = self._picture.columns
        plain = cell_and_name(named)[1]
        rows = [
            row for row in self._picture.rows_named(named.lower()) if columns.names[row] in (named, plain)
        ]
        if rows:
            return [columns.ids[row] for row in rows]
        host = host_id_in(named)
        return [] if host is None or self._picture.row_of(host) < 0 else [host]

    def of(self, hosts: Mapping[str, ProviderId]) -> dict[str, tuple[AggregateId, ...]]:
        """The aggregates that each of these hosts is in."""
        return {name: self._picture.aggregates_of(host) for name, host in hosts.items()}

    def hosts_in(self, aggregate: AggregateId) -> dict[str, ProviderId]:
        columns = self._picture.columns
        return {columns.names[row]: columns.ids[row] for row in self._picture.members_of(aggregate)}

    async def change(
        self,
        aggregate: AggregateId,
        add: Mapping[str, ProviderId],
        remove: Mapping[str, ProviderId],
        check: Callable[[Collection[str]], Awaitable[AggregateProblem | None]],
    ) -> AggregateProblem | None:
        """Add hosts to the aggregate, and remove others. Returns the problem that prevents this, or None.

        `check` returns a problem with adding the hosts that are not in the aggregate yet, or None. It is asked again
        before each write, since other writes may have changed its answer.
        """
        for _ in range(TRIES_MAX):
            writes = {
                **{
                    ("add_hosts", name): self._write(host, aggregate, adds=True) for name, host in add.items()
                },
                **{
                    ("remove_hosts", name): self._write(host, aggregate, adds=False)
                    for name, host in remove.items()
                },
            }
            due = {named: write for named, write in writes.items() if write is not None}
            if not due:
                return None
            if problem := await check([name for field, name in due if field == "add_hosts"]):
                return problem
            for (field, name), write in due.items():
                if len(write.aggregates) > AGGREGATES_PER_PROVIDER_MAX:
                    return AggregateProblem(
                        field, name, f"it is in {AGGREGATES_PER_PROVIDER_MAX} aggregates already"
                    )
            answers = await self._ask_all(list(due.values()))
            await self.catch_up()
            for (field, name), answer in zip(due, answers, strict=True):
                if reason := _why_refused(answer):
                    return AggregateProblem(field, name, reason)
        raise Transient(
            f"hosts of aggregate {aggregate} changed during each of {TRIES_MAX} tries to write them"
        )

    def _write(self, host: ProviderId, aggregate: AggregateId, *, adds: bool) -> SetAggregates | None:
        """The write that adds the host to the aggregate or removes it; None if nothing is to be written."""
        now = self._picture.aggregates_of(host)
        if (aggregate in now) is adds:
            return None
        after = (*now, aggregate) if adds else [each for each in now if each != aggregate]
        return SetAggregates(
            provider=host,
            generation=self._picture.trees.generation_of(host),
            aggregates=tuple(sorted(after)),
        )


def _why_refused(answer: Message) -> str:
    """Why placement refused to write a host's aggregates; empty if it has written them, or the write must be repeated."""
    if not isinstance(answer, WriteAnswered):
        raise WrongAnswer(f"placement answered a write of aggregates by {answer!r}")
    match answer.verdict:
        case ProviderWritten() | GenerationMoved():
            return ""
        case UnknownProvider():
            return "placement has no provider of it any more"
        case NotAllowed(field, reason):
            return f"placement does not allow it: {field}: {reason}"
        case _:
            raise WrongAnswer(f"placement answered a write of aggregates by {answer.verdict!r}")


# Handlers of questions about aggregates.


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


# Handlers of orders about aggregates.
#
# An order is checked against fresh data, then the aggregate's metadata is committed, then placement is told which hosts
# join or leave. Each step may be repeated, so an order that is delivered again after a crash completes.
#
# All schedulers together follow one order at a time. Otherwise two orders could each find that a host has one zone, and
# together give it two. Or an aggregate could get its metadata from one order and its hosts from the other.


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


# The rows of aggregates, read at start and now and then: an event about one may be lost.


async def read_aggregates(store: SchedulerStore, picture: Picture) -> None:
    """On return, the picture has the metadata of every aggregate as it was written before the call, or later."""
    known = picture.aggregates.all()
    rows = await store.aggregates()
    picture.put_aggregates(rows)
    there = {row.id for row in rows}
    for each in known:
        if each.id not in there:
            picture.remove_aggregate(each)
