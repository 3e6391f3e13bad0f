"""`moor run`: runs one worker in this process, on real brokers and a real database."""

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Annotated, Literal

import click
from msgspec import structs

from bus.addresses import Addresses, check_cell
from cell_conductor.__main__ import run as run_conductor
from compute_sim.wiring import OpensHosts, driver_named
from compute_sim.wiring import run as run_compute
from ironic_sync.__main__ import run as run_ironic
from ironic_sync.store_sql import check_name
from keeper.__main__ import run as run_keeper
from moor.clouds.cloud import simulated_hosts
from moor.dashboard.service import DashboardFlags, dashboard_client, dashboard_options
from moor.dashboard.service import serve as serve_dashboard
from moor.flags import Commands
from moor.options import (
    BusUrl,
    Cells,
    DatabaseUrl,
    FaultsFile,
    IronicDatabaseUrl,
    IronicUrl,
    NetworkFlags,
    Operating,
    PlacementDatabaseUrl,
    PoolFlags,
    SchedulerFlags,
    broker_of,
    command_settings,
    compute_flags,
    fail,
    option_of,
    run_worker,
    scheduler_flags,
    tell,
    tuned,
    wrong_value,
)
from moor.placement.placement_api_options import ApiFlags, serving_of
from moor.settings import GENERAL
from moor.worker_settings import (
    BUS,
    COMPUTE,
    CONDUCTOR,
    DATABASE,
    IRONIC_DAEMONS,
    KEEPER,
    LIBVIRT,
    OPENSTACK,
    PLACEMENT,
    SCHEDULER,
    CloudSettings,
    environment_of,
)
from placement_worker import __main__ as placement_process
from scheduler_worker.__main__ import run as run_scheduler

app = Commands(
    "Run one worker until SIGTERM, which drains it. Run any number of each kind, but only one compute per cell. "
    "Placement and schedulers also connect to the cells' own brokers (MOOR_CELL_BUS_URLS); a cell's workers connect only to "
    "their cell's broker."
)

Cell = Annotated[str, option_of(GENERAL, "cell")]
DriverName = Literal["simulated", "libvirt"]


@app.verb()
def placement(
    bus: BusUrl = "",
    db: DatabaseUrl = "",
    placement_db: PlacementDatabaseUrl = "",
    *,
    operating: Operating,
) -> None:
    """Placement: claims, swaps, inventories, and the feed of changes."""
    operating.begin()
    addresses = _stated(bus, db, placement_db=placement_db)
    _require_database("placement", addresses.placement_db)
    run_worker(
        placement_process.run(
            addresses, tuned(PLACEMENT), tuned(BUS), tuned(DATABASE), operating.health_listen
        )
    )


@app.verb()
def scheduler(
    bus: BusUrl = "",
    db: DatabaseUrl = "",
    *,
    settings: SchedulerFlags = None,
    operating: Operating,
) -> None:
    """A scheduler: chooses hosts and hands builds over to the cells. Each setting also has a variable, MOOR_SCHEDULER_..."""
    operating.begin()
    scheduling = tuned(SCHEDULER, others=scheduler_flags(settings))
    addresses = _stated(bus, db)
    _require_database("scheduler", addresses.db_url)
    run_worker(run_scheduler(addresses, scheduling, tuned(BUS), tuned(DATABASE), operating.health_listen))


@app.verb()
def conductor(
    bus: BusUrl = "",
    db: DatabaseUrl = "",
    *,
    cell: Cell = "",
    operating: Operating,
) -> None:
    """A conductor, which owns the instances of one cell."""
    operating.begin()
    _require_one(cell, "conductor")
    addresses = _stated(bus, db)
    url, database = addresses.bus_of(cell), addresses.db_of(cell)
    _require_database("conductor", database)
    run_worker(
        run_conductor(
            cell,
            url,
            database,
            tuned(CONDUCTOR),
            bus=tuned(BUS),
            database=tuned(DATABASE),
            health_at=operating.health_listen,
        )
    )


@app.verb()
def compute(
    bus: BusUrl = "",
    db: DatabaseUrl = "",
    *,
    cell: Cell = "",
    driver: Annotated[DriverName, option_of(GENERAL, "compute_driver")] = "simulated",
    uri: Annotated[str | None, option_of(LIBVIRT, "hosts", show_default=False)] = None,
    folder: Annotated[
        str | None, option_of(LIBVIRT, "folder", "--folder", metavar="DIR", show_default=False)
    ] = None,
    hosts: Annotated[int, option_of(GENERAL, "compute_hosts", min=1)] = 100,
    host_size: Annotated[str, option_of(GENERAL, "compute_host_size", metavar="NAME=VALUE,...")] = "",
    host_place: Annotated[str, option_of(GENERAL, "compute_place", metavar="PLACE")] = "",
    faults: FaultsFile = None,
    pool: PoolFlags = None,
    network: NetworkFlags = None,
    operating: Operating,
) -> None:
    """A compute process: it controls the hosts of one cell. They are simulated, or machines with libvirt."""
    operating.begin()
    _require_one(cell, "compute")
    addresses = _stated(bus, db)
    # The cell is no setting of its own.
    settings = structs.replace(tuned(COMPUTE, others=compute_flags(pool, network)), cell=cell)
    variables = {"MOOR_CELL": cell} | simulated_hosts(hosts, host_size, host_place, faults)
    kept = CloudSettings(database=tuned(DATABASE))
    if driver == "libvirt":
        kept = structs.replace(kept, libvirt=tuned(LIBVIRT, hosts=uri, folder=folder))
    variables |= environment_of(kept, {}) | {"MOOR_DB_URL": addresses.db_of(cell)}
    for flag, given in (("--uri", uri), ("--folder", folder)):
        if given is not None and driver != "libvirt":
            raise click.BadParameter(
                f"{flag} is {given!r}, but the hosts are simulated: name --driver libvirt, too"
            )
    with wrong_value():
        opens = _driver(driver, variables)
    url = addresses.bus_of(cell)
    run_worker(run_compute(url, settings, opens, bus=tuned(BUS), health_at=operating.health_listen))


@app.verb()
def ironic(
    bus: BusUrl = "",
    db: DatabaseUrl = "",
    ironic_db: IronicDatabaseUrl = "",
    *,
    name: Annotated[str, option_of(GENERAL, "ironic_name")] = "",
    operating: Operating,
) -> None:
    """A daemon that reports bare-metal nodes to placement. Several daemons share the nodes.

    MOOR_IRONIC_BUS_URL is Ironic's broker, if not --bus. MOOR_IRONIC_URL is its REST API; without it, only notifications
    count. MOOR_IRONIC_CELL, MOOR_IRONIC_GROUPS and MOOR_IRONIC_SHARDS say which cell a node belongs to. If MOOR_CELLS names only
    one cell, that is the default.
    """
    operating.begin()
    addresses = _stated(bus, db, ironic_db=ironic_db)
    _require_database("ironic", addresses.ironic_db)
    with wrong_value("--name, or MOOR_IRONIC_NAME: "):
        check_name(name)
    run_worker(
        run_ironic(
            addresses,
            name,
            tuned(IRONIC_DAEMONS),
            account=tuned(OPENSTACK),
            bus=tuned(BUS),
            database=tuned(DATABASE),
            health_at=operating.health_listen,
        )
    )


@app.verb()
def keeper(bus: BusUrl = "", db: DatabaseUrl = "", *, operating: Operating) -> None:
    """A keeper: campaigns that empty hosts, and budgets for what moves. Any number of keepers share the campaigns.

    MOOR_KEEPER_HOOKS_FOLDER is the folder with the programs that campaigns may run for an empty host.
    """
    operating.begin()
    addresses = _stated(bus, db)
    _require_database("keeper", addresses.db_url)
    run_worker(run_keeper(addresses, tuned(KEEPER), tuned(BUS), tuned(DATABASE), operating.health_listen))


@app.verb("placement-api")
def placement_api(
    bus: BusUrl = "",
    db: DatabaseUrl = "",
    placement_db: PlacementDatabaseUrl = "",
    *,
    api: ApiFlags,
    operating: Operating,
) -> None:
    """OpenStack Placement's HTTP API. It needs only the database: the placement workers publish its writes on the bus."""
    operating.begin()
    addresses = _stated(bus, db, placement_db=placement_db)
    _require_database("placement-api", addresses.placement_db)
    serving = serving_of(api, tuned(PLACEMENT))
    run_worker(
        placement_process.serve(addresses.placement_db, serving, tuned(DATABASE), operating.health_listen)
    )


@app.verb()
def dashboard(
    bus: BusUrl = "",
    cells: Cells = "",
    ironic: IronicUrl = "",
    ironic_db: IronicDatabaseUrl = "",
    *,
    web: DashboardFlags,
    operating: Operating,
) -> None:
    """The web dashboard. It needs only the bus, as an operator; as an admin application, it can set no hosts and see no dead letters.

    For its pages of bare-metal nodes it needs the daemons' database, too.
    """
    operating.begin()
    settings = command_settings(bus=bus, cells=cells, ironic=ironic, ironic_db=ironic_db)
    broker_of(settings.bus_url)
    run_worker(
        serve_dashboard(
            lambda: dashboard_client(settings.bus_url),
            lambda: dashboard_client(settings.bus_url, as_operator=True),
            settings,
            dashboard_options(web),
            health_at=operating.health_listen,
            show=tell,
        )
    )


for each in entry_points(group="moorage.workers"):
    app.verb(each.name)(each.load())


def _driver(name: DriverName, variables: Mapping[str, str]) -> OpensHosts:
    try:
        return driver_named(name, variables)
    except ImportError as missing:
        # It needs libvirt's own library, which other workers do not have.
        fail(
            f"{missing}: a compute with libvirt needs the package libvirt-python: pip install 'moorage[libvirt]'"
        )


def _require_database(worker: str, url: str) -> None:
    if not url:
        raise click.BadParameter(f"no database is named: a {worker} worker needs --db or MOOR_DB_URL")


def _stated(bus: str, db: str, *, placement_db: str = "", ironic_db: str = "") -> Addresses:
    settings = command_settings(bus=bus, db=db, placement_db=placement_db, ironic_db=ironic_db)
    return structs.replace(settings.addresses, bus_url=settings.bus_url)


def _require_one(cell: str, worker: str) -> None:
    if not cell or "," in cell:
        raise click.BadParameter(f"--cell (MOOR_CELL) is {cell!r}: a {worker} needs exactly one cell")
    with wrong_value(f"--cell (MOOR_CELL) is {cell!r}: "):
        check_cell(cell)
