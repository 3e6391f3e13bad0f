"""The parts of a scheduler worker, put together. `__main__.py` runs them alone, `moor up` beside other workers.

Each stage is made of the stages before it:

    given      connections, the database, settings, a clock, the picture.
    knowledge  of hosts, cells and placement's data, and the parts that keep it up to date.
    deciders   about requests: builders, movers, finders of alternates.
    sending    the outbox: it sends the messages of rows.
    queues     the worker loops, which answer.
    staged     runs some parts first, and the others when the first snapshot is whole.
"""

import asyncio
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

from msgspec import Struct

from bus.message import Message
from bus.messages.build import BuildInstance
from bus.messages.cloud import RowFailed
from bus.messages.moves import MoveInstance
from bus.settings import BusSettings
from bus.workers.connections import FeedListener, Station, by_station
from bus.workers.consuming import Subscription
from bus.workers.set_aside import FailedRows
from bus.workers.worker import Worker
from engine.choosing.plugins import Plugins, multiplier_key
from engine.inventories import standard_vocabulary
from engine.picture.picture import Picture
from kit.clock import now
from kit.parts import Once, PartGroup, Periodic, set_beside
from kit.process import Part
from kit.settings import BadSetting, SettingsFollower
from scheduler_worker.aggregates import AggregateMembership, AggregateOrders, read_aggregates
from scheduler_worker.applications import ApplicationQueues, Applications
from scheduler_worker.cells import CellRegistry, CellWatch, ConsoleRelay, WorkerRegistry, hear_cells
from scheduler_worker.claiming.claimer import Claimer
from scheduler_worker.forgetting import Deadlines, Forgetting
from scheduler_worker.handlers import (
    event_handlers,
    question_handlers,
    request_handlers,
)
from scheduler_worker.host_orders import HostOrders
from scheduler_worker.hosts import HostRegistry, HostWatch, ModeTeller
from scheduler_worker.outbox import CellDispatch, FailedInstances, Outbox, OutboxNotes
from scheduler_worker.overview import API, CloudCounter, Overviews
from scheduler_worker.questions import Planner, on_buried
from scheduler_worker.replica import HEARD_OF_CELLS, Replica
from scheduler_worker.requests.adopting import InstanceAdopter
from scheduler_worker.requests.building import Builder
from scheduler_worker.requests.cell_events import AlternatesFinder, ApiLevelRepeater
from scheduler_worker.requests.limits import ProjectLimits
from scheduler_worker.requests.move_needs import MoveNeedsFinder
from scheduler_worker.requests.moving import MoveHostFinder, Mover, UnclaimedShares
from scheduler_worker.requests.reading import LastFilters, RequestReader
from scheduler_worker.requests.waking import Waker
from scheduler_worker.settings import PACE, SchedulerPace, SchedulerSettings, plugins_of
from scheduler_worker.store_sql import SchedulerStore
from scheduler_worker.waiting import WaitingSpecs

# The connections, the database and the settings that all parts of a scheduler worker are made of.


class Given(Struct, frozen=True):
    """`station` is on the API level's broker. `cells` has the station of each cell that has a broker of its own; `cells_at` has
    the names of the cells at each of these stations.
    """

    station: Station
    cells: Mapping[str, Station]
    cells_at: Mapping[Station, tuple[str, ...]]
    store: SchedulerStore
    settings: SchedulerSettings
    pace: SchedulerPace
    clock: Callable[[], datetime]
    chance: random.Random
    picture: Picture
    plugins: Plugins

    @property
    def host_down_after(self) -> timedelta:
        return timedelta(seconds=self.station.settings.host_down_s)

    def trouble_at(self, cell: str) -> str:
        """Why the connection to the cell's own broker fails; empty if it works, or if the cell has no broker of its own."""
        return self.cells[cell].consuming.trouble if cell in self.cells else ""


def check_settings(settings: SchedulerSettings, bus: BusSettings) -> None:
    """Raise BadSetting if a setting of the scheduler contradicts one of the bus."""
    if settings.when_cell_down == "wait" and settings.cell_down_s >= bus.host_down_s:
        raise BadSetting(
            "scheduler.cell_down_s",
            settings.cell_down_s,
            "beside [bus]",
            f"must be less than bus.host_down_s ({bus.host_down_s}) with when_cell_down 'wait': otherwise all "
            "hosts of the cell are down before the cell is",
        )


# The knowledge that a scheduler worker has of the cloud: hosts, cells, placement's data, and instances that wait for room.


class Knowledge:
    """The registries that deciders read, and the parts that keep them up to date."""

    def __init__(self, given: Given) -> None:
        settings, picture, clock, chance = given.settings, given.picture, given.clock, given.chance
        self.cells = CellRegistry(
            picture,
            timedelta(seconds=settings.cell_down_s),
            clock,
            is_avoided=settings.when_cell_down == "elsewhere",
            trouble_at=given.trouble_at,
        )
        self.workers = WorkerRegistry(timedelta(seconds=settings.cell_down_s), clock)
        self.hosts = HostRegistry(
            picture,
            given.host_down_after,
            clock,
            failed_builds_max=settings.failed_builds_max,
            excuses=self.cells.excuses,
        )
        self.consoles = ConsoleRelay(given.station, given.cells, given.store, clock=clock)
        self.waiting = WaitingSpecs(picture, given.plugins)
        hear = partial(hear_cells, self.cells, self.workers, self.hosts, self.consoles)
        self.replica = Replica(
            given.station,
            picture,
            hear,
            waiting=self.waiting,
            page=given.pace.snapshot_page,
            verify_every_s=given.pace.verify_every_s,
            chance=chance,
        )
        # Of the brokers that have cells only.
        self.listeners = {
            below: FeedListener("hear of hosts in cells", below, HEARD_OF_CELLS, hear, is_needed=True)
            for below in given.cells_at
        }
        self.host_watch = HostWatch(given.store, self.hosts, given.pace.hosts_poll_s, clock, chance)
        self._read_aggregates = partial(read_aggregates, given.store, picture)
        self.aggregate_watch = Periodic(
            "read aggregates",
            self._read_aggregates,
            given.pace.hosts_poll_s,
            is_needed=True,
            chance=chance,
        )
        self.unclaimed = UnclaimedShares(picture)
        brokers = [
            (given.station, lambda cell: cell not in given.cells),
            *[(below, names.__contains__) for below, names in given.cells_at.items()],
        ]
        self.mode_tellers = [
            ModeTeller(at, given.store, self.hosts, is_there, every_s=given.pace.hosts_poll_s, clock=clock)
            for at, is_there in brokers
        ]

    async def tell_cells(self) -> None:
        await asyncio.gather(*[each.tell() for each in self.mode_tellers])

    async def make_sure(self) -> None:
        """On return, the picture has every provider, host and aggregate that was written before the call, and counts no
        share that is not claimed yet.
        """
        await self.host_watch.look_again()
        await self._read_aggregates()
        await self.replica.catch_up()
        # After the last wait: further shares may have been chosen during it.
        self.unclaimed.drop_all()


# The deciders about requests: each reads the knowledge of this worker, and asks placement.


STANDARD = standard_vocabulary()


class Deciders:
    def __init__(self, given: Given, known: Knowledge) -> None:
        store, settings, clock, chance = given.store, given.settings, given.clock, given.chance
        picture, plugins, ask_all = given.picture, given.plugins, given.station.ask_all
        self.reader = RequestReader(STANDARD, settings.horizon, plugins)
        self.claimer = Claimer(
            picture,
            known.replica,
            known.hosts,
            ask_all,
            make_sure=known.make_sure,
            plugins=plugins,
            alternates_max=settings.alternates_max,
            chance=chance,
            clock=clock,
            pace=given.pace,
        )
        self.last_filters = LastFilters([each.name for each in plugins.filters])
        self.limits = ProjectLimits(store, settings)
        self.builder = Builder(
            store,
            self.claimer,
            self.reader,
            clock,
            settings,
            last_filters=self.last_filters,
            limits=self.limits,
        )
        self.membership = AggregateMembership(picture, ask_all, known.replica.catch_up)
        self.aggregates = AggregateOrders(
            store,
            picture,
            self.membership,
            clock,
            make_sure=known.make_sure,
            multipliers=frozenset(multiplier_key(each) for each in plugins.weighers),
            horizon=settings.horizon,
        )
        self.move_needs = MoveNeedsFinder(
            store, picture, self.reader, ask_all=ask_all, make_sure=known.make_sure
        )
        self.move_hosts = MoveHostFinder(
            picture,
            plugins,
            alternates_max=settings.alternates_max,
            make_sure=self.claimer.until_current,
            chance=chance,
        )
        self.mover = Mover(
            self.move_needs,
            self.move_hosts,
            picture,
            clock,
            settings,
            know_hosts=known.host_watch.look_again,
            unclaimed=known.unclaimed,
            last_filters=self.last_filters,
        )
        self.adopter = InstanceAdopter(
            store, self.reader, ask_all, clock, timeout_s=settings.request_timeout_s
        )
        self.host_orders = HostOrders(
            store,
            picture,
            known.hosts,
            clock,
            ask_all=ask_all,
            make_sure=known.make_sure,
            tell_cells=known.tell_cells,
        )
        self.more_alternates = AlternatesFinder(
            store,
            picture,
            plugins,
            clock,
            alternates_max=settings.alternates_max,
            make_sure=self.claimer.until_current,
            hold=known.unclaimed.hold,
            chance=chance,
        )


# The outbox, which sends the messages of rows to brokers; and copies of events for applications.


class Sending:
    def __init__(self, given: Given) -> None:
        publisher = given.station.publisher
        self.failed = FailedInstances(FailedRows(given.station, "scheduler.requests"), given.clock)
        repeated_after = timedelta(seconds=given.pace.unconfirmed_s)
        notes = OutboxNotes(given.store, repeated_after, given.clock, self.failed)
        self.dispatches = [
            CellDispatch(cells, below, publisher, notes, under_way_max=given.settings.under_way_max)
            for below, cells in given.cells_at.items()
        ]
        self.outbox = Outbox(given.store, notes, publisher, self.dispatches)
        self.applications = Applications(
            given.store,
            publisher,
            given.pace.hosts_poll_s,
            given.clock,
            given.chance,
            is_host=given.picture.is_host,
        )


# The worker loops that read queues. handlers.py says which message goes to which handler.


class Queues:
    """What the worker loops consume. Beside the queues of `requests` and `questions` each application has its own."""

    def __init__(self, given: Given, known: Knowledge, deciders: Deciders, sending: Sending) -> None:
        store, picture, plugins, clock = given.store, given.picture, given.plugins, given.clock
        ask = given.station.ask
        outbox, applications = sending.outbox, sending.applications
        self.requests = Subscription(
            "scheduler.requests",
            request_handlers(
                deciders.builder,
                applications,
                clock,
                given.settings,
                limits=deciders.limits,
                store=store,
                picture=picture,
                aggregates=deciders.aggregates,
                mover=deciders.mover,
                adopter=deciders.adopter,
                host_orders=deciders.host_orders,
                know_hosts=known.host_watch.look_again,
                failed=sending.failed.rows,
            ),
            outbox,
            outbox=outbox,
            batches_in_flight=given.pace.batches_in_flight,
            # Clients that know of no parcels send each request by itself.
            singly=True,
            before_burial={
                BuildInstance: (deciders.builder.end_in_error, deciders.builder.release),
                RowFailed: (sending.failed.rows.end,),
                Message: (on_buried,),
            },
        )
        overviews = Overviews(
            given.station.name,
            store,
            picture,
            cells=known.cells,
            workers=known.workers,
            hosts=known.hosts,
            clock=clock,
        )
        self.questions = Subscription(
            "scheduler.questions",
            question_handlers(
                store,
                known.hosts,
                applications,
                deciders.membership,
                {
                    **Planner(picture, plugins, deciders.reader, store, ask).question_handlers(),
                    **known.consoles.question_handlers(),
                    **overviews.handlers(),
                },
                cells=known.cells,
                picture=picture,
                catch_up=known.replica.catch_up,
            ),
            outbox,
            before_burial={Message: (on_buried,)},
        )
        self.events = Worker(
            given.station,
            Subscription(
                "scheduler.events",
                event_handlers(
                    known.hosts,
                    clock,
                    deciders.more_alternates,
                    cells_apart=given.cells,
                    repeater=applications,
                ),
                outbox,
            ),
        )
        # Of the brokers that have cells only.
        self.events_of_cells = {
            below: Worker(
                below,
                Subscription(
                    "scheduler.events",
                    event_handlers(known.hosts, clock, deciders.more_alternates, repeater=ApiLevelRepeater()),
                    outbox,
                    says_by=given.station.publisher,
                ),
            )
            for below in given.cells_at
        }


# Parts that are started when others are ready.


class Staged:
    """Runs `needed` first, and starts `workers` when the events in `ready` are set; at the end, `workers` stop before
    `needed`. The objects in `seen` are not run: health and metrics ask them.
    """

    def __init__(
        self,
        needed: Sequence[Part],
        ready: Sequence[asyncio.Event],
        workers: Sequence[Part],
        *,
        seen: Sequence[object] = (),
    ) -> None:
        self._needed = PartGroup(*needed)
        self._workers = PartGroup(*workers)
        self.parts = (*needed, *workers, *seen)
        self._waiting = Once(
            "wait for the first snapshot", lambda: asyncio.gather(*[each.wait() for each in ready])
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._needed.run())
            await self._waiting.run()
            if not self._waiting.stopping.is_set():
                await self._workers.run()
            await self._needed.stop()

    async def stop(self) -> None:
        await self._waiting.stop()
        await self._workers.stop()


def scheduler_parts(
    station: Station,
    store: SchedulerStore,
    settings: SchedulerSettings,
    clock: Callable[[], datetime] = now,
    chance: random.Random | None = None,
    *,
    cells: Mapping[str, Station] | None = None,
    picture: Picture | None = None,
    pace: SchedulerPace = PACE,
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
        pace=pace,
        clock=clock,
        chance=chance or random.Random(secrets.randbits(64)),
        picture=Picture() if picture is None else picture,
        plugins=plugins_of(settings),
    )

    def take(fresh: SchedulerSettings) -> None:
        given.plugins.become(plugins_of(fresh))
        # Other limits may let in what waits.
        given.picture.touched.add_all()

    follower = SettingsFollower(settings, take)
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
            first,
            ready,
            workers,
            seen=(
                *(known.hosts, deciders.claimer, deciders.builder, deciders.last_filters),
                *(follower, sending.failed.rows),
            ),
        ),
    )


def _first(given: Given, known: Knowledge, sending: Sending) -> tuple[Part, ...]:
    """The parts that bring the first snapshot, and those that do not need it."""
    station, store, hosts, outbox = given.station, given.store, known.hosts, sending.outbox
    pace, clock, chance = given.pace, given.clock, given.chance
    return (
        station,
        known.replica,
        known.host_watch,
        known.aggregate_watch,
        sending.applications,
        Deadlines(
            store,
            outbox,
            failed=sending.failed,
            poll_s=pace.deadline_poll_s,
            clock=clock,
            chance=chance,
        ),
        Forgetting(
            store,
            hosts,
            lambda host: not known.replica.whole.is_set() or given.picture.has_provider(host),
            clock,
            horizon=given.settings.horizon,
            down_after=given.host_down_after,
            every_s=pace.prune_every_s,
            chance=chance,
        ),
        *known.mode_tellers,
        CellWatch(store, known.cells, known.hosts, pace.hosts_poll_s, chance),
        known.consoles,
        *given.cells_at,
        *sending.dispatches,
        *known.listeners.values(),
    )


def _workers(
    given: Given, known: Knowledge, deciders: Deciders, sending: Sending, queues: Queues
) -> tuple[Part, ...]:
    """The parts that start when the first snapshot is whole."""
    store, clock, chance = given.store, given.clock, given.chance
    outbox = sending.outbox
    return (
        Waker(
            store,
            outbox,
            known.waiting,
            {BuildInstance: deciders.builder.try_again, MoveInstance: deciders.mover.try_again},
            failed=sending.failed,
            clock=clock,
            chance=chance,
            pace=given.pace,
        ),
        CloudCounter(
            store,
            given.picture,
            known.hosts,
            known.cells,
            {API: given.station, **{" ".join(names): below for below, names in given.cells_at.items()}},
            clock=clock,
            chance=chance,
        ),
        Worker(given.station, queues.requests),
        ApplicationQueues(
            lambda: sending.applications.names,
            given.station,
            (queues.requests, queues.questions),
            given.pace.hosts_poll_s,
            chance,
        ),
        queues.events,
        *queues.events_of_cells.values(),
        Worker(given.station, queues.questions),
    )
