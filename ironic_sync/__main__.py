"""`python -m ironic_sync`: runs a bare-metal daemon on the brokers and the database that the environment names."""

import logging
import os
import secrets
import sys
from collections.abc import Mapping, Sequence

from bus.addresses import Addresses, addresses_for_main, broker_at
from bus.settings import BusSettings, settings_for_main
from bus.workers.connections import close_all, stations_at
from bus.workers.running import about, run_main, run_worker, tables_first, with_flags
from bus.workers.sending import Link
from ironic_sync.core.offers import CellMap, cell_map
from ironic_sync.rest import ironic_api
from ironic_sync.settings import IRONIC_DAEMONS, DaemonRules, IronicSettings
from ironic_sync.store_sql import IronicStore, check_name
from ironic_sync.wiring import ironic_parts
from kit.health import HEALTH_VARIABLE
from kit.keystone import OPENSTACK, OpenStackSettings
from kit.process import exiting_if_wrong
from kit.settings import BadSetting
from kit.sql import DatabaseSettings, upgrade

NAME = "MOOR_IRONIC_NAME"

log = logging.getLogger(__name__)


async def run(
    addresses: Addresses,
    name: str,
    settings: IronicSettings,
    *,
    account: OpenStackSettings | None = None,
    bus: BusSettings | None = None,
    database: DatabaseSettings | None = None,
    health_at: str = "",
) -> None:
    cells = _cells(addresses)
    store = IronicStore(addresses.ironic_db, settings=database or DatabaseSettings())
    station, in_cells = stations_at(addresses, "ironic", asks=True, settings=bus)
    link = Link(
        broker_at(addresses.ironic_bus), station.settings, name="connection to Ironic", chance=station.chance
    )
    api = ironic_api(addresses, account or OpenStackSettings())
    try:
        await run_worker(
            about(
                "ironic",
                brokers=(addresses.bus_url, addresses.ironic_bus, *addresses.cell_bus_urls.values()),
                database=addresses.ironic_db,
            ),
            ironic_parts(
                station,
                link,
                store,
                DaemonRules.of(settings),
                name=name,
                incarnation=secrets.token_hex(8),
                cells=cells,
                api=api,
                in_cells=in_cells,
            ),
            station.settings.drain_ms_max / 1000,
            first=tables_first(upgrade, addresses.ironic_db, "ironic_sync", database),
            stations=(link, *in_cells.values()),
            tells_by=station,
            health_at=health_at,
        )
    finally:
        await close_all((station, *in_cells.values()))
        await link.close()
        if api is not None:
            await api.close()
        await store.close()


def _cells(addresses: Addresses) -> CellMap:
    """The cells of nodes. Raises BadSetting if no node could have one, and logs cells that nothing else names."""
    cells = cell_map(
        addresses.cells,
        default=addresses.ironic_cell,
        groups=addresses.ironic_groups,
        shards=addresses.ironic_shards,
    )
    listed = ", ".join(addresses.cells)
    if not cells.names:
        raise BadSetting(
            "ironic_cell",
            "",
            "not set",
            "no bare-metal node would have a cell, so none would be offered: name the cell (MOOR_IRONIC_CELL), or the cell of "
            "each conductor group (MOOR_IRONIC_GROUPS) or shard (MOOR_IRONIC_SHARDS)"
            + (f"; the cells are {listed}" if listed else "; or the only cell of the cloud (MOOR_CELLS)"),
        )
    if addresses.cells and (unknown := [each for each in cells.names if each not in addresses.cells]):
        log.warning(
            "nodes go to cells that MOOR_CELLS does not name: %s; it names %s", ", ".join(unknown), listed
        )
    log.info("nodes of no other conductor group or shard go to cell %s", cells.default or "(none)")
    return cells


def main(environment: Mapping[str, str] = os.environ, arguments: Sequence[str] = ()) -> None:
    """MOOR_BUS_URL, MOOR_DB_URL (or MOOR_IRONIC_DB_URL) and MOOR_IRONIC_NAME must be set.

    MOOR_IRONIC_BUS_URL is Ironic's broker, if it is another one. MOOR_IRONIC_URL is its REST API. MOOR_IRONIC_CELL,
    MOOR_IRONIC_GROUPS and MOOR_IRONIC_SHARDS say which cell a node belongs to; the only cell in MOOR_CELLS is the default.
    MOOR_CELL_BUS_URLS says which cells have their own broker. The other MOOR_IRONIC_*, MOOR_OPENSTACK_* and MOOR_BUS_* variables are settings.
    """
    environment = with_flags(environment, arguments, "ironic_sync")
    has_own = bool(environment.get("MOOR_IRONIC_DB_URL"))
    database = "MOOR_IRONIC_DB_URL" if has_own else "MOOR_DB_URL"
    addresses = addresses_for_main(environment, "MOOR_BUS_URL", database, NAME)
    settings, bus, database_settings = settings_for_main(environment, IRONIC_DAEMONS)
    name = environment[NAME]
    with exiting_if_wrong(f"{NAME}: "):
        check_name(name)
    with exiting_if_wrong():
        account = OPENSTACK.read(environment)
    run_main(
        run(
            addresses,
            name,
            settings,
            account=account,
            bus=bus,
            database=database_settings,
            health_at=environment.get(HEALTH_VARIABLE, ""),
        )
    )


if __name__ == "__main__":
    main(arguments=sys.argv[1:])
