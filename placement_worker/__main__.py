"""`python -m placement_worker`: a placement worker on the brokers and the database that the environment names."""

import os
import sys
from collections.abc import Mapping

from bus.places import Places, places_told
from bus.process import run_process, run_until_told
from bus.settings import BusSettings
from bus.sql import upgrade
from bus.station import close_all, stations_at
from bus.tuning import settings_told
from placement_worker.serving import PlacementService, Serving
from placement_worker.settings import SECTION, PlacementSettings
from placement_worker.store_sql import SqlPlacementStore
from placement_worker.wiring import placement_parts

SERVING_DRAIN_S_MAX = 30.0


async def run(places: Places, settings: PlacementSettings, bus: BusSettings | None = None) -> None:
    await upgrade(places.placement_db, "placement_worker")
    store = SqlPlacementStore(places.placement_db)
    station, cells = stations_at(places, "placement", settings=bus)
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
    """MOOR_BUS_URL and MOOR_DB_URL must be set; where MOOR_PLACEMENT_DB_URL names another database, the tables are there.
    MOOR_CELL_BUS_URLS names the cells that have a broker of their own. MOOR_PLACEMENT_* and MOOR_BUS_* are the settings.
    """
    database = "MOOR_PLACEMENT_DB_URL" if environment.get("MOOR_PLACEMENT_DB_URL") else "MOOR_DB_URL"
    if (places := places_told(environment, "MOOR_BUS_URL", database)) is None:
        return 2
    if (settings := settings_told(environment, SECTION)) is None:
        return 2
    run_process(run(places, *settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
