"""`python -m cell_conductor`: the conductor of one cell, on the broker and the database that the environment names."""

import asyncio
import os
import sys
from collections.abc import Mapping

from bus.process import is_ready, run_until_told
from bus.sql import upgrade
from bus.station import Station, process_name
from bus.urls import broker_at
from cell_conductor.settings import ConductorSettings
from cell_conductor.store_sql import SqlConductorStore
from cell_conductor.wiring import conductor_parts


async def run(cell: str, bus_url: str, database_url: str, settings: ConductorSettings) -> None:
    await upgrade(database_url, "cell_conductor")
    store = SqlConductorStore(database_url, cell)
    station = Station(broker_at(bus_url), process_name(f"conductor-{cell}"), asks=True)
    try:
        await run_until_told(
            (*conductor_parts(station, store, settings, cell, station.ask_all), station),
            station.settings.drain_ms_max / 1000,
        )
    finally:
        await station.close()
        await store.close()


def main(environment: Mapping[str, str] = os.environ) -> int:
    if not is_ready(environment, "MOOR_CELL", "MOOR_BUS_URL", "MOOR_DB_URL"):
        return 2
    asyncio.run(
        run(
            environment["MOOR_CELL"],
            environment["MOOR_BUS_URL"],
            environment["MOOR_DB_URL"],
            ConductorSettings(),
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
