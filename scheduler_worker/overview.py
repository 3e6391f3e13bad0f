"""The whole cloud at a glance: hosts, their room and how full they are, counted in the picture; for questions and for metrics."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Generic, TypeVar
from uuid import uuid4

import numpy as np
from msgspec import Struct, structs

from bus.messages.cloud import (
    FILL_PARTS,
    FULL,
    TILE_STATES,
    TILES_PER_PAGE_MAX,
    WITHOUT_PROVIDER,
    AskOverview,
    AskTiles,
    CellFill,
    ClassUse,
    HostCount,
    Overview,
    Tiles,
    WaitsForRoom,
    page_that_fits,
)
from bus.messages.hosts import ClassAmounts, HostUse
from bus.topology import DEAD_QUEUE
from bus.workers.connections import Station
from bus.workers.handlers import Handlers, answering
from engine.candidates.columns import Flags, Ints
from engine.hosts import HostState
from engine.inventories import ProviderId, ShapeRoom, capacity_of
from engine.picture.columns import PictureColumns
from engine.picture.picture import Picture
from kit.errors import Operational
from kit.metrics import Numbers, Readings, limited
from kit.parts import Periodic
from scheduler_worker.cells import CellRegistry, WorkerRegistry, cell_states
from scheduler_worker.hosts import HostRegistry, count_by_state, state_of
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
from scheduler_worker.store_sql import SchedulerStore

# How much all hosts and pools of each cell have of each resource class, and how much of that is in use.


class CellCapacity(Struct):
    """Amounts of one class in one cell. `open` is what is free on hosts that take new instances, and in pools."""

    capacity: int = 0
    used: int = 0
    open: int = 0

    def add(self, capacity: int, used: int, free: int) -> None:
        self.capacity += capacity
        self.used += used
        self.open += free


Capacities = Mapping[tuple[str, str], CellCapacity]


def capacities(picture: Picture) -> Capacities:
    """By cell and resource class; without cells that have nothing of a class."""
    columns = picture.columns
    rows = slice(columns.rows)
    there, takes_new = columns.present[rows] & columns.provided[rows], _taking_new(columns)
    cell = columns.cell[rows]
    names = columns.cells.names
    found: dict[tuple[str, str], CellCapacity] = {}
    for resource, stock in columns.stocks.items():
        capacity = _by_cell(cell, stock.capacity[rows], there, len(names))
        used = _by_cell(cell, stock.used[rows], there, len(names))
        free = _by_cell(cell, np.maximum(stock.free[rows], 0), takes_new, len(names))
        for code in np.flatnonzero(capacity | used).tolist():
            sums = found.setdefault((names[code], resource), CellCapacity())
            sums.add(int(capacity[code]), int(used[code]), int(free[code]))
    _add_pools(picture, found)
    return found


def _taking_new(columns: PictureColumns) -> Flags:
    """The hosts on which new instances may be built."""
    rows = slice(columns.rows)
    taking: Flags = columns.present[rows] & columns.provided[rows] & columns.registered[rows]
    return (
        taking
        & columns.up[rows]
        & columns.enabled[rows]
        & ~np.isin(columns.cell[rows], [*columns.cells_down])
    )


def shapes_of(picture: Picture) -> tuple[ShapeRoom, ...]:
    """The shapes that are usually asked for, and how many of each fit on hosts by their own inventories."""
    taking = np.flatnonzero(_taking_new(picture.columns))
    stocks = picture.columns.stocks
    return tuple(
        ShapeRoom(
            amounts=dict(shape.amounts),
            share=round(shape.share, 4),
            fit=sum(
                np.min(
                    [
                        np.maximum(stocks[resource].free[taking], 0) // amount
                        for resource, amount in shape.amounts
                        if amount
                    ],
                    axis=0,
                ).tolist()
            )
            if all(resource in stocks for resource, _ in shape.amounts)
            else 0,
        )
        for shape in picture.usual.all()
    )


def _add_pools(picture: Picture, found: dict[tuple[str, str], CellCapacity]) -> None:
    """Add the sharing providers that belong to no host: the columns do not have them."""
    for row in sorted(picture.index.sharing):
        pool = picture.index.state(row)
        if picture.row_of(pool.root) >= 0:
            continue
        used = picture.trees.used(pool)
        for resource, inventory in pool.inventories.items():
            capacity, taken = capacity_of(inventory), used.get(resource, 0)
            sums = found.setdefault((pool.cell, resource), CellCapacity())
            sums.add(capacity, taken, max(capacity - taken, 0))


def _by_cell(cell: Ints, amounts: Ints, counted: Flags, cells: int) -> Ints:
    sums = np.zeros(cells, dtype=np.int64)
    np.add.at(sums, cell[counted], amounts[counted])
    return sums


# What is costly to make is kept for a while, so that those who watch it cost little.


T = TypeVar("T")

# It is made anew only when it is this many times as old as it took to make, within these limits: to watch a cloud costs a
# scheduler little of its time, and what is seen of a busy one is not old.
KEPT_FOR_TIMES = 200
KEPT_S_MIN, KEPT_S_MAX = 1.0, 10.0
# And for those who ask once: even if all of them ask again and again, a scheduler spends a twentieth of its time on it.
KEPT_FOR_ONE_TIMES = 20


class Kept(Generic[T]):
    """All who ask while it is being made, or is still new, get the same."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._lock = asyncio.Lock()
        self._last: tuple[T] | None = None
        self._began_s = self._ended_s = 0.0

    async def get(self, *, once: bool = False) -> T:
        now_s = asyncio.get_running_loop().time
        async with self._lock:
            if self._last is None or now_s() >= self._kept_until_s(once=once):
                began_s = now_s()
                self._last = (await self._make(),)
                self._began_s, self._ended_s = began_s, now_s()
            return self._last[0]

    def age_s(self) -> float:
        """The time since the last one was begun to be made."""
        return asyncio.get_running_loop().time() - self._began_s

    def _kept_until_s(self, *, once: bool) -> float:
        times = KEPT_FOR_ONE_TIMES if once else KEPT_FOR_TIMES
        took_s = self._ended_s - self._began_s
        return self._ended_s + min(max(KEPT_S_MIN, times * took_s), KEPT_S_MAX)


# Counts of hosts by what state they are in, how much room they have, and how full they are.


_LEVELS = (*"0123456789", FULL)


def use_of(picture: Picture, host: ProviderId) -> HostUse:
    """The sums over the providers of the host's tree, and how much of them is used."""
    row = picture.row_of(host)
    if row < 0 or not picture.columns.provided[row]:
        return HostUse(host=host)
    amounts = {
        name: ClassAmounts(used=int(stock.used[row]), capacity=int(stock.capacity[row]))
        for name, stock in picture.columns.stocks.items()
    }
    return HostUse(
        host=host, classes={name: each for name, each in amounts.items() if each.used or each.capacity}
    )


def fill_of(picture: Picture) -> tuple[CellFill, ...]:
    """How many hosts of each cell are how full, each by its fullest class."""
    columns = picture.columns
    provided = np.flatnonzero(columns.provided[: columns.rows])
    parts = _tenths(picture)[provided]
    counted = np.zeros((len(columns.cells.names), FILL_PARTS + 1), dtype=np.int64)
    np.add.at(counted, (columns.cell[provided], parts), 1)
    return tuple(
        CellFill(cell=name, hosts=tuple(counted[code].tolist()))
        for code, name in enumerate(columns.cells.names)
        if counted[code].any()
    )


def _tenths(picture: Picture) -> Ints:
    """For each row, how many tenths of its host's fullest class are used; ten if it is full."""
    rows = picture.columns.rows
    fullest = np.zeros(rows)
    for stock in picture.columns.stocks.values():
        capacity = stock.capacity[:rows]
        share = np.divide(
            stock.used[:rows], capacity, out=np.zeros(rows), where=capacity > 0, casting="unsafe"
        )
        np.maximum(fullest, share, out=fullest)
    return np.minimum((fullest * FILL_PARTS).astype(np.int64), FILL_PARTS)


def tiles_of(hosts: Iterable[HostState], picture: Picture) -> dict[str, list[tuple[str, str]]]:
    """The hosts of each cell in the order of their names, each with its letter (`Tiles`)."""
    tenths = _tenths(picture).tolist()
    letters = {state: letter for letter, state in TILE_STATES.items()}
    found = defaultdict[str, list[tuple[str, str]]](list)
    for host in hosts:
        state = state_of(host)
        if state == "up":
            row = picture.row_of(host.id)
            is_there = row >= 0 and bool(picture.columns.provided[row])
            tile = _LEVELS[tenths[row]] if is_there else WITHOUT_PROVIDER
        else:
            tile = letters[state]
        found[host.cell].append((host.name, tile))
    for of_cell in found.values():
        of_cell.sort()
    return found


# Answers questions for an overview of the whole cloud.


# An overview is one message, and has more than workers.
WORKERS_BYTES_MAX = 128 * 1024


class Overviews:
    def __init__(
        self,
        name: str,
        store: SchedulerStore,
        picture: Picture,
        *,
        cells: CellRegistry,
        workers: WorkerRegistry,
        hosts: HostRegistry,
        clock: Callable[[], datetime],
    ) -> None:
        self._name = name
        self._store = store
        self._picture = picture
        self._cells = cells
        self._workers = workers
        self._hosts = hosts
        self._clock = clock
        self._overview = Kept(self._made)
        self._tiles = Kept(self._tiled)

    def handlers(self) -> Handlers:
        return {AskOverview: answering(self._answer), AskTiles: answering(self._answer_tiles)}

    async def _answer(self, ask: AskOverview) -> Overview:
        overview = await self._overview.get(once=ask.once)
        return structs.replace(overview, age_s=round(self._overview.age_s(), 3))

    async def _answer_tiles(self, ask: AskTiles) -> Tiles:
        made_at, by_cell = await self._tiles.get()
        hosts = by_cell.get(ask.in_cell, ())
        page = hosts[ask.skipped : ask.skipped + TILES_PER_PAGE_MAX]
        if ask.named and page:
            # Names may be long.
            page = page[: len(page_that_fits([name for name, _ in page]))]
        return Tiles(
            in_cell=ask.in_cell,
            made_at=made_at,
            tiles="".join([tile for _, tile in page]),
            skipped=ask.skipped,
            hosts=len(hosts),
            names=tuple([name for name, _ in page]) if ask.named else (),
        )

    async def _tiled(self) -> tuple[datetime, Mapping[str, Sequence[tuple[str, str]]]]:
        return self._clock(), tiles_of(self._hosts.rows(), self._picture)

    async def _made(self) -> Overview:
        counts = await self._store.instance_counts()
        work = await self._store.work_counts()
        everyone = self._workers.everyone()
        workers = page_that_fits(everyone, WORKERS_BYTES_MAX) if everyone else ()
        return Overview(
            made_at=self._clock(),
            scheduler=self._name,
            cells=tuple(cell_states(counts, self._cells, self._hosts)),
            workers=workers,
            workers_left_out=len(everyone) - len(workers),
            instances=tuple(counts),
            hosts=tuple(
                HostCount(state=state, cell=cell, kind=kind, count=count)
                for (cell, kind, state), count in sorted(count_by_state(self._hosts.rows()).items())
            ),
            # A host that is down counts: its instances are still there.
            uses=tuple(
                ClassUse(resource_class=name, cell=cell, used=each.used, capacity=each.capacity)
                for (cell, name), each in sorted(capacities(self._picture).items())
            ),
            fill=fill_of(self._picture),
            waiting=WaitsForRoom(count=work.waiting, oldest=work.oldest_wait),
            moving=dict(work.moves),
            stages=self._workers.stages.times(),
            shapes=shapes_of(self._picture),
        )


# Counts the cloud for the metrics: instances, hosts, capacity, what waits, moves, dead letters.
#
# One scheduler counts at a time, by a lease, and the others show none of these metrics. So several schedulers read the database
# no more often than one, and a sum over all workers counts nothing twice. Only schedulers whose metrics are read seek the
# lease. So a cloud that nobody watches is not counted, and the first page that is read lacks these metrics.


# Nobody reads the metrics: only a reader ends this pause.
QUIET_S = 24 * 3600.0
# A scheduler is watched as long as its metrics are read at least every so many periods.
WATCHED_PERIODS = 5
# The lease lasts so many periods: one count may come late.
LEASE_PERIODS = 2
# A page is seldom read more often; and the pause after a count is at least so many times as long as the count took.
COUNT_EVERY_S = 5.0
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
        clock: Callable[[], datetime],
        every_s: float = COUNT_EVERY_S,
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
