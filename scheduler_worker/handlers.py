"""What schedulers are told and asked beside builds: deletes, the cells' words, hosts, questions.

Load, decide, save, say; the rules live in instances.py and hosts.py. A build request goes its own way (building.py).
"""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime

from msgspec import structs

from bus.handling import Answer, Bury, Handler, Handlers, Reading, Received, Said, Tell
from bus.message import type_of
from bus.messages.build import (
    AskInstances,
    BuildInstance,
    BuildRejected,
    DeleteInstance,
    InstanceActive,
    InstanceDeleted,
    InstanceFailed,
    InstanceId,
    InstancesFound,
    RequestId,
)
from bus.messages.hosts import AskHosts, HostSet, HostsFound, HostsReported, HostState, SetHost
from bus.topology import CELL0
from bus.unreadable import Unreadable
from scheduler_worker.core.instances.lifecycle import (
    NO_REQUEST,
    CellsWord,
    InstanceRow,
    deleted,
    deleted_unseen,
    heard,
    is_of,
    is_whole,
)
from scheduler_worker.hosts.registry import HostRegistry, is_news, reported
from scheduler_worker.outbox.lazy_transaction import LateTransaction
from scheduler_worker.requests.answering import rejected
from scheduler_worker.requests.building import Builder
from scheduler_worker.store import InstanceQuery, SchedulerStore

log = logging.getLogger(__name__)

Clock = Callable[[], datetime]
# Keys of the API that have a route already, and no message yet.
PLANNED = ("move.request",)


def on_requests(builder: Builder, registry: HostRegistry, clock: Clock) -> Handlers:
    """The queue of what clients and operators want done."""

    async def on_deletes(asks: Sequence[Received[DeleteInstance]], late: LateTransaction) -> list[Said]:
        """Answered by what is known of the instance now; by nothing where its request was never seen: whatever comes
        later finds it deleted.
        """
        transaction = await late.begun()
        wanted = sorted({ask.message.instance for ask in asks}, key=lambda id_: id_.int)
        rows = dict(await transaction.lock(wanted))
        changed: dict[InstanceId, InstanceRow] = {}
        for ask in asks:
            id_, project = ask.message.instance, ask.message.project
            row = rows.get(id_)
            if row is None:
                now: InstanceRow | None = deleted_unseen(id_, clock(), project)
            else:
                now = deleted(row, clock()) if is_of(row, project) else None
            if now is not None:
                changed[id_] = rows[id_] = now
        await transaction.save(list(changed.values()))
        names = await late.note(rows[id_] for id_ in wanted)
        causes = {ask.message.instance: ask for ask in asks}
        said: list[Said] = [
            Tell(message, causes[id_], kept)
            for id_ in wanted
            for kept, message in names.kept_messages(rows[id_])
        ]
        for ask in asks:
            row = rows[ask.message.instance]
            is_hidden = row.told.request_id == NO_REQUEST or not is_of(row, ask.message.project)
            told = () if is_hidden else (row.told,)
            said.append(Answer(ask, InstancesFound(instances=told)))
        return said

    async def on_set_hosts(asks: Sequence[Received[SetHost]], late: LateTransaction) -> list[Said]:
        transaction = await late.begun()
        found = await transaction.lock_hosts((), sorted({ask.message.host for ask in asks}))
        hosts = {host.id: host for host in found}
        answers: list[Said] = []
        for ask in asks:
            order = ask.message
            named = [host for host in hosts.values() if host.name == order.host]
            for host in named:
                hosts[host.id] = structs.replace(
                    host,
                    enabled=order.enabled,
                    disabled_reason="" if order.enabled else order.reason,
                    sequence=host.sequence + 1,
                )
            first = registry.as_heard(hosts[named[0].id]) if named else None
            answers.append(Answer(ask, HostSet(host=first)))
        await transaction.save_hosts(list(hosts.values()), clock())
        late.learn(lambda: registry.learn(hosts.values()))
        return answers

    return {
        BuildInstance: builder.on_builds,
        DeleteInstance: on_deletes,
        SetHost: on_set_hosts,
        Unreadable: Reading(on_unreadable),
    }


async def on_unreadable(asks: Sequence[Received[Unreadable]]) -> list[Said]:
    """A build request that cannot be read is rejected as one that makes no sense. Anything else is kept for a person to
    look at, and its sender is answered if it waits. A message without a type may be a build request.
    """
    said: list[Said] = []
    for ask in asks:
        wrong = ask.message
        why = _why_not(wrong)
        if wrong.kind in (type_of(BuildInstance), ""):
            said += rejected(ask, why)
        else:
            said.append(Answer(ask, why))
        if wrong.kind != type_of(BuildInstance):
            said.append(Bury(ask, why.reason))
    return said


async def on_unreadable_questions(asks: Sequence[Received[Unreadable]]) -> list[Said]:
    """Whoever waits for an answer is told why there is none."""
    said: list[Said] = []
    for ask in asks:
        why = _why_not(ask.message)
        said += [Answer(ask, why), Bury(ask, why.reason)]
    return said


def _why_not(wrong: Unreadable) -> BuildRejected:
    is_planned = wrong.field == "type" and wrong.kind in PLANNED
    return BuildRejected(
        request_id=None if wrong.request_id is None else RequestId(wrong.request_id),
        field=wrong.field or "message",
        value=wrong.value,
        reason=f"{wrong.kind} is not supported yet: {wrong.reason}" if is_planned else wrong.reason,
        project=wrong.project,
    )


def on_events(registry: HostRegistry, clock: Clock) -> Handlers:
    """The queue of what schedulers must not miss, however long they are away."""
    on_words = _cells_words(clock)
    return {
        InstanceActive: on_words,
        InstanceFailed: on_words,
        InstanceDeleted: on_words,
        HostsReported: _hosts_reported(registry, clock),
    }


def _cells_words(clock: Clock) -> Handler:
    async def on_cells_words(asks: Sequence[Received[CellsWord]], late: LateTransaction) -> list[Said]:
        # What is said of cell0 is a scheduler's own word, and stands in the rows already.
        words = [ask.message for ask in asks if ask.message.cell != CELL0]
        if not words:
            return []
        transaction = await late.begun()
        # Nearly all of them say that who was placed is active now, for which no row need be read.
        whole = [word for word in words if is_whole(word)]
        if await transaction.hear(whole) == len(whole):
            words = [word for word in words if not is_whole(word)]
        if not words:
            return []
        wanted = sorted({word.instance.id for word in words}, key=lambda id_: id_.int)
        rows = dict(await transaction.lock(wanted))
        changed: dict[InstanceId, InstanceRow] = {}
        for word in words:
            row = rows.get(word.instance.id)
            now = None if row is None else heard(row, word, clock())
            if now is not None:
                changed[now.id] = rows[now.id] = now
        await transaction.save(list(changed.values()))
        return []

    return on_cells_words


def _hosts_reported(registry: HostRegistry, clock: Clock) -> Handler:
    async def on_hosts_reported(asks: Sequence[Received[HostsReported]], late: LateTransaction) -> list[Said]:
        asks = [ask for ask in asks if ask.message.cell != CELL0]
        transaction = await late.begun()
        ids = sorted({host.id for ask in asks for host in ask.message.hosts}, key=lambda id_: id_.int)
        written = {host.id: host for host in await transaction.lock_hosts(ids, ())}
        changed: dict[object, HostState] = {}
        for ask in asks:
            for facts in ask.message.hosts:
                before = written.get(facts.id)
                host = reported(before, facts, ask.message, clock(), speaks_for=ask.cell)
                if host is None:
                    log.warning("cell %s reports host %s of another cell", ask.message.cell, facts.name)
                elif is_news(before, host):
                    host = structs.replace(host, sequence=host.sequence + 1)
                    changed[host.id] = written[host.id] = host
        await transaction.save_hosts(list(changed.values()), clock())

        def learn() -> None:
            registry.learn(changed.values())
            for ask in asks:
                registry.hear_beats(ask.message.cell, [host.id for host in ask.message.hosts], ask.cell)

        late.learn(learn)
        return []

    return on_hosts_reported


def on_questions(store: SchedulerStore, registry: HostRegistry) -> Handlers:
    """The queue of what people ask."""

    async def on_ask_instances(asks: Sequence[Received[AskInstances]]) -> list[Said]:
        return [Answer(ask, await _instances(store, ask.message)) for ask in asks]

    async def on_ask_hosts(asks: Sequence[Received[AskHosts]]) -> list[Said]:
        said: list[Said] = []
        for ask in asks:
            limit = ask.message.limit
            # One more than asked tells whether there is another page.
            found = await store.hosts(ask.message.name, ask.message.after, limit + 1)
            page = tuple(registry.as_heard(host) for host in found[:limit])
            said.append(Answer(ask, HostsFound(hosts=page, next=page[-1].name if len(found) > limit else "")))
        return said

    return {
        AskInstances: Reading(on_ask_instances),
        AskHosts: Reading(on_ask_hosts),
        Unreadable: Reading(on_unreadable_questions),
    }


async def _instances(store: SchedulerStore, question: AskInstances) -> InstancesFound:
    found = await store.instances(
        InstanceQuery(
            instances=question.instances,
            request_id=question.request_id,
            after=question.after,
            state=question.state,
            project=question.project,
            limit=question.limit + 1,
        )
    )
    page = tuple(row.told for row in found[: question.limit])
    return InstancesFound(instances=page, next=page[-1].id if len(found) > question.limit else None)
