"""The connections, the database and the settings that all parts of a scheduler worker are made of."""

import random
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct

from bus.configuration.sections import BadSetting
from bus.configuration.settings import BusSettings
from bus.workers.station import Station
from scheduler_worker.core.choosing.plugins import Plugins
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store import SchedulerStore


class Given(Struct, frozen=True):
    """`station` is on the API level's broker. `cells` has the station of each cell that has a broker of its own; `cells_at` has
    the names of the cells at each of these stations.
    """

    station: Station
    cells: Mapping[str, Station]
    cells_at: Mapping[Station, tuple[str, ...]]
    store: SchedulerStore
    settings: SchedulerSettings
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
