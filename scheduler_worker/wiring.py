"""The parts of a scheduler worker, put together. `__main__.py` runs them alone, `moor up` beside other workers."""

import asyncio
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import os_resource_classes
import os_traits

from bus.messages.build import BuildInstance
from bus.parts import Once
from bus.process import Part
from bus.workers.station import Station, by_station
from placement_worker.core.vocabulary import Vocabulary
from scheduler_worker.aggregates.membership import Membership
from scheduler_worker.aggregates.orders import AggregateOrders
from scheduler_worker.aggregates.watch import AggregateWatch
from scheduler_worker.applications import Applications
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
from scheduler_worker.hosts.listening import HostListener
from scheduler_worker.hosts.registry import HostRegistry
from scheduler_worker.hosts.watch import HostWatch
from scheduler_worker.outbox.cell_dispatch import CellDispatch
from scheduler_worker.outbox.notes import Notes
from scheduler_worker.outbox.outbox import Outbox, OutboxWithoutSweep
from scheduler_worker.replica.replica import Replica
from scheduler_worker.requests.building import Builder
from scheduler_worker.requests.burying import Burial
from scheduler_worker.requests.deadlines import Deadlines
from scheduler_worker.requests.explaining import Explainer
from scheduler_worker.requests.groups import group_finder
from scheduler_worker.requests.planning import Planner
from scheduler_worker.requests.reading import RequestReader
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store import SchedulerStore
from scheduler_worker.third_party import filters_of, weighers_of

STANDARD = Vocabulary(
    classes=frozenset(os_resource_classes.STANDARDS), traits=frozenset(os_traits.get_traits())
)


def now() -> datetime:
    return datetime.now(UTC)


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
    registry = HostRegistry(
        picture,
        timedelta(seconds=settings.host_down_s),
        clock,
        failed_builds_max=settings.failed_builds_max,
    )
    replica = Replica(
        station,
        picture,
        registry,
        page=settings.snapshot_page,
        verify_every_s=settings.verify_every_s,
        chance=chance,
    )
    watch = HostWatch(store, registry, settings.hosts_poll_s, clock, chance)

    aggregate_watch = AggregateWatch(store, picture, settings.hosts_poll_s, chance)

    async def make_sure() -> None:
        await replica.catch_up()
        # The registry has the rows of all other hosts.
        await watch.look_again(picture.unregistered())
        await aggregate_watch.refresh()

    plugins = chosen_plugins(settings, filters_of(settings), weighers_of(settings))
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
    apart = by_station(cells or {})
    dispatches = [
        CellDispatch(names, down, station.publisher, notes, under_way_max=settings.under_way_max)
        for down, names in apart.items()
    ]
    outbox = Outbox(store, notes, dispatches)
    applications = Applications(store, station.publisher, settings.hosts_poll_s, clock, chance)
    reader = RequestReader(STANDARD, settings.horizon, plugins)
    builder = Builder(store, claimer, reader, clock, settings)
    burial = Burial(reader, clock, settings)
    aggregates = AggregateOrders(
        store,
        picture,
        membership,
        clock,
        make_sure=make_sure,
        multipliers=frozenset(multiplier_key(each) for each in plugins.weighers),
    )
    requests = request_handlers(builder, registry, applications, clock, settings, aggregates=aggregates)
    # One loop sweeps the outbox for all; each clears what it has published itself.
    sweeps: list[Outbox | OutboxWithoutSweep] = [outbox, OutboxWithoutSweep(outbox)]
    parts: tuple[Part, ...] = (
        station,
        replica,
        watch,
        aggregate_watch,
        applications,
        Deadlines(store, station.publisher, settings.deadline_poll_s, clock, chance),
        Forgetting(
            store,
            registry,
            lambda host: not replica.whole.is_set() or picture.has_provider(host),
            settings,
            clock,
            chance=chance,
        ),
        *apart,
        *dispatches,
        *[HostListener(down, registry) for down in apart],
    )
    workers: tuple[Part, ...] = (
        *[
            station.worker(
                "scheduler.requests",
                requests,
                outbox,
                outbox=sweeps[number > 0],
                chance=chance,
                before_burial={BuildInstance: (burial.end_in_error, burial.release)},
            )
            for number in range(settings.batches_in_flight)
        ],
        station.worker(
            "scheduler.events",
            event_handlers(registry, applications, clock, cells or {}),
            outbox,
            chance=chance,
        ),
        *[
            down.worker(
                "scheduler.events",
                cell_broker_handlers(registry, clock),
                outbox,
                chance=chance,
                says_by=station.publisher,
            )
            for down in apart
        ],
        station.worker(
            "scheduler.questions",
            question_handlers(
                store,
                registry,
                applications,
                membership,
                {
                    **Planner(picture, plugins, reader, group_finder(store)).question_handlers(),
                    **Explainer(store, picture, plugins).question_handlers(),
                },
                picture=picture,
                catch_up=replica.catch_up,
            ),
            outbox,
            chance=chance,
        ),
    )
    return (Staged(parts, (replica.whole, watch.read, applications.read, aggregate_watch.read), workers),)


class Staged:
    """Parts, and workers that start when these are ready; the parts stop after the workers."""

    def __init__(
        self, needed: Sequence[Part], ready: Sequence[asyncio.Event], workers: Sequence[Part]
    ) -> None:
        self._needed = needed
        self._workers = workers
        self.parts = (*needed, *workers)
        self._waiting = Once(
            "wait for the first snapshot", lambda: asyncio.gather(*[each.wait() for each in ready])
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for part in self._needed:
                tasks.create_task(part.run())
            await self._waiting.run()
            if not self._waiting.stopping.is_set():
                await asyncio.gather(*(worker.run() for worker in self._workers))
            for part in self._needed:
                await part.stop()

    async def stop(self) -> None:
        await self._waiting.stop()
        for worker in self._workers:
            await worker.stop()
