"""`moor up`: runs the whole cloud in this process, with all its data in one directory.

- bus.journal: the messages on the bus.
- bus.sock: the socket by which other commands reach the bus.
- moor.db: the tables of all workers, including the instances on simulated hosts.
- ironic.nodes: the nodes of the simulated Ironic, if there is one.
- ironic.url: the address of its REST API, while it runs.

After a kill at any moment, a restart on the same directory continues where it was.
"""

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import click
from rich.markup import escape

from bus.definitions import rights_by_user
from bus.memory import (
    JournalTakenError,
    JournalUnreadableError,
    JournalWriteError,
    MemoryBroker,
    journaled_broker,
)
from bus.settings import BusSettings
from bus.topology import objects_of, user_of
from bus.unix_socket.server import SocketTakenError, serve_unix
from bus.workers.running import about, traced
from engine.hosts import NODE
from ironic_sync.core.offers import CellMap
from kit.health import BadAddressError, Health
from kit.health_server import HealthServer
from kit.process import Part, hangups_heard, stopped_by_signals
from moor.client import LOCAL, Rejected
from moor.clouds.cloud import (
    SMALL,
    BareMetalPlan,
    CloudPlan,
    RunningCloud,
    cells_of_groups,
    cloud,
    flavor_of_nodes,
)
from moor.dashboard.service import (
    OFF,
    DashboardFlags,
    DashboardOptions,
    DashboardService,
    dashboard_client,
    dashboard_options,
)
from moor.flags import option
from moor.options import (
    IRONIC_LISTEN,
    BusUrl,
    Cells,
    DatabaseUrl,
    FaultsFile,
    IronicListenAt,
    NetworkFlags,
    Operating,
    PlacementDatabaseUrl,
    PoolFlags,
    SchedulerFlags,
    client,
    command_settings,
    fail,
    option_of,
    out,
    read_listen,
    run,
    say,
    tuned,
    tuned_cloud,
    wrong_value,
)
from moor.placement.placement_api_options import ApiFlags, serving_of
from moor.settings import GENERAL, Settings
from moor.worker_settings import PLACEMENT, CloudSettings
from placement_worker.api.service import PlacementService, ServiceOptions
from placement_worker.store_sql import PlacementStore

DEFAULT_CELLS = ("harbour", "island")
JOURNAL = "bus.journal"
NODES = "ironic.nodes"

# All workers are in this process, so answers are fast and timeouts can be short. After a kill and restart, the workers then
# soon repeat the questions that were open.
IN_ONE_PROCESS = CloudSettings(
    bus=BusSettings(answer_timeout_ms=4_000.0),
)


def up(
    bus: BusUrl = "",
    db: DatabaseUrl = "",
    cells: Cells = "",
    placement_db: PlacementDatabaseUrl = "",
    *,
    hosts: Annotated[int, option_of(GENERAL, "compute_hosts", min=1, max=10_000)] = 20,
    host_size: Annotated[str, option_of(GENERAL, "compute_host_size", metavar="NAME=VALUE,...")] = "",
    host_place: Annotated[str, option_of(GENERAL, "compute_place", metavar="PLACE")] = "",
    faults: FaultsFile = None,
    nodes: Annotated[
        int, option(min=0, max=10_000, help="How many bare-metal nodes a simulated Ironic has.")
    ] = 0,
    daemons: Annotated[int, option(min=1, max=50, help="How many bare-metal daemons share these nodes.")] = 1,
    ironic_listen: IronicListenAt = IRONIC_LISTEN,
    data: Annotated[str, option_of(GENERAL, "data", show_default=False)] = "",
    scheduler: SchedulerFlags = None,
    pool: PoolFlags = None,
    network: NetworkFlags = None,
    api: ApiFlags,
    web: DashboardFlags,
    operating: Operating,
    verbose: Annotated[bool, option("--verbose", "-v", help="Log what the workers do.")] = False,
) -> None:
    """Run a whole cloud in this process: bus, placement, schedulers, cells and simulated hosts. Its data survive a restart.

    With --nodes it also has bare-metal nodes in a simulated Ironic, for `moor node` and `moor boot --flavor metal`.
    """
    operating.begin("INFO" if verbose else "WARNING")
    settings = command_settings(bus=bus, db=db, placement_db=placement_db, cells=cells, data=data)
    socket = _socket(settings)
    serving = serving_of(api, tuned(PLACEMENT))
    pages = None if web.dashboard_listen == OFF else dashboard_options(web)
    names = settings.addresses.cells or DEFAULT_CELLS
    plan = CloudPlan(
        cells=dict.fromkeys(names, hosts),
        host_size=host_size,
        host_place=host_place,
        faults=faults,
        metal=_metal(settings, nodes, daemons, ironic_listen, names) if nodes else None,
        settings=tuned_cloud(IN_ONE_PROCESS, scheduler, pool, network),
        keeps_hosts=True,
    )
    with wrong_value():
        plan.opens(names[0], "")
    run(_up(settings, plan, socket, serving=serving, web=pages, health_at=operating.health_listen))


async def _up(
    settings: Settings,
    plan: CloudPlan,
    socket: Path,
    *,
    serving: ServiceOptions,
    web: DashboardOptions | None,
    health_at: str,
) -> None:
    out.print(
        f"[bold]Moorage[/bold]: {sum(plan.cells.values())} simulated hosts in "
        f"{len(plan.cells)} {'cell' if len(plan.cells) == 1 else 'cells'} ({', '.join(plan.cells)}), data in {escape(str(settings.data))}",
        soft_wrap=True,
    )
    with (
        traced(about("moor up")),
        hangups_heard(),
        stopped_by_signals() as stop,
        _opened_broker(settings.data / JOURNAL, plan.cells) as broker,
    ):

        def beside(made: RunningCloud) -> list[Part]:
            """The dashboard, the HTTP service, and the health of all parts."""
            _announce_metal(settings, made)
            others: list[Part] = [_dashboard(settings, web, broker)] if web else []
            others.append(_placement_api(serving, made.placement))
            if health_at:
                others.append(_health(health_at, (*made.parts, *others, made.placement_at)))
            return others

        running = cloud(
            plan,
            broker.as_user(),
            settings.addresses.db_url or f"sqlite+aiosqlite:///{settings.database_file}",
            placement_url=settings.addresses.placement_db_url,
            as_user=broker.as_user,
            beside=beside,
        )
        try:
            async with serve_unix(broker, socket), running as made:
                made.task.add_done_callback(lambda _: stop.set())
                getting_ready = asyncio.create_task(_announce_ready(settings, plan))
                # Set by a signal, or when a worker fails; then the cloud raises that failure.
                await stop.wait()
                getting_ready.cancel()
                out.print("stopping: workers finish the messages that they have taken ...")
                await asyncio.wait((getting_ready,))
        except SocketTakenError as taken:
            fail(f"no bus: {taken}")
        except BadAddressError as taken:
            fail(str(taken))
        finally:
            settings.ironic_url_file.unlink(missing_ok=True)
    out.print("[green]stopped[/green]; the next `moor up` continues unfinished work")


def _health(address: str, parts: Sequence[object]) -> HealthServer:
    server = HealthServer(address, Health(about("moor up"), parts))
    say(f"health is served at {server.url}")
    return server


def _dashboard(settings: Settings, web: DashboardOptions, broker: MemoryBroker) -> DashboardService:
    try:
        service = DashboardService(
            lambda: dashboard_client(broker.as_user(LOCAL.user)),
            lambda: dashboard_client(broker.as_user(user_of("operator"))),
            settings,
            web,
            say,
        )
    except BadAddressError as taken:
        fail(f"no dashboard: {taken}; --dashboard-listen names another address")
    say(f"the dashboard is served at {service.url}")
    return service


def _placement_api(serving: ServiceOptions, store: PlacementStore) -> PlacementService:
    try:
        service = PlacementService(store, serving)
    except BadAddressError as taken:
        fail(f"no HTTP service: {taken}; --listen names another address")
    say(f"placement is served at {service.url}")
    return service


def _announce_metal(settings: Settings, made: RunningCloud) -> None:
    """Print the address of the simulated Ironic, and write it to the file where other commands find it."""
    if made.simulation is None:
        return
    url = made.simulation.url
    settings.ironic_url_file.write_text(f"{url}\n")
    daemons = "a daemon manages" if len(made.daemons) == 1 else f"{len(made.daemons)} daemons manage"
    say(
        f"a simulated Ironic has {len(made.simulation.ironic.nodes)} nodes, which {daemons}; its API is served at {url}"
    )


async def _announce_ready(settings: Settings, plan: CloudPlan) -> None:
    """Print `ready` once schedulers can choose every host that is in use: they know it, and placement has its provider. Ask
    over the bus, as an operator does.
    """
    metal = plan.metal
    wanted = sum(plan.cells.values()) + (metal.nodes if metal else 0)
    async with client(settings, operates=True) as moor:
        known = await moor.until_choosable(wanted)
        if metal:
            for flavor in (flavor_of_nodes(), SMALL):
                # A user's own flavor of the name stays.
                with suppress(Rejected):
                    await moor.create_flavor(flavor)
    up = [host for host in known if host.up]
    nodes = sum(host.kind == NODE for host in up)
    hypervisors = len(up) - nodes
    try_ = "`moor boot --vcpus 2`, " + ("`moor boot --flavor metal`, `moor node list`, " if metal else "")
    out.print(
        f"[green]ready[/green]: {hypervisors} hosts {f'and {nodes} nodes ' if metal else ''}are up; try {try_}`moor list`, "
        "`moor events`; Ctrl-C stops it",
        soft_wrap=True,
    )


def _metal(
    settings: Settings, nodes: int, daemons: int, listen: str, cells: tuple[str, ...]
) -> BareMetalPlan:
    """What to run for `moor up --nodes`: the simulated Ironic and its daemons."""
    addresses = settings.addresses
    if addresses.ironic_url or addresses.ironic_bus_url or addresses.ironic_db_url:
        raise click.BadParameter(
            f"--nodes is {nodes}, and ironic_url, ironic_bus_url or ironic_db_url is set: --nodes starts a simulated Ironic in "
            "this process, so set none of them"
        )
    with wrong_value():
        address = read_listen(listen)
    stated = CellMap(
        groups=addresses.ironic_groups, shards=addresses.ironic_shards, default=addresses.ironic_cell
    )
    return BareMetalPlan(
        nodes=nodes,
        daemons=daemons,
        cells=cells_of_groups(cells, stated),
        listen=address,
        file=settings.data / NODES,
    )


def _socket(settings: Settings) -> Path:
    """The path of the bus's socket; create the data directory."""
    parts = urlsplit(settings.addresses.bus_url)
    if parts.scheme not in ("", "memory", "unix"):
        raise click.BadParameter(
            f"bus_url names another bus ({parts.scheme}://{parts.hostname}), but `moor up` runs its own: start workers for "
            "that bus by `moor run`, or give --bus memory://"
        )
    addresses = settings.addresses
    if addresses.cell_bus_urls or addresses.cell_db_urls:
        cells = ", ".join(sorted({*addresses.cell_bus_urls, *addresses.cell_db_urls}))
        raise click.BadParameter(
            f"cell_bus_urls or cell_db_urls is set for {cells}, but `moor up` has all cells on its own bus and database: set "
            "none of them"
        )
    with wrong_value(f"data is {str(settings.data)!r}: ", OSError):
        settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Path(parts.path) if parts.scheme == "unix" else settings.socket


@contextmanager
def _opened_broker(journal: Path, cells: Collection[str]) -> Iterator[MemoryBroker]:
    """Open the broker of `moor up` on its journal, with the users of the topology and their rights."""
    users = rights_by_user(
        objects_of(cells, create_foreign=True).exchanges, cells, applications=(LOCAL,)
    ).values()
    try:
        with journaled_broker(journal, users=users) as broker:
            yield broker
    except (JournalTakenError, JournalUnreadableError) as problem:
        fail(f"no bus: {problem}")
    except JournalWriteError as problem:
        fail(
            f"not stopped in order: {problem}; confirmed messages are kept, and the last ones may be handled again"
        )
