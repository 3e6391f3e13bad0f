"""The parts of a scheduler worker, put together; __main__.py runs them alone, `moor` beside others."""

import asyncio
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import os_resource_classes
import os_traits

from bus.process import Part
from bus.station import Station, by_station
from placement_worker.core.vocabulary import Vocabulary
from scheduler_worker.applications import Applications
from scheduler_worker.claiming.claimer import Claimer
from scheduler_worker.core.choosing.plugins import standard_plugins
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.handlers import on_events, on_questions, on_requests
from scheduler_worker.hosts.registry import HostRegistry
from scheduler_worker.outbox.cell_dispatch import Parting, WayDown
from scheduler_worker.outbox.cell_relay import CellEars, relayed, without_relayed
from scheduler_worker.outbox.lazy_transaction import LateTransactions, Unswept
from scheduler_worker.replica.replica import Replica
from scheduler_worker.requests.building import Builder
from scheduler_worker.requests.rebuilding import on_rebuild_requests
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store import SchedulerStore
from scheduler_worker.timers import Deadlines, Forgetting, HostWatch

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
    """All that a scheduler worker runs, its stations included; closing them is the caller's.

    `station` is on the API level's broker, and must be one that asks; `cells` says on which others there are cells, each
    with the station there. Cells that it does not name are on the API level's.
    """
    chance = chance or random.Random(secrets.randbits(64))
    picture = Picture() if picture is None else picture
    registry = HostRegistry(picture, timedelta(seconds=settings.host_down_s), clock)
    replica = Replica(
        station,
        picture,
        registry,
        page=settings.snapshot_page,
        verify_every_s=settings.verify_every_s,
        chance=chance,
    )
    watch = HostWatch(store, registry, settings.hosts_poll_s, clock, chance)

    async def make_sure() -> None:
        await replica.catch_up()
        # Any other host that could be chosen is known here as it was written.
        await watch.look_again(picture.unregistered())

    claimer = Claimer(
        picture,
        replica,
        registry,
        station.ask_all,
        make_sure=make_sure,
        plugins=standard_plugins(settings.io_ops_per_host_max, settings.instances_per_host_max),
        settings=settings,
        chance=chance,
        clock=clock,
    )
    unsaid_after = timedelta(seconds=settings.unsaid_s)
    rows = LateTransactions(store, unsaid_after, clock)
    apart = by_station(cells or {})
    ways = [
        WayDown(there, down, station.publisher, rows, under_way_max=settings.under_way_max)
        for down, there in apart.items()
    ]
    parting = Parting(store, unsaid_after, clock, ways)
    applications = Applications(store, station.publisher, settings.hosts_poll_s, clock, chance)
    builder = Builder(store, claimer, STANDARD, clock, settings)
    rebuilds = on_rebuild_requests(clock, timeout_s=settings.node_request_timeout_s)
    ordered = {**on_requests(builder, registry, clock), **rebuilds, **applications.ordered()}
    requests = parting.parted(ordered)
    here = on_events(registry, clock)
    # One of them looks for what is unsaid; all of them clear what they have said.
    outboxes: list[Parting | Unswept] = [parting, *[Unswept(parting)] * (settings.batches_in_flight - 1)]
    return (
        Staged(
            (
                station,
                replica,
                watch,
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
                *ways,
                *[CellEars(down, registry) for down in apart],
            ),
            (replica.whole, watch.read, applications.read),
            (
                *[
                    station.worker(
                        "scheduler.requests",
                        requests,
                        parting,
                        outbox=outbox,
                        chance=chance,
                        before_burial=builder.before_burial,
                    )
                    for outbox in outboxes
                ],
                station.worker(
                    "scheduler.events",
                    without_relayed(applications.fed(here), cells or {}),
                    rows,
                    chance=chance,
                ),
                *[
                    down.worker(
                        "scheduler.events",
                        relayed(on_events(registry, clock)),
                        rows,
                        chance=chance,
                        says_by=station.publisher,
                    )
                    for down in apart
                ],
                station.worker(
                    "scheduler.questions",
                    {**on_questions(store, registry), **applications.asked()},
                    rows,
                    chance=chance,
                ),
            ),
        ),
    )


class Staged:
    """Workers that start when what they need is ready, and have it until they are done."""

    def __init__(
        self, needed: Sequence[Part], ready: Sequence[asyncio.Event], workers: Sequence[Part]
    ) -> None:
        self._needed = needed
        self._ready = ready
        self._workers = workers
        self.parts = (*needed, *workers)
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for part in self._needed:
                tasks.create_task(part.run())
            await self._until_ready()
            if not self._stopping.is_set():
                await asyncio.gather(*(worker.run() for worker in self._workers))
            for part in self._needed:
                await part.stop()

    async def stop(self) -> None:
        self._stopping.set()
        for worker in self._workers:
            await worker.stop()

    async def _until_ready(self) -> None:
        ready = asyncio.gather(*(event.wait() for event in self._ready))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((ready, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
            stopping.cancel()
            await asyncio.gather(ready, stopping, return_exceptions=True)
