"""The scheduler's queues: which message goes to which handler.

queue                on the broker of   handlers
scheduler.requests   the API level      `request_handlers`
scheduler.events     the API level      `event_handlers`
scheduler.events     a cell             `cell_broker_handlers`
scheduler.questions  the API level      `question_handlers`: they read, and get no transaction.

Every other handler gets an `OutboxTransaction`: it notes the rows whose messages must reach a broker (outbox.py).
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from datetime import datetime
from difflib import get_close_matches

from msgspec import structs

from bus.messages.build import BuildRejected
from bus.messages.hosts import (
    AskHosts,
    HostChanged,
    HostCleaned,
    HostSet,
    HostsFound,
    HostsReported,
    SetHost,
    in_messages,
)
from bus.messages.stored_names import AskApplications, SetApplication
from bus.topology import CELL0
from bus.unreadable import Unreadable
from bus.workers.handling import Answer, Handlers, ReadOnly, Received, Said, Tell, answering
from engine.hosts import HostFacts, HostState, cell_and_name, names_clash
from engine.inventories import ProviderId
from engine.picture.picture import Picture
from scheduler_worker.aggregates import AggregateMembership, AggregateOrders, aggregate_questions
from scheduler_worker.applications import Applications
from scheduler_worker.cell_questions import cell_questions
from scheduler_worker.core.hosts import (
    HostLoad,
    cleaned,
    is_news,
    problem_of,
    reported,
    why_unsure,
    with_mode,
    without_setting,
)
from scheduler_worker.hosts import HostRegistry
from scheduler_worker.outbox import OutboxTransaction
from scheduler_worker.questions import (
    history_questions,
    instance_questions,
    on_unreadable_orders,
    on_unreadable_questions,
)
from scheduler_worker.registry import CellRegistry
from scheduler_worker.requests.adopting import InstanceAdopter
from scheduler_worker.requests.building import Builder
from scheduler_worker.requests.cell_events import AlternatesFinder, ApiLevelRepeater, cell_event_handlers
from scheduler_worker.requests.groups import group_order_handlers, group_questions
from scheduler_worker.requests.instance_orders import (
    RebuildImages,
    instance_order_handlers,
    move_end_handlers,
)
from scheduler_worker.requests.moving import Mover
from scheduler_worker.requests.stored_names import stored_name_orders, stored_name_questions
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store import HostQuery, SchedulerStore

log = logging.getLogger(__name__)

Clock = Callable[[], datetime]


def request_handlers(
    builder: Builder,
    registry: HostRegistry,
    applications: Applications,
    clock: Clock,
    settings: SchedulerSettings,
    *,
    store: SchedulerStore,
    picture: Picture,
    aggregates: AggregateOrders,
    mover: Mover,
    adopter: InstanceAdopter,
    know_hosts: Callable[[], Awaitable[None]],
) -> Handlers:
    """Handlers of orders that clients and operators send."""
    return {
        **builder.handlers(),
        **instance_order_handlers(
            picture,
            clock,
            know_hosts,
            RebuildImages(store, picture, builder.reader),
            rebuild_timeout_s=settings.node_request_timeout_s,
        ),
        **mover.handlers(),
        **adopter.handlers(),
        **move_end_handlers(picture, clock, know_hosts),
        **host_order_handlers(registry, clock),
        **group_order_handlers(clock),
        **stored_name_orders(builder.reader),
        SetApplication: applications.on_set,
        **aggregates.handlers(),
        Unreadable: ReadOnly(on_unreadable_orders),
    }


def event_handlers(
    registry: HostRegistry,
    applications: Applications,
    clock: Clock,
    cells_apart: Collection[str],
    more_alternates: AlternatesFinder,
) -> Handlers:
    """Handlers of events on the API level's broker. Events wait there in their queue while no scheduler runs.

    Two kinds of events are skipped. The cells in `cells_apart` have brokers of their own, and their events are read
    there. Events of cell0 are published by schedulers, which wrote them into the rows before.
    """
    return {
        **cell_event_handlers(clock, skipped={CELL0, *cells_apart}, repeater=applications),
        **more_alternates.handlers({CELL0, *cells_apart}),
        **host_report_handlers(registry, clock),
    }


def cell_broker_handlers(registry: HostRegistry, clock: Clock, more_alternates: AlternatesFinder) -> Handlers:
    """Handlers of events on a cell's own broker. Events wait there while no scheduler runs, since a cell never connects
    to the broker of the API level.
    """
    return {
        **cell_event_handlers(clock, skipped={CELL0}, repeater=ApiLevelRepeater()),
        **more_alternates.handlers({CELL0}),
        **host_report_handlers(registry, clock),
    }


def question_handlers(
    store: SchedulerStore,
    registry: HostRegistry,
    applications: Applications,
    membership: AggregateMembership,
    others: Handlers,
    *,
    cells: CellRegistry,
    picture: Picture,
    catch_up: Callable[[], Awaitable[None]],
) -> Handlers:
    return {
        **instance_questions(store, cells),
        **history_questions(store),
        **cell_questions(store, cells, registry),
        **host_questions(store, registry),
        **group_questions(store, picture, catch_up),
        **stored_name_questions(store),
        AskApplications: ReadOnly(applications.on_ask),
        **aggregate_questions(store, membership),
        **others,
        Unreadable: ReadOnly(on_unreadable_questions),
    }


# Handlers of messages about hosts: a cell's reports, an operator's order, a question.


# How many near names a refusal suggests.
SUGGESTED_MAX = 3


class _Rows:
    """The rows of hosts while a batch of reports changes them. A row that is `gone` is deleted."""

    def __init__(self, rows: Iterable[HostState]) -> None:
        self.known = {host.id: host for host in rows}
        self.changed: dict[ProviderId, HostState] = {}
        self.gone: set[ProviderId] = set()

    def take(
        self,
        ask: Received[HostsReported],
        facts: HostFacts,
        now: datetime,
        *,
        failed_builds_max: int,
        placed_in: Callable[[ProviderId], str],
    ) -> None:
        before = self.known.get(facts.id)
        if before is None and facts.is_gone:
            return
        host = reported(
            before,
            facts,
            ask.message,
            now,
            speaks_for=ask.cell,
            failed_builds_max=failed_builds_max,
            placed_in=placed_in,
        )
        if host is None:
            log.warning("cell %s reports host %s of another cell", ask.message.cell, facts.name)
        elif facts.is_gone and host is not before:
            after = without_setting(host, now)
            if after is None:
                self._remove(host.id)
            else:
                self._put(after)
        elif is_news(before, host):
            self._put(host)

    def _put(self, host: HostState) -> None:
        """Note the host's row, which differs from the known one."""
        self.known[host.id] = self.changed[host.id] = structs.replace(host, sequence=host.sequence + 1)
        self.gone.discard(host.id)

    def _remove(self, host: ProviderId) -> None:
        del self.known[host]
        self.changed.pop(host, None)
        self.gone.add(host)


def _loads_alone(asks: Sequence[Received[HostsReported]], registry: HostRegistry) -> list[HostLoad]:
    """The last load of each reported host. None of them if a report may change more than loads: then rows are locked, all in
    one order.
    """
    loads: dict[int, HostLoad] = {}
    for ask in asks:
        for facts in ask.message.hosts:
            if (load := registry.load_of(facts, ask.message)) is None:
                return []
            before = loads.get(facts.id.int)
            if before is None or before.number <= load.number:
                loads[facts.id.int] = load
    return list(loads.values())


def host_report_handlers(registry: HostRegistry, clock: Clock) -> Handlers:
    async def on_hosts_reported(
        asks: Sequence[Received[HostsReported]], transaction: OutboxTransaction
    ) -> list[Said]:
        asks = [ask for ask in asks if ask.message.cell != CELL0]
        store = await transaction.begun()
        said: list[Said] = []
        loads = _loads_alone(asks, registry)
        if loads and await store.save_loads(loads) == len(loads):
            transaction.when_committed(lambda: registry.learn_loads(loads))
        else:
            said = await write_rows(asks, transaction)
        transaction.when_committed(lambda: _hear_beats(asks, registry))
        return said

    async def write_rows(
        asks: Sequence[Received[HostsReported]], transaction: OutboxTransaction
    ) -> list[Said]:
        store = await transaction.begun()
        ids = sorted({host.id for ask in asks for host in ask.message.hosts}, key=lambda id_: id_.int)
        rows = _Rows(await store.lock_hosts(ids, ()))
        said: list[Said] = []
        now = clock()
        for ask in asks:
            for facts in ask.message.hosts:
                before = rows.known.get(facts.id)
                rows.take(
                    ask,
                    facts,
                    now,
                    failed_builds_max=registry.failed_builds_max,
                    placed_in=registry.placed_in,
                )
                host = rows.known.get(facts.id)
                if before is not None and host is not None and host.setting != before.setting:
                    said.append(Tell(HostChanged(cell=host.cell, host=host), ask))
        changed, gone = list(rows.changed.values()), sorted(rows.gone)
        await store.save_hosts(changed, now)
        if gone:
            await store.forget_hosts(gone)
        transaction.when_committed(lambda: registry.learn(changed))
        transaction.when_committed(lambda: registry.forget(gone))
        return said

    return {HostsReported: on_hosts_reported, **_cleaned_handlers(registry, clock)}


def _hear_beats(asks: Sequence[Received[HostsReported]], registry: HostRegistry) -> None:
    for ask in asks:
        alive = [host.id for host in ask.message.hosts if not host.is_gone]
        registry.hear_beats(ask.message.cell, alive, ask.cell)


def _cleaned_handlers(registry: HostRegistry, clock: Clock) -> Handlers:
    async def on_hosts_cleaned(
        asks: Sequence[Received[HostCleaned]], transaction: OutboxTransaction
    ) -> list[Said]:
        store = await transaction.begun()
        ids = sorted({ask.message.host for ask in asks})
        written = {host.id: host for host in await store.lock_hosts(ids, ())}
        changed: dict[ProviderId, HostState] = {}
        said: list[Said] = []
        for ask in asks:
            before = written.get(ask.message.host)
            if before is None or before.cell != ask.message.cell or ask.cell not in (None, before.cell):
                continue
            host = cleaned(before, ask.message.number)
            if host is not before:
                host = changed[host.id] = written[host.id] = structs.replace(host, sequence=host.sequence + 1)
                said.append(Tell(HostChanged(cell=host.cell, host=host), ask))
        await store.save_hosts(list(changed.values()), clock())
        transaction.when_committed(lambda: registry.learn(changed.values()))
        return said

    return {HostCleaned: on_hosts_cleaned}


def host_order_handlers(registry: HostRegistry, clock: Clock) -> Handlers:
    async def on_set_hosts(asks: Sequence[Received[SetHost]], transaction: OutboxTransaction) -> list[Said]:
        store = await transaction.begun()
        names = {name for ask in asks for name in (ask.message.host, cell_and_name(ask.message.host)[1])}
        found = await store.lock_hosts((), sorted(names))
        hosts = {host.id: host for host in found}
        answers: list[Said] = []
        for ask in asks:
            order = ask.message
            named = hosts_called(order.host, hosts.values())
            if not named:
                answers.append(Answer(ask, _unknown(order.host, registry)))
                continue
            if len(cells := sorted({host.cell for host in named})) > 1:
                answers.append(Answer(ask, _rejected("host", order.host, names_clash(order.host, cells))))
                continue
            if problem := next(filter(None, (problem_of(host, order) for host in named)), ""):
                answers.append(Answer(ask, _rejected("mode", order.mode, problem)))
                continue
            unsure = (why_unsure(host, order, registry.unheard(host.id)) for host in named)
            if doubt := next(filter(None, unsure), ""):
                answers.append(Answer(ask, _rejected("sure", "false", doubt)))
                continue
            for before in named:
                host = with_mode(before, order.mode, order.reason, ask.by, clock())
                if host is not before:
                    host = structs.replace(host, sequence=host.sequence + 1)
                hosts[host.id] = host
                # Said again if the order is repeated: the event may be lost.
                answers.append(Tell(HostChanged(cell=host.cell, host=registry.as_heard(host)), ask))
            answers.append(Answer(ask, HostSet(host=registry.as_heard(hosts[named[0].id]))))
        changed = [hosts[host.id] for host in found if hosts[host.id] is not host]
        await store.save_hosts(changed, clock())
        transaction.when_committed(lambda: registry.learn(changed))
        return answers

    return {SetHost: on_set_hosts}


def host_questions(store: SchedulerStore, registry: HostRegistry) -> Handlers:
    async def hosts(question: AskHosts) -> HostsFound:
        limit = question.limit
        # One more than asked tells whether there is another page.
        if question.name and (cell := cell_and_name(question.name)[0]):
            there = await store.hosts(HostQuery(name=cell_and_name(question.name)[1]))
            if there := [host for host in there if host.cell == cell]:
                return HostsFound(hosts=page_of(there))
        wanted = HostQuery(name=question.name or None, after=question.after, limit=limit + 1)
        found = await store.hosts(wanted)
        fit = len(page_of(found[:limit]))
        if fit == len(found):
            return HostsFound(hosts=page_of(found))
        # Hosts of one name stay on one page: the next page begins behind the name.
        behind = found[fit].name
        page = [host for host in found[:fit] if host.name != behind]
        page = page or list(await store.hosts(HostQuery(name=behind)))
        return HostsFound(hosts=page_of(page), next=page[-1].name)

    def page_of(rows: Sequence[HostState]) -> tuple[HostState, ...]:
        return in_messages([registry.as_heard(host) for host in rows])[0] if rows else ()

    return {AskHosts: answering(hosts)}


def hosts_called(name: str, hosts: Collection[HostState]) -> list[HostState]:
    """The hosts with this name, in the cell before it if there is one (`c1/h1`)."""
    cell, plain = cell_and_name(name)
    there = [host for host in hosts if host.cell == cell and host.name == plain]
    return there or [host for host in hosts if host.name == name]


def _unknown(name: str, registry: HostRegistry) -> BuildRejected:
    near = get_close_matches(name, registry.names(), n=SUGGESTED_MAX)
    hint = f"did you mean {' or '.join(near)}?" if near else "`moor host list` shows all hosts"
    return _rejected("host", name, f"there is no host of this name; {hint}")


def _rejected(field: str, value: str, reason: str) -> BuildRejected:
    return BuildRejected(request_id=None, field=field, value=value, reason=reason)
