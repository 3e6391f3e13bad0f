"""The parts of a scheduler worker, put together. `__main__.py` runs them alone, `moor up` beside other workers."""

import asyncio
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial

import os_resource_classes
import os_traits

from bus.clock import now
from bus.configuration.addresses import BadSetting
from bus.messages.build import BuildInstance
from bus.parts import Once, PartGroup, set_beside
from bus.process import Part
from bus.workers.station import FeedListener, Station, by_station
from placement_worker.core.vocabulary import Vocabulary
from scheduler_worker.aggregates.membership import Membership
from scheduler_worker.aggregates.orders import AggregateOrders
from scheduler_worker.aggregates.watch import AggregateWatch
from scheduler_worker.application_queues import ApplicationQueues
from scheduler_worker.applications import Applications
from scheduler_worker.cells.hearing import hear_cells
from scheduler_worker.cells.live import LiveRelay
from scheduler_worker.cells.registry import CellRegistry
from scheduler_worker.cells.watch import CellWatch
from scheduler_worker.claiming.claimer import Claimer
from scheduler_worker.core.choosing.plugins import multiplier_key
from scheduler_worker.core.choosing.standard import chosen_plugins
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.forgetting import Forgetting
from scheduler_worker.handlers import (
    cell_broker_handlers,
    event_handlers,
    question_handlers,
    request_handlers,
)
from scheduler_worker.hosts.registry import HostRegistry
from scheduler_worker.hosts.telling import ModeTeller
from scheduler_worker.hosts.watch import HostWatch
from scheduler_worker.outbox.cell_dispatch import CellDispatch
from scheduler_worker.outbox.notes import Notes
from scheduler_worker.outbox.outbox import Outbox
from scheduler_worker.questions.explaining import Explainer
from scheduler_worker.questions.planning import Planner
from scheduler_worker.replica.replica import HEARD_OF_CELLS, Replica
from scheduler_worker.requests.building import Builder
from scheduler_worker.requests.burying import Burial
from scheduler_worker.requests.deadlines import Deadlines
from scheduler_worker.requests.more_alternates import AlternatesFinder
from scheduler_worker.requests.moving import Mover
from scheduler_worker.requests.reading import RequestReader
from scheduler_worker.requests.unclaimed_shares import UnclaimedShares
from scheduler_worker.requests.waiting_moves import WaitingMoves
from scheduler_worker.requests.waking import Waker
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store import SchedulerStore
from scheduler_worker.third_party import filters_of, weighers_of
from scheduler_worker.waiting import WaitingSpecs

STANDARD = Vocabulary(
    classes=frozenset(os_resource_classes.STANDARDS), traits=frozenset(os_traits.get_traits())
)


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
    chance = chance or random.Random(secrets.randbits(64))
    picture = Picture() if picture is None else picture
    down_after = timedelta(seconds=station.settings.host_down_s)
    if settings.when_cell_down == "wait" and settings.cell_down_s >= station.settings.host_down_s:
        raise BadSetting(
            "scheduler.cell_down_s",
            settings.cell_down_s,
            "beside [bus]",
            f"must be less than bus.host_down_s ({station.settings.host_down_s}) with when_cell_down 'wait': otherwise all "
            "hosts of the cell are down before the cell is",
        )
    cells = cells or {}
    known_cells = CellRegistry(
        picture,
        timedelta(seconds=settings.cell_down_s),
        clock,
        is_avoided=settings.when_cell_down == "elsewhere",
        troubles=lambda cell: cells[cell].consuming.trouble if cell in cells else "",
    )
    registry = HostRegistry(
        picture,
        down_after,
        clock,
        failed_builds_max=settings.failed_builds_max,
        excuses=known_cells.excuses,
    )
    live = LiveRelay(station, cells, known_cells, registry, clock=clock, answer_s=settings.live_answer_s)

    hear = partial(hear_cells, known_cells, registry, live)
    plugins = chosen_plugins(settings, filters_of(settings), weighers_of(settings))
    waiting = WaitingSpecs(picture, plugins)
    replica = Replica(
        station,
        picture,
        hear,
        waiting=waiting,
        page=settings.snapshot_page,
        verify_every_s=settings.verify_every_s,
        chance=chance,
    )
    watch = HostWatch(store, registry, settings.hosts_poll_s, clock, chance)

    aggregate_watch = AggregateWatch(store, picture, settings.hosts_poll_s, chance)
    unclaimed = UnclaimedShares(picture)

    async def make_sure() -> None:
        unclaimed.drop_all()
        await replica.catch_up()
        await watch.look_again()
        await aggregate_watch.refresh()

    membership = Membership(picture, station.ask_all, replica.catch_up)
    claimer = Claimer(
        picture,
        replica,
        registry,
        station.ask_all,
        make_sure=make_sure,
        plugins=plugins,
        settings=settings,
        chance=chance,
        clock=clock,
    )
    notes = Notes(store, timedelta(seconds=settings.unsaid_s), clock)
    apart = by_station(cells)
    dispatches = [
        CellDispatch(names, down, station.publisher, notes, under_way_max=settings.under_way_max)
        for down, names in apart.items()
    ]
    outbox = Outbox(store, notes, dispatches)
    applications = Applications(store, station.publisher, settings.hosts_poll_s, clock, chance)
    reader = RequestReader(STANDARD, settings.horizon, plugins)
    builder = Builder(store, claimer, reader, clock, settings, begin_waits=waiting.wrote)
    burial = Burial(reader, clock, settings)
    aggregates = AggregateOrders(
        store,
        picture,
        membership,
        clock,
        make_sure=make_sure,
        multipliers=frozenset(multiplier_key(each) for each in plugins.weighers),
        horizon=settings.horizon,
    )
    mover = Mover(
        store,
        picture,
        plugins,
        reader,
        clock,
        ask_all=station.ask_all,
        settings=settings,
        make_sure=make_sure,
        know_hosts=watch.look_again,
        waiting=waiting,
        unclaimed=unclaimed,
        chance=chance,
    )
    more_alternates = AlternatesFinder(
        store,
        picture,
        plugins,
        clock,
        alternates_max=settings.alternates_max,
        make_sure=make_sure,
        hold=unclaimed.hold,
        chance=chance,
    )
    # By the queue that they read, or beside which they read that of an application.
    api_workers: dict[str, Callable[..., Part]] = {
        "scheduler.requests": partial(
            station.worker,
            handlers=request_handlers(
                builder,
                registry,
                applications,
                clock,
                settings,
                picture=picture,
                aggregates=aggregates,
                mover=mover,
                know_hosts=watch.look_again,
            ),
            store=outbox,
            outbox=outbox,
            sweeps=False,
            chance=chance,
            before_burial={BuildInstance: (burial.end_in_error, burial.release)},
        ),
        "scheduler.questions": partial(
            station.worker,
            handlers=question_handlers(
                store,
                registry,
                applications,
                membership,
                {
                    **Planner(picture, plugins, reader, store).question_handlers(),
                    **Explainer(store, picture, plugins).question_handlers(),
                    **live.question_handlers(),
                },
                cells=known_cells,
                picture=picture,
                catch_up=replica.catch_up,
            ),
            store=outbox,
            chance=chance,
        ),
    }
    events_of_cells = {
        down: down.worker(
            "scheduler.events",
            cell_broker_handlers(registry, clock, more_alternates),
            outbox,
            chance=chance,
            says_by=station.publisher,
        )
        for down in apart
    }
    listeners = {
        down: FeedListener("hear of hosts in cells", down, HEARD_OF_CELLS, hear, is_needed=True)
        for down in apart
    }
    # Without one of these a scheduler serves all other cells.
    for down, names in apart.items():
        set_beside((down, listeners[down], events_of_cells[down]), f"cell {', '.join(names)}")
    parts: tuple[Part, ...] = (
        station,
        replica,
        watch,
        aggregate_watch,
        applications,
        Deadlines(
            store, outbox, station.publisher, poll_s=settings.deadline_poll_s, clock=clock, chance=chance
        ),
        Forgetting(
            store,
            registry,
            lambda host: not replica.whole.is_set() or picture.has_provider(host),
            settings,
            clock,
            down_after=down_after,
            chance=chance,
        ),
        *[
            ModeTeller(on, store, registry, is_there, every_s=settings.hosts_poll_s, clock=clock)
            for on, is_there in (
                (station, lambda cell: cell not in cells),
                *[(down, names.__contains__) for down, names in apart.items()],
            )
        ],
        CellWatch(store, known_cells, settings.hosts_poll_s, chance),
        live,
        *apart,
        *dispatches,
        *listeners.values(),
    )
    workers: tuple[Part, ...] = (
        Waker(
            store,
            outbox,
            station.publisher,
            claimer,
            waiting,
            moves=WaitingMoves(
                mover, unclaimed, store, outbox, station.publisher, specs=waiting, clock=clock
            ),
            settings=settings,
            clock=clock,
            chance=chance,
        ),
        *[
            # One loop sweeps for all; each clears what it has published itself.
            api_workers["scheduler.requests"]("scheduler.requests", sweeps=number == 0)
            for number in range(settings.batches_in_flight)
        ],
        ApplicationQueues(
            lambda: applications.names, station.consuming, api_workers, settings.hosts_poll_s, chance
        ),
        station.worker(
            "scheduler.events",
            event_handlers(registry, applications, clock, cells, more_alternates),
            outbox,
            chance=chance,
        ),
        *events_of_cells.values(),
        api_workers["scheduler.questions"]("scheduler.questions"),
    )
    ready = (replica.whole, watch.has_run, applications.has_run, aggregate_watch.has_run)
    return (Staged(parts, ready, workers, seen=(claimer,)),)


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
