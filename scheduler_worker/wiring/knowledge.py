"""The knowledge that a scheduler worker has of the cloud: hosts, cells, placement's data, and instances that wait for room."""

from datetime import timedelta
from functools import partial

from bus.parts import Periodic
from bus.workers.station import FeedListener
from scheduler_worker.aggregates.rows import read_aggregates
from scheduler_worker.cells.consoles import ConsoleRelay
from scheduler_worker.cells.hearing import hear_cells
from scheduler_worker.cells.registry import CellRegistry
from scheduler_worker.cells.workers import WorkerRegistry
from scheduler_worker.hosts.registry import HostRegistry
from scheduler_worker.hosts.row_watch import HostWatch
from scheduler_worker.replica.replica import HEARD_OF_CELLS, Replica
from scheduler_worker.requests.unclaimed_shares import UnclaimedShares
from scheduler_worker.waiting import WaitingSpecs
from scheduler_worker.wiring.given import Given


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
            page=settings.snapshot_page,
            verify_every_s=settings.verify_every_s,
            chance=chance,
        )
        # Of the brokers that have cells only.
        self.listeners = {
            below: FeedListener("hear of hosts in cells", below, HEARD_OF_CELLS, hear, is_needed=True)
            for below in given.cells_at
        }
        self.host_watch = HostWatch(given.store, self.hosts, settings.hosts_poll_s, clock, chance)
        self._read_aggregates = partial(read_aggregates, given.store, picture)
        self.aggregate_watch = Periodic(
            "read aggregates",
            self._read_aggregates,
            settings.hosts_poll_s,
            is_needed=True,
            chance=chance,
        )
        self.unclaimed = UnclaimedShares(picture)

    async def make_sure(self) -> None:
        """On return, the picture has every provider, host and aggregate that was written before the call, and counts no
        share that is not claimed yet.
        """
        await self.host_watch.look_again()
        await self._read_aggregates()
        await self.replica.catch_up()
        # After the last wait: further shares may have been chosen during it.
        self.unclaimed.drop_all()
