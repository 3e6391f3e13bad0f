"""`python -m cell_conductor`: the conductor of one cell, on the broker and the database that the environment names."""

import asyncio
import logging
import os
import sys
from collections.abc import Mapping

from bus.process import run_until_told
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
    logging.basicConfig(
        level=environment.get("MOOR_LOG_LEVEL", "INFO"),
        format="%(asctime)s %(name)s %(levelname)s %(message)s",
    )
    missing = [name for name in ("MOOR_CELL", "MOOR_BUS_URL", "MOOR_DB_URL") if not environment.get(name)]
    if missing:
        sys.stderr.write(
            f"{' and '.join(missing)} must be set: which cell it is, and where its broker and its database are\n"
        )
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
