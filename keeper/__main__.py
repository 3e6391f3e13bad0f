"""`python -m keeper`: a keeper on the broker and the database that the environment names."""

import os
import sys
from collections.abc import Mapping, Sequence

from bus.addresses import Addresses, addresses_for_main, broker_at
from bus.settings import BusSettings, settings_for_main
from bus.workers.connections import Station, process_name
from bus.workers.running import about, run_main, run_worker, tables_first, with_flags
from keeper.settings import KEEPER, KeeperSettings
from keeper.store_sql import KeeperStore
from keeper.wiring import keeper_parts
from kit.health import HEALTH_VARIABLE
from kit.sql import DatabaseSettings, upgrade


async def run(
    addresses: Addresses,
    settings: KeeperSettings,
    bus: BusSettings | None = None,
    database: DatabaseSettings | None = None,
    health_at: str = "",
) -> None:
    store = KeeperStore(addresses.db_url, settings=database)
    station = Station(broker_at(addresses.bus_url), process_name("keeper"), asks=True, settings=bus)
    try:
        await run_worker(
            about("keeper", brokers=(addresses.bus_url,), database=addresses.db_url),
            keeper_parts(station, store, settings),
            station.settings.drain_ms_max / 1000,
            first=tables_first(upgrade, addresses.db_url, "keeper", database),
            tells_by=station,
            health_at=health_at,
        )
    finally:
        await station.close()
        await store.close()


def main(environment: Mapping[str, str] = os.environ, arguments: Sequence[str] = ()) -> None:
    """Run a keeper until it is told to stop.

    MOOR_BUS_URL and MOOR_DB_URL must be set. MOOR_KEEPER_*, MOOR_BUS_* and MOOR_DB_* are the settings.
    """
    environment = with_flags(environment, arguments, "keeper")
    addresses = addresses_for_main(environment, "MOOR_BUS_URL", "MOOR_DB_URL")
    settings = settings_for_main(environment, KEEPER)
    run_main(run(addresses, *settings, environment.get(HEALTH_VARIABLE, "")))


if __name__ == "__main__":
    main(arguments=sys.argv[1:])
