"""The scheduler's queues: which message goes to which handler.

queue                on the broker of   handlers
scheduler.requests   the API level      `request_handlers`
scheduler.events     the API level      `event_handlers`
scheduler.events     a cell             `event_handlers`
scheduler.questions  the API level      `question_handlers`: they read, and get no transaction.

Every other handler gets an `OutboxTransaction`: it notes the rows whose messages must reach a broker (outbox.py).
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from datetime import datetime
from functools import partial

from msgspec import structs

from bus.messages.cloud import page_that_fits
from bus.messages.hosts import (
    AskHosts,
    HostChanged,
    HostCleaned,
    HostsFound,
    HostsReported,
)
from bus.messages.projects import AskApplications, SetApplication
from bus.topology import CELL0
from bus.unreadable import Unreadable
from bus.workers.handlers import Handlers, ReadOnly, Received, Said, Tell, answering
from bus.workers.set_aside import FailedRows
from engine.hosts import NODE, HostFacts, HostState, cell_and_name
from engine.inventories import ProviderId
from engine.picture.picture import Picture
from engine.places import is_within
from scheduler_worker.aggregates import AggregateMembership, AggregateOrders, aggregate_questions
from scheduler_worker.applications import Applications
from scheduler_worker.cells import CellRegistry, cell_questions
from scheduler_worker.core.hosts import (
    HostLoad,
    cleaned,
    is_news,
    reported,
    without_setting,
)
from scheduler_worker.groups import group_order_handlers, group_questions
from scheduler_worker.host_orders import HostOrders, host_id_in
from scheduler_worker.hosts import HostRegistry
from scheduler_worker.outbox import OutboxTransaction
from scheduler_worker.overview import use_of
from scheduler_worker.questions import (
    instance_questions,
    on_unreadable_orders,
    on_unreadable_questions,
)
from scheduler_worker.requests.adopting import InstanceAdopter
from scheduler_worker.requests.building import Builder
from scheduler_worker.requests.catalog import (
    catalog_orders,
    catalog_questions,
)
from scheduler_worker.requests.cell_events import AlternatesFinder, Repeater, cell_event_handlers
from scheduler_worker.requests.instance_orders import (
    RebuildImages,
    instance_order_handlers,
)
from scheduler_worker.requests.limits import ProjectLimits
from scheduler_worker.requests.moving import Mover
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store_sql import HostQuery, SchedulerStore

log = logging.getLogger(__name__)

Clock = Callable[[], datetime]


def request_handlers(
    builder: Builder,
    applications: Applications,
    clock: Clock,
    settings: SchedulerSettings,
    *,
    limits: ProjectLimits,
    store: SchedulerStore,
    picture: Picture,
    aggregates: AggregateOrders,
    mover: Mover,
    adopter: InstanceAdopter,
    host_orders: HostOrders,
    know_hosts: Callable[[], Awaitable[None]],
    failed: FailedRows,
) -> Handlers:
    """Handlers of orders that clients and operators send, and of rows at which schedulers failed."""
    of_all: Handlers = {
        **builder.handlers(),
        **instance_order_handlers(
            picture,
            clock,
            know_hosts,
            RebuildImages(store, picture, builder.reader),
            limits,
            rebuild_timeout_s=settings.node_request_timeout_s,
        ),
        **mover.handlers(),
        **adopter.handlers(),
        **host_orders.handlers(),
        **group_order_handlers(clock, settings.project_records_max),
        **catalog_orders(builder.reader),
        SetApplication: applications.on_set,
        **aggregates.handlers(),
        **failed.handlers,
        Unreadable: ReadOnly(on_unreadable_orders),
    }
    return applications.for_projects(of_all)


def event_handlers(
    registry: HostRegistry,
    clock: Clock,
    more_alternates: AlternatesFinder,
    *,
    cells_apart: Collection[str] = (),
    repeater: Repeater,
) -> Handlers:
    """Handlers of events on the API level's broker, or on a cell's own one. Events wait there in their queue while no scheduler
    runs: a cell never connects to the broker of the API level.

    Two kinds of events are skipped. The cells in `cells_apart` have brokers of their own, and their events are read
    there. Events of cell0 are published by schedulers, which wrote them into the rows before.
    """
    skipped = {CELL0, *cells_apart}
    return {
        **cell_event_handlers(clock, skipped=skipped, repeater=repeater),
        **more_alternates.handlers(skipped),
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
    of_all: Handlers = {
        **instance_questions(store, cells),
        **cell_questions(store, cells, registry),
        **host_questions(store, registry, cells, picture),
        **group_questions(store, picture, catch_up),
        **catalog_questions(store),
        AskApplications: ReadOnly(applications.on_ask),
        **aggregate_questions(store, membership),
        **others,
        Unreadable: ReadOnly(on_unreadable_questions),
    }
    return applications.for_projects(of_all)


# Handlers of messages about hosts: a cell's reports, an operator's order, a question.


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

    return {HostsReported: on_hosts_reported, HostCleaned: partial(_on_hosts_cleaned, registry, clock)}


def _hear_beats(asks: Sequence[Received[HostsReported]], registry: HostRegistry) -> None:
    for ask in asks:
        alive = [host.id for host in ask.message.hosts if not host.is_gone]
        registry.hear_beats(ask.message.cell, alive, ask.cell)


async def _on_hosts_cleaned(
    registry: HostRegistry,
    clock: Clock,
    asks: Sequence[Received[HostCleaned]],
    transaction: OutboxTransaction,
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


# So many hosts are looked at for one question with a condition: to read and to judge them takes some 20 ms.
HOSTS_READ_MAX = 1000


def host_questions(
    store: SchedulerStore, registry: HostRegistry, cells: CellRegistry, picture: Picture
) -> Handlers:
    async def hosts(question: AskHosts) -> HostsFound:
        chooses = bool(question.cell or question.mode or question.kind or question.place)
        chooses = chooses or question.up is not None
        rows_max = HOSTS_READ_MAX if chooses else question.limit
        cell, name = cell_and_name(question.name)
        if cell and (there := await store.hosts(HostQuery(name=name))):
            there = [host for host in there if host.cell == cell]
            if there:
                return found(there, question)
        if question.up is False and not question.name:
            # Few of many are down, and this process knows which: keepers ask again and again.
            down = registry.may_be_down(question.after, HOSTS_READ_MAX)
            some = sorted(await store.hosts(HostQuery(ids=down)), key=lambda row: (row.name, row.id))
            return found(some, question, end=some[-1].name if len(down) >= HOSTS_READ_MAX and some else "")
        # One more than may be read tells whether there are others.
        query = HostQuery(name=question.name or None, after=question.after, limit=rows_max + 1)
        read = list(await store.hosts(query))
        if not read and (id_ := host_id_in(question.name)) is not None:
            read = list(await store.hosts(HostQuery(ids=(id_,))))
        if len(read) <= rows_max:
            return found(read, question)
        # Hosts of one name stay on one page: the next page begins behind the name.
        behind = read[-1].name
        whole = [host for host in read if host.name != behind]
        whole = whole or list(await store.hosts(HostQuery(name=behind)))
        return found(whole, question, end=whole[-1].name)

    def found(rows: Sequence[HostState], question: AskHosts, end: str = "") -> HostsFound:
        """The page of these rows; the next one begins behind it, or behind the name `end` if all of them are on it."""
        heard = [host for row in rows if is_asked_for(host := registry.as_heard(row), question)]
        heard = [
            structs.replace(host, silent_in_cell=is_silent_in_cell(host))
            if host.silent_since is not None
            else host
            for host in heard
        ]
        told = [(host, use_of(picture, host.id)) for host in heard]
        fit = len(page_that_fits(told[: question.limit])) if told else 0
        if fit < len(told):
            behind = heard[fit].name
            page = [each for each in told[:fit] if each[0].name != behind]
            told = page or [each for each in told if each[0].name == behind]
            told, end = list(page_that_fits(told)), told[-1][0].name
        return HostsFound(
            hosts=tuple([host for host, _ in told]), next=end, uses=tuple([use for _, use in told])
        )

    def is_silent_in_cell(host: HostState) -> bool:
        assert host.silent_since is not None, "it has fallen silent"
        return cells.does_not_hear(host.cell, host.id, host.silent_since + registry.down_after)

    return {AskHosts: answering(hosts)}


def is_asked_for(host: HostState, question: AskHosts) -> bool:
    if question.kind and (question.kind == "node") is not (host.kind == NODE):
        return False
    if question.up is not None and host.up is not question.up:
        return False
    if not is_within(host.place, question.place):
        return False
    return question.cell in ("", host.cell) and question.mode in ("", host.setting.mode)
