"""Counts the cloud for the metrics: instances, hosts, capacity, what waits, moves, dead letters.

One scheduler counts at a time, by a lease, and the others show none of these metrics. So several schedulers read the database
no more often than one, and a sum over all workers counts nothing twice. Only schedulers whose metrics are read seek the
lease. So a cloud that nobody watches is not counted, and the first page that is read lacks these metrics.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import uuid4

from bus.errors import Operational
from bus.measuring import Numbers, Readings, limited
from bus.parts import Periodic
from bus.topology import DEAD_QUEUE
from bus.workers.station import Station
from scheduler_worker.cells.registry import CellRegistry
from scheduler_worker.core.picture.capacity import Capacities, CellCapacity, capacities
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.hosts.registry import HostRegistry, count_by_state
from scheduler_worker.metrics import (
    CAPACITY,
    CAPACITY_OPEN,
    CAPACITY_USED,
    CELL_UP,
    DEAD_LETTERS,
    HOSTS,
    INSTANCES,
    MOVES,
    WAITING,
    WAITING_OLDEST,
)
from scheduler_worker.store import SchedulerStore

# Nobody reads the metrics: only a reader ends this pause.
QUIET_S = 24 * 3600.0
# A scheduler is watched as long as its metrics are read at least every so many periods.
WATCHED_PERIODS = 5
# The lease lasts so many periods: one count may come late.
LEASE_PERIODS = 2
# The pause after a count is at least so many times as long as the count took.
PAUSE_TIMES = 100
DEPTH_S_MAX = 2.0
# Labels: the broker of the API level, and hosts that are no nodes.
API = "api"
HYPERVISOR = "hypervisor"


class CloudCounter(Periodic):
    """`stations` are those of all brokers, each with the name by which the metrics call it."""

    def __init__(
        self,
        store: SchedulerStore,
        picture: Picture,
        hosts: HostRegistry,
        cells: CellRegistry,
        stations: Mapping[str, Station],
        *,
        every_s: float,
        clock: Callable[[], datetime],
        chance: random.Random | None = None,
    ) -> None:
        super().__init__("count the cloud", self._look, self._rest_s, chance=chance)
        self._store = store
        self._picture = picture
        self._hosts = hosts
        self._cells = cells
        self._stations = stations
        self._count_every_s = every_s
        self._took_s = 0.0
        self._clock = clock
        self._name = uuid4()
        self._watched_until_s = 0.0
        # The last counts, which hold until the lease ends; and since when the oldest has waited.
        self._counted: Sequence[Numbers] = ()
        self._oldest_wait: datetime | None = None
        self._holds_until: datetime | None = None

    @property
    def watched_readings(self) -> Readings:
        """The last counts. To read them tells this part that somebody watches."""
        now_s = asyncio.get_running_loop().time()
        was_watched = now_s < self._watched_until_s
        self._watched_until_s = now_s + WATCHED_PERIODS * self._period_s
        if not was_watched:
            self.wake()
        now = self._clock()
        if self._holds_until is None or now >= self._holds_until:
            return ()
        oldest = self._oldest_wait
        waits_s = 0.0 if oldest is None else max((now - oldest).total_seconds(), 0.0)
        return (*self._counted, WAITING_OLDEST.numbers({(): waits_s}))

    @property
    def _period_s(self) -> float:
        return max(self._count_every_s, PAUSE_TIMES * self._took_s)

    def _rest_s(self) -> float:
        return self._period_s if self._is_watched() else QUIET_S

    def _is_watched(self) -> bool:
        return asyncio.get_running_loop().time() < self._watched_until_s

    async def _look(self) -> None:
        if not self._is_watched():
            return
        now = self._clock()
        until = now + timedelta(seconds=LEASE_PERIODS * self._period_s)
        async with self._store.transaction() as tx:
            other_holds_until = await tx.lease_counting(self._name, now, until)
        if other_holds_until is not None:
            self._holds_until = None
            return
        began_s = asyncio.get_running_loop().time()
        self._counted = await self._count()
        self._took_s = asyncio.get_running_loop().time() - began_s
        self._holds_until = until

    async def _count(self) -> Sequence[Numbers]:
        instances = await self._store.instance_counts()
        work = await self._store.work_counts()
        self._oldest_wait = work.oldest_wait
        letters = [(name, await _dead_letters(station)) for name, station in self._stations.items()]
        return (
            INSTANCES.numbers({(each.state, each.cell): each.count for each in instances}),
            WAITING.numbers({(): work.waiting}),
            MOVES.numbers({(kind,): count for kind, count in work.moves.items()}),
            HOSTS.numbers(
                {
                    (cell, kind or HYPERVISOR, state): count
                    for (cell, kind, state), count in count_by_state(self._hosts.rows()).items()
                }
            ),
            *self._capacity(),
            CELL_UP.numbers({(cell,): float(cell not in self._cells.down) for cell in self._cells.names}),
            DEAD_LETTERS.numbers({(name,): count for name, count in letters if count is not None}),
        )

    def _capacity(self) -> Sequence[Numbers]:
        found = with_rare_classes_as_one(capacities(self._picture))
        return (
            CAPACITY.numbers({labels: each.capacity for labels, each in found.items()}),
            CAPACITY_USED.numbers({labels: each.used for labels, each in found.items()}),
            CAPACITY_OPEN.numbers({labels: each.open for labels, each in found.items()}),
        )


def with_rare_classes_as_one(found: Capacities) -> Capacities:
    """Add up the classes of which there is least, if there are more than label values may be."""
    in_all = Counter[str]()
    for (_, resource), each in found.items():
        in_all[resource] += each.capacity
    shown = limited([resource for resource, _ in in_all.most_common()])
    summed: dict[tuple[str, str], CellCapacity] = {}
    for (cell, resource), each in found.items():
        summed.setdefault((cell, shown[resource]), CellCapacity()).add(each.capacity, each.used, each.open)
    return summed


async def _dead_letters(station: Station) -> int | None:
    """How many dead letters this broker has. None if it does not answer now, or has no queue for them."""
    try:
        async with asyncio.timeout(DEPTH_S_MAX), station.consuming.opened() as connection:
            return await connection.depth(DEAD_QUEUE)
    except (Operational, TimeoutError):
        return None
