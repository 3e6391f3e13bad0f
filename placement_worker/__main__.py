"""`python -m placement_worker`: a placement worker on the broker and the database that the environment names."""

import asyncio
import os
import sys
from collections.abc import Mapping

from bus.process import is_ready, run_until_told
from bus.sql import upgrade
from bus.station import Station, process_name
from bus.urls import broker_at
from placement_worker.settings import PlacementSettings
from placement_worker.store_sql import SqlPlacementStore
from placement_worker.wiring import placement_parts


async def run(bus_url: str, database_url: str, settings: PlacementSettings) -> None:
    await upgrade(database_url, "placement_worker")
    store = SqlPlacementStore(database_url)
    station = Station(broker_at(bus_url), process_name("placement"))
    try:
        await run_until_told(
            placement_parts((station,), store, settings), station.settings.drain_ms_max / 1000
        )
    finally:
        await station.close()
        await store.close()


def main(environment: Mapping[str, str] = os.environ) -> int:
    if not is_ready(environment, "MOOR_BUS_URL", "MOOR_DB_URL"):
        return 2
    asyncio.run(run(environment["MOOR_BUS_URL"], environment["MOOR_DB_URL"], PlacementSettings()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
