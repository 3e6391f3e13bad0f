"""`python -m placement_worker`: a placement worker on the brokers and the database that the environment names."""

import os
import sys
from collections.abc import Mapping

from bus.places import Places, places_told
from bus.process import run_process, run_until_told
from bus.sql import upgrade
from bus.station import close_all, stations_at
from placement_worker.serving import PlacementService, Serving
from placement_worker.settings import PlacementSettings
from placement_worker.store_sql import SqlPlacementStore
from placement_worker.wiring import placement_parts

SERVING_DRAIN_S_MAX = 30.0


async def run(places: Places, settings: PlacementSettings) -> None:
    await upgrade(places.db_url, "placement_worker")
    store = SqlPlacementStore(places.db_url)
    station, cells = stations_at(places, "placement")
    try:
        await run_until_told(
            placement_parts((station,), store, settings, cells=cells), station.settings.drain_ms_max / 1000
        )
    finally:
        await close_all((station, *cells.values()))
        await store.close()


async def serve(db_url: str, serving: Serving) -> None:
    """Placement over HTTP, until it is told to stop."""
    await upgrade(db_url, "placement_worker")
    store = SqlPlacementStore(db_url)
    try:
        await run_until_told((PlacementService(store, serving),), SERVING_DRAIN_S_MAX)
    finally:
        await store.close()


def main(environment: Mapping[str, str] = os.environ) -> int:
    """MOOR_BUS_URL and MOOR_DB_URL must be set; MOOR_CELL_BUS_URLS names the cells that have a broker of their own."""
    if (places := places_told(environment, "MOOR_BUS_URL", "MOOR_DB_URL")) is None:
        return 2
    run_process(run(places, PlacementSettings()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
