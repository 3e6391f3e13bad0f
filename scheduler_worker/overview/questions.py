"""Answers questions for an overview of the whole cloud."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from msgspec import structs

from bus.messages.cells import page_that_fits
from bus.messages.overview import (
    TILES_PER_PAGE_MAX,
    AskOverview,
    AskTiles,
    Overview,
    Tiles,
    WaitsForRoom,
)
from bus.workers.handling import Handlers, answering
from scheduler_worker.cells.questions import cell_states
from scheduler_worker.cells.registry import CellRegistry
from scheduler_worker.cells.workers import WorkerRegistry
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.hosts.registry import HostRegistry
from scheduler_worker.overview.counting import count_hosts, fill_of, tiles_of, uses_of
from scheduler_worker.overview.kept import Kept
from scheduler_worker.store import SchedulerStore

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
            hosts=count_hosts(self._hosts.rows()),
            uses=uses_of(self._picture),
            fill=fill_of(self._picture),
            waiting=WaitsForRoom(count=work.waiting, oldest=work.oldest_wait),
            moving=dict(work.moves),
            stages=self._workers.stages.times(),
        )
