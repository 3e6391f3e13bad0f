"""`python -m placement_worker`: a placement worker on the brokers and the database that the environment names."""

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from bus.addresses import Addresses, addresses_for_main
from bus.settings import BusSettings, settings_for_main
from bus.workers.connections import close_all, stations_at
from bus.workers.running import about, run_main, run_worker, tables_first, with_flags
from kit.health import HEALTH_VARIABLE
from kit.sql import DatabaseSettings, upgrade
from placement_worker.api.service import PlacementService, ServiceOptions
from placement_worker.settings import PLACEMENT, PlacementSettings
from placement_worker.store_sql import PlacementStore
from placement_worker.wiring import placement_parts, pruner

SERVING_DRAIN_S_MAX = 30.0


async def run(
    addresses: Addresses,
    settings: PlacementSettings,
    bus: BusSettings | None = None,
    database: DatabaseSettings | None = None,
    health_at: str = "",
) -> None:
    store = PlacementStore(addresses.placement_db, settings=database)
    station, cells = stations_at(addresses, "placement", settings=bus)
    try:
        await run_worker(
            about(
                "placement",
                brokers=(addresses.bus_url, *addresses.cell_bus_urls.values()),
                database=addresses.placement_db,
            ),
            placement_parts((station,), store, settings, cells=cells),
            station.settings.drain_ms_max / 1000,
            first=tables_first(upgrade, addresses.placement_db, "placement_worker", database),
            stations=(station, *cells.values()),
            tells_by=station,
            health_at=health_at,
        )
    finally:
        await close_all((station, *cells.values()))
        await store.close()


async def serve(
    db_url: str, serving: ServiceOptions, database: DatabaseSettings | None = None, health_at: str = ""
) -> None:
    """Serve placement over HTTP, until the process is told to stop."""
    store = PlacementStore(db_url, settings=database)
    # There may be no placement worker, which would publish the log.
    prune = partial(store.prune, unpublished_too=True)
    try:
        await run_worker(
            about("placement-api", database=db_url),
            (PlacementService(store, serving), pruner(prune, serving.settings)),
            SERVING_DRAIN_S_MAX,
            first=tables_first(upgrade, db_url, "placement_worker", database),
            health_at=health_at,
        )
    finally:
        await store.close()


def main(environment: Mapping[str, str] = os.environ, arguments: Sequence[str] = ()) -> None:
    """Run a placement worker, configured by environment variables.

    MOOR_BUS_URL and MOOR_DB_URL must be set. MOOR_PLACEMENT_DB_URL may name another database for placement's tables.
    MOOR_CELL_BUS_URLS names the cells with brokers of their own. MOOR_PLACEMENT_*, MOOR_BUS_* and MOOR_DB_* are settings.
    """
    environment = with_flags(environment, arguments, "placement_worker")
    database = "MOOR_PLACEMENT_DB_URL" if environment.get("MOOR_PLACEMENT_DB_URL") else "MOOR_DB_URL"
    addresses = addresses_for_main(environment, "MOOR_BUS_URL", database)
    settings = settings_for_main(environment, PLACEMENT)
    run_main(run(addresses, *settings, environment.get(HEALTH_VARIABLE, "")))


if __name__ == "__main__":
    main(arguments=sys.argv[1:])
