"""`python -m scheduler_worker`: a scheduler worker on the brokers and the database that the environment names."""

import os
import sys
from collections.abc import Mapping

from bus.places import Places, places_told
from bus.process import run_process, run_until_told
from bus.settings import BusSettings
from bus.sql import upgrade
from bus.station import close_all, stations_at
from bus.tuning import settings_told
from scheduler_worker.settings import SECTION, SchedulerSettings
from scheduler_worker.store_sql import SqlSchedulerStore
from scheduler_worker.wiring import scheduler_parts


async def run(places: Places, settings: SchedulerSettings, bus: BusSettings | None = None) -> None:
    await upgrade(places.db_url, "scheduler_worker")
    store = SqlSchedulerStore(places.db_url)
    station, cells = stations_at(places, "scheduler", asks=True, settings=bus)
    try:
        await run_until_told(
            scheduler_parts(station, store, settings, cells=cells), station.settings.drain_ms_max / 1000
        )
    finally:
        await close_all((station, *cells.values()))
        await store.close()


def main(environment: Mapping[str, str] = os.environ) -> int:
    """MOOR_BUS_URL and MOOR_DB_URL must be set; MOOR_CELL_BUS_URLS names the cells that have a broker of their own.
    MOOR_SCHEDULER_* and MOOR_BUS_* are the settings.
    """
    if (places := places_told(environment, "MOOR_BUS_URL", "MOOR_DB_URL")) is None:
        return 2
    if (settings := settings_told(environment, SECTION)) is None:
        return 2
    run_process(run(places, *settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
