"""Looks which cells are down, tells it in health and metrics, and keeps in the database when each was last heard."""

import random
from collections.abc import Sequence
from datetime import timedelta

from bus.errors import Unavailable
from bus.parts import Periodic, Status
from scheduler_worker.cells.registry import CellRegistry
from scheduler_worker.hosts.registry import HostRegistry
from scheduler_worker.store import SchedulerStore

# A row is written again when it is so much behind: a worker that starts needs no better.
WRITTEN_AGAIN_AFTER = timedelta(seconds=15)


class CellWatch(Periodic):
    """Looks at an interval which cells are down. In `parts` is one health status for each cell; it fails while the cell
    is down, and does not keep the worker from being ready.
    """

    def __init__(
        self,
        store: SchedulerStore,
        cells: CellRegistry,
        hosts: HostRegistry,
        poll_s: float,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__("look at cells", self._look, poll_s, chance=chance)
        self._store = store
        self._cells = cells
        self._hosts = hosts
        self._statuses: dict[str, Status] = {}

    @property
    def parts(self) -> Sequence[object]:
        return tuple(self._statuses.values())

    async def _look(self) -> None:
        try:
            await self._refresh()
        finally:
            # A cell may fall silent while the database cannot be read, and computes may run where no conductor does.
            self._cells.learn_names(self._hosts.cells_heard)
            self._cells.look()
            self._tell_health()

    async def _refresh(self) -> None:
        written = {row.name: row for row in await self._store.cells()}
        self._cells.learn(written.values())
        behind = [
            row
            for row in self._cells.rows()
            if row.name not in written or row.heard_at - written[row.name].heard_at >= WRITTEN_AGAIN_AFTER
        ]
        if behind:
            async with self._store.transaction() as transaction:
                await transaction.save_cells(behind)

    def _tell_health(self) -> None:
        down = self._cells.down
        for name in self._cells.names:
            status = self._statuses.get(name)
            if status is None:
                status = self._statuses[name] = Status(f"cell {name}", is_beside=True)
            if name in down:
                status.failed(Unavailable(down[name]))
            else:
                status.well()
