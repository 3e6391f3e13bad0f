"""The parts of a scheduler worker, put together. `__main__.py` runs them alone, `moor up` beside other workers.

Each stage is made of the stages before it:

    given      connections, the database, settings, a clock, the picture.
    knowledge  of hosts, cells and placement's data, and the parts that keep it up to date.
    deciders   about requests: builders, movers, finders of alternates.
    sending    the outbox: it sends the messages of rows.
    queues     the worker loops, which answer.
    staged     runs some parts first, and the others when the first snapshot is whole.
"""

import random
import secrets
from collections.abc import Callable, Mapping
from datetime import datetime

from bus.clock import now
from bus.configuration.live import SettingsFollower
from bus.parts import set_beside
from bus.process import Part
from bus.workers.station import Station, by_station
from scheduler_worker.application_queues import ApplicationQueues
from scheduler_worker.cells.down_watch import CellWatch
from scheduler_worker.cloud_counts import API, CloudCounter
from scheduler_worker.core.choosing.plugins import Plugins
from scheduler_worker.core.choosing.standard import chosen_plugins
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.forgetting import Forgetting
from scheduler_worker.hosts.telling import ModeTeller
from scheduler_worker.requests.deadlines import Deadlines
from scheduler_worker.requests.waiting_moves import WaitingMoves
from scheduler_worker.requests.waking import Waker
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store import SchedulerStore
from scheduler_worker.third_party import filters_of, weighers_of
from scheduler_worker.wiring.deciders import Deciders
from scheduler_worker.wiring.given import Given, check_settings
from scheduler_worker.wiring.knowledge import Knowledge
from scheduler_worker.wiring.queues import Queues
from scheduler_worker.wiring.sending import Sending
from scheduler_worker.wiring.staged import Staged


def scheduler_parts(
    station: Station,
    store: SchedulerStore,
    settings: SchedulerSettings,
    clock: Callable[[], datetime] = now,
    chance: random.Random | None = None,
    *,
    cells: Mapping[str, Station] | None = None,
    picture: Picture | None = None,
) -> tuple[Part, ...]:
    """Everything that a scheduler worker runs, its stations included; the caller closes the stations.

    `station` is on the API level's broker, and asks questions there. `cells` has the station of each cell that has a
    broker of its own; all other cells are on the API level's broker.
    """
    check_settings(settings, station.settings)
    given = Given(
        station=station,
        cells=cells or {},
        cells_at=by_station(cells or {}),
        store=store,
        settings=settings,
        clock=clock,
        chance=chance or random.Random(secrets.randbits(64)),
        picture=Picture() if picture is None else picture,
        plugins=_plugins_of(settings),
    )
    follower = SettingsFollower(settings, lambda fresh: given.plugins.become(_plugins_of(fresh)))
    known = Knowledge(given)
    deciders = Deciders(given, known)
    sending = Sending(given)
    queues = Queues(given, known, deciders, sending)
    # Without one of these a scheduler serves all other cells.
    for below, names in given.cells_at.items():
        beside = (below, known.listeners[below], queues.events_of_cells[below])
        set_beside(beside, f"cell {', '.join(names)}")
    ready = (
        known.replica.whole,
        known.host_watch.has_run,
        sending.applications.has_run,
        known.aggregate_watch.has_run,
    )
    first = _first(given, known, sending)
    workers = _workers(given, known, deciders, sending, queues)
    return (
        Staged(
            first, ready, workers, seen=(deciders.claimer, deciders.builder, deciders.last_filters, follower)
        ),
    )


def _plugins_of(settings: SchedulerSettings) -> Plugins:
    return chosen_plugins(settings, filters_of(settings), weighers_of(settings))


def _first(given: Given, known: Knowledge, sending: Sending) -> tuple[Part, ...]:
    """The parts that bring the first snapshot, and those that do not need it."""
    station, store, hosts, outbox = given.station, given.store, known.hosts, sending.outbox
    settings, clock, chance = given.settings, given.clock, given.chance
    brokers = [
        (station, lambda cell: cell not in given.cells),
        *[(below, names.__contains__) for below, names in given.cells_at.items()],
    ]
    return (
        station,
        known.replica,
        known.host_watch,
        known.aggregate_watch,
        sending.applications,
        Deadlines(
            store, outbox, station.publisher, poll_s=settings.deadline_poll_s, clock=clock, chance=chance
        ),
        Forgetting(
            store,
            hosts,
            lambda host: not known.replica.whole.is_set() or given.picture.has_provider(host),
            settings,
            clock,
            down_after=given.host_down_after,
            chance=chance,
        ),
        *[
            ModeTeller(at, store, hosts, is_there, every_s=settings.hosts_poll_s, clock=clock)
            for at, is_there in brokers
        ],
        CellWatch(store, known.cells, known.hosts, settings.hosts_poll_s, chance),
        known.consoles,
        *given.cells_at,
        *sending.dispatches,
        *known.listeners.values(),
    )


def _workers(
    given: Given, known: Knowledge, deciders: Deciders, sending: Sending, queues: Queues
) -> tuple[Part, ...]:
    """The parts that start when the first snapshot is whole."""
    store, settings, clock, chance = given.store, given.settings, given.clock, given.chance
    outbox, publisher = sending.outbox, given.station.publisher
    moves = WaitingMoves(
        deciders.move_needs,
        deciders.move_hosts,
        store,
        outbox,
        publisher,
        unclaimed=known.unclaimed,
        specs=known.waiting,
        settings=settings,
        clock=clock,
    )
    return (
        Waker(
            store,
            outbox,
            publisher,
            deciders.claimer,
            known.waiting,
            moves=moves,
            settings=settings,
            clock=clock,
            chance=chance,
        ),
        CloudCounter(
            store,
            given.picture,
            known.hosts,
            known.cells,
            {API: given.station, **{" ".join(names): below for below, names in given.cells_at.items()}},
            every_s=settings.count_every_s,
            clock=clock,
            chance=chance,
        ),
        # Clients that know of no parcels send each request by itself. An application's own queue is read in smaller batches,
        # so that a flood of one delays the others for less long.
        queues.read_requests(
            "scheduler.requests", sweeps=True, batches_in_flight=settings.batches_in_flight, singly=True
        ),
        ApplicationQueues(
            lambda: sending.applications.names,
            given.station.consuming,
            # By the queue for all.
            {"scheduler.requests": queues.read_requests, "scheduler.questions": queues.read_questions},
            settings.hosts_poll_s,
            chance,
        ),
        queues.events,
        *queues.events_of_cells.values(),
        queues.read_questions("scheduler.questions"),
    )
