"""`python -m cell_conductor`: the conductor of one cell, on the broker and the database that the environment names."""

import os
import sys
from collections.abc import Mapping, Sequence

from bus.addresses import addresses_for_main, broker_at
from bus.settings import BusSettings, settings_for_main
from bus.workers.connections import Station, process_name
from bus.workers.running import about, run_main, run_worker, tables_first, with_flags
from cell_conductor.settings import CONDUCTOR, ConductorSettings
from cell_conductor.store_sql import ConductorStore
from cell_conductor.wiring import conductor_parts
from kit.health import HEALTH_VARIABLE
from kit.sql import DatabaseSettings, upgrade


async def run(
    cell: str,
    bus_url: str,
    database_url: str,
    settings: ConductorSettings,
    *,
    bus: BusSettings | None = None,
    database: DatabaseSettings | None = None,
    health_at: str = "",
) -> None:
    store = ConductorStore(database_url, cell, settings=database)
    station = Station(broker_at(bus_url), process_name(f"conductor-{cell}"), asks=True, settings=bus)
    try:
        await run_worker(
            about("conductor", cell=cell, brokers=(bus_url,), database=database_url),
            (*conductor_parts(station, store, settings, cell, station.ask_all), station),
            station.settings.drain_ms_max / 1000,
            first=tables_first(upgrade, database_url, "cell_conductor", database),
            tells_by=station,
            health_at=health_at,
        )
    finally:
        await station.close()
        await store.close()


def main(environment: Mapping[str, str] = os.environ, arguments: Sequence[str] = ()) -> None:
    """Run the conductor of one cell, configured by environment variables.

    MOOR_CELL, MOOR_BUS_URL and MOOR_DB_URL must be set. If MOOR_CELL_BUS_URLS or MOOR_CELL_DB_URLS name this cell, the
    conductor uses those instead. MOOR_CONDUCTOR_*, MOOR_BUS_* and MOOR_DB_* are the settings.
    """
    environment = with_flags(environment, arguments, "cell_conductor")
    addresses = addresses_for_main(environment, "MOOR_CELL", "MOOR_BUS_URL", "MOOR_DB_URL")
    tuned, bus, database = settings_for_main(environment, CONDUCTOR)
    cell = environment["MOOR_CELL"]
    run_main(
        run(
            cell,
            addresses.bus_of(cell),
            addresses.db_of(cell),
            tuned,
            bus=bus,
            database=database,
            health_at=environment.get(HEALTH_VARIABLE, ""),
        )
    )


if __name__ == "__main__":
    main(arguments=sys.argv[1:])
