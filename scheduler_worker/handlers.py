"""The scheduler's queues: which message goes to which handler.

queue                on the broker of   handlers
scheduler.requests   the API level      `request_handlers`
scheduler.events     the API level      `event_handlers`
scheduler.events     a cell             `cell_broker_handlers`
scheduler.questions  the API level      `question_handlers`: they read, and get no transaction.

Every other handler gets an `OutboxTransaction`: it notes the rows whose messages must reach a broker (outbox.py).
"""

from collections.abc import Awaitable, Callable, Collection
from datetime import datetime

from bus.messages.stored_names import AskApplications, SetApplication
from bus.topology import CELL0
from bus.unreadable import Unreadable
from bus.workers.handling import Handlers, ReadOnly
from engine.picture.picture import Picture
from scheduler_worker.aggregates import AggregateMembership, AggregateOrders, aggregate_questions
from scheduler_worker.applications import Applications
from scheduler_worker.cell_questions import cell_questions
from scheduler_worker.host_handlers import host_order_handlers, host_questions, host_report_handlers
from scheduler_worker.hosts import HostRegistry
from scheduler_worker.questions import (
    history_questions,
    instance_questions,
    on_unreadable_orders,
    on_unreadable_questions,
)
from scheduler_worker.registry import CellRegistry
from scheduler_worker.requests.adopting import InstanceAdopter
from scheduler_worker.requests.building import Builder
from scheduler_worker.requests.cell_events import ApiLevelRepeater, cell_event_handlers
from scheduler_worker.requests.groups import group_order_handlers, group_questions
from scheduler_worker.requests.instance_orders import (
    RebuildImages,
    instance_order_handlers,
    move_end_handlers,
)
from scheduler_worker.requests.more_alternates import AlternatesFinder
from scheduler_worker.requests.moving import Mover
from scheduler_worker.requests.stored_names import stored_name_orders, stored_name_questions
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store import SchedulerStore

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
