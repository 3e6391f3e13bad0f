"""`python -m scheduler_worker`: a scheduler worker on the broker and the database that the environment names."""

import asyncio
import os
import sys
from collections.abc import Mapping

from bus.process import is_ready, run_until_told
from bus.sql import upgrade
from bus.station import Station, process_name
from bus.urls import broker_at
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store_sql import SqlSchedulerStore
from scheduler_worker.wiring import scheduler_parts


async def run(bus_url: str, database_url: str, settings: SchedulerSettings) -> None:
    await upgrade(database_url, "scheduler_worker")
    store = SqlSchedulerStore(database_url)
    station = Station(broker_at(bus_url), process_name("scheduler"), asks=True)
    try:
        await run_until_told(scheduler_parts(station, store, settings), station.settings.drain_ms_max / 1000)
    finally:
        await station.close()
        await store.close()


def main(environment: Mapping[str, str] = os.environ) -> int:
    if not is_ready(environment, "MOOR_BUS_URL", "MOOR_DB_URL"):
        return 2
    asyncio.run(run(environment["MOOR_BUS_URL"], environment["MOOR_DB_URL"], SchedulerSettings()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
