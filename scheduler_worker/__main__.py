"""`python -m scheduler_worker`: a scheduler worker on the brokers and the database that the environment names."""

import os
import sys
from collections.abc import Mapping, Sequence

from bus.addresses import Addresses, addresses_for_main
from bus.settings import BusSettings, settings_for_main
from bus.workers.connections import close_all, stations_at
from bus.workers.running import about, run_main, run_worker, tables_first, with_flags
from kit.health import HEALTH_VARIABLE
from kit.sql import DatabaseSettings, upgrade
from scheduler_worker.settings import SCHEDULER, SchedulerSettings
from scheduler_worker.store_sql import SchedulerStore
from scheduler_worker.wiring import scheduler_parts


async def run(
    addresses: Addresses,
    settings: SchedulerSettings,
    bus: BusSettings | None = None,
    database: DatabaseSettings | None = None,
    health_at: str = "",
) -> None:
    store = SchedulerStore(addresses.db_url, settings=database)
    station, cells = stations_at(addresses, "scheduler", asks=True, settings=bus)
    try:
        await run_worker(
            about(
                "scheduler",
                brokers=(addresses.bus_url, *addresses.cell_bus_urls.values()),
                database=addresses.db_url,
            ),
            scheduler_parts(station, store, settings, cells=cells),
            station.settings.drain_ms_max / 1000,
            first=tables_first(upgrade, addresses.db_url, "scheduler_worker", database),
            tells_by=station,
            health_at=health_at,
        )
    finally:
        await close_all((station, *cells.values()))
        await store.close()


def main(environment: Mapping[str, str] = os.environ, arguments: Sequence[str] = ()) -> None:
    """Run a scheduler worker until it is told to stop.

    MOOR_BUS_URL and MOOR_DB_URL must be set; MOOR_CELL_BUS_URLS names the cells that have a broker of their own.
    MOOR_SCHEDULER_*, MOOR_BUS_* and MOOR_DB_* are the settings.
    """
    environment = with_flags(environment, arguments, "scheduler_worker")
    addresses = addresses_for_main(environment, "MOOR_BUS_URL", "MOOR_DB_URL")
    settings = settings_for_main(environment, SCHEDULER)
    run_main(run(addresses, *settings, environment.get(HEALTH_VARIABLE, "")))


if __name__ == "__main__":
    main(arguments=sys.argv[1:])
