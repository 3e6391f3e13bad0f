"""Answers questions for an overview of the whole cloud."""

import asyncio
from collections.abc import Callable
from datetime import datetime

from bus.messages.overview import AskOverview, Overview, WaitsForRoom
from bus.workers.handling import Handlers, answering
from scheduler_worker.cells.questions import cell_states
from scheduler_worker.cells.registry import CellRegistry
from scheduler_worker.cells.workers import WorkerRegistry
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.hosts.registry import HostRegistry
from scheduler_worker.overview.counting import count_hosts, fill_of, uses_of
from scheduler_worker.store import SchedulerStore

# An overview is made anew only when it is this many times as old as it took to make: to watch a cloud, however large, costs
# a scheduler at most one part in so many of its time.
KEPT_FOR_TIMES = 200
KEPT_S_MIN = 1.0


class Overviews:
    """Makes overviews. All who ask while one is being made, or is still new, get the same."""

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
        self._last: Overview | None = None
        self._kept_until_s = 0.0
        self._lock = asyncio.Lock()

    def handlers(self) -> Handlers:
        return {AskOverview: answering(self._answer)}

    async def _answer(self, _: AskOverview) -> Overview:
        now_s = asyncio.get_running_loop().time
        async with self._lock:
            if self._last is None or now_s() >= self._kept_until_s:
                began_s = now_s()
                self._last = await self._made()
                self._kept_until_s = now_s() + max(KEPT_S_MIN, KEPT_FOR_TIMES * (now_s() - began_s))
            return self._last

    async def _made(self) -> Overview:
        counts = await self._store.instance_counts()
        work = await self._store.work_counts()
        return Overview(
            made_at=self._clock(),
            scheduler=self._name,
            cells=tuple(cell_states(counts, self._cells, self._hosts)),
            workers=self._workers.everyone(),
            instances=tuple(counts),
            hosts=count_hosts(self._hosts.rows()),
            uses=uses_of(self._picture),
            fill=fill_of(self._picture),
            waiting=WaitsForRoom(count=work.waiting, oldest=work.oldest_wait),
            moving=dict(work.moves),
        )
