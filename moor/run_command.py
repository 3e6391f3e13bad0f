"""`moor run`: one worker in this process, on real brokers and a real database."""

import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import structs

from bus.health_server import BadAddressError
from bus.places import Places
from bus.process import run_process
from cell_conductor.__main__ import run as run_conductor
from cell_conductor.settings import ConductorSettings
from compute_sim.__main__ import run as run_compute
from compute_sim.core.faults import FaultScript
from compute_sim.drivers import alike
from compute_sim.faults import BadScript, load_faults
from compute_sim.settings import ComputeSettings
from moor.options import BusUrl, DatabaseUrl, HealthListen, LogFormat, log_as, settled
from moor.placement_api_options import (
    BODY_S,
    CONNECTIONS,
    CONNECTIONS_PER_ADDRESS,
    HEAD_S,
    IDLE_S,
    USUAL_LISTEN,
    ApiFlags,
    Auth,
    AuthMode,
    BodySeconds,
    ConnectionFlags,
    ConnectionsMax,
    ConnectionsPerAddress,
    CorsOrigins,
    HeadSeconds,
    IdleSeconds,
    KeystoneCa,
    KeystoneDomain,
    KeystoneFlags,
    KeystonePassword,
    KeystoneProject,
    KeystoneUrl,
    KeystoneUser,
    ListenAt,
    PolicyName,
    Prefix,
    SharePort,
    TlsCertificate,
    TlsKey,
    Unguarded,
    Users,
    serving_of,
)
from placement_worker.__main__ import run as run_placement
from placement_worker.__main__ import serve as serve_placement
from placement_worker.api.server import BadListenError
from placement_worker.settings import PlacementSettings
from scheduler_worker.__main__ import run as run_scheduler
from scheduler_worker.settings import SchedulerSettings

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Run one worker until it is told to stop; SIGTERM drains it. As many of each as you like, but of computes one a "
    "cell. Placement and schedulers serve the cells that have a broker of their own (MOOR_CELL_BUS_URLS) there; a cell's "
    "own workers know that one alone.",
)

Cell = Annotated[
    str, typer.Option(envvar="MOOR_CELL", help="Which cell a conductor or the computes belong to.")
]


@app.command()
def placement(
    bus: BusUrl = "", db: DatabaseUrl = "", health_listen: HealthListen = "", log_format: LogFormat = "text"
) -> None:
    """The books: claims, swaps, inventories, and the feed of changes."""
    log_as({**os.environ, "MOOR_LOG_FORMAT": log_format})
    _run(run_placement(_places("placement", bus, db), PlacementSettings(), health_listen))


@app.command()
def scheduler(
    bus: BusUrl = "", db: DatabaseUrl = "", health_listen: HealthListen = "", log_format: LogFormat = "text"
) -> None:
    """Chooses hosts, and hands over to the cells."""
    log_as({**os.environ, "MOOR_LOG_FORMAT": log_format})
    _run(run_scheduler(_places("scheduler", bus, db), SchedulerSettings(), health_listen))


@app.command()
def conductor(
    bus: BusUrl = "",
    db: DatabaseUrl = "",
    *,
    cell: Cell = "",
    health_listen: HealthListen = "",
    log_format: LogFormat = "text",
) -> None:
    """Owns the instances of one cell."""
    log_as({**os.environ, "MOOR_LOG_FORMAT": log_format})
    places = _places("conductor", bus, db, _one(cell, "conductor"))
    _run(run_conductor(cell, places.bus_of(cell), places.db_of(cell), ConductorSettings(), health_listen))


@app.command()
def compute(
    bus: BusUrl = "",
    db: DatabaseUrl = "",
    *,
    cell: Cell = "",
    hosts: Annotated[
        int,
        typer.Option(envvar="MOOR_COMPUTE_HOSTS", min=1, help="How many hosts the computes pretend to be."),
    ] = 100,
    faults: Annotated[
        Path | None,
        typer.Option(envvar="MOOR_COMPUTE_FAULTS", help="What goes wrong on them: a TOML or JSON file."),
    ] = None,
    health_listen: HealthListen = "",
    log_format: LogFormat = "text",
) -> None:
    """Pretends to be the hosts of one cell."""
    log_as({**os.environ, "MOOR_LOG_FORMAT": log_format})
    try:
        script = load_faults(faults) if faults else FaultScript()
    except BadScript as wrong:
        raise typer.BadParameter(str(wrong)) from None
    url = _stated(bus, db, cell).bus_of(_one(cell, "compute"))
    _run(run_compute(url, alike(cell, hosts), ComputeSettings(cell=cell), script, health_listen))


@app.command("placement-api")
def placement_api(
    bus: BusUrl = "",
    db: DatabaseUrl = "",
    *,
    listen: ListenAt = USUAL_LISTEN,
    share_port: SharePort = False,
    auth: AuthMode = Auth.NONE,
    allow_anyone: Unguarded = False,
    users: Users = None,
    policy: PolicyName = "legacy",
    cors_origin: CorsOrigins = None,
    prefix: Prefix = "",
    tls_cert: TlsCertificate = None,
    tls_key: TlsKey = None,
    keystone_url: KeystoneUrl = "",
    keystone_user: KeystoneUser = "placement",
    keystone_password: KeystonePassword = "",
    keystone_project: KeystoneProject = "service",
    keystone_domain: KeystoneDomain = "Default",
    keystone_ca: KeystoneCa = None,
    http_idle_s: IdleSeconds = IDLE_S,
    http_head_s: HeadSeconds = HEAD_S,
    http_body_s: BodySeconds = BODY_S,
    http_connections: ConnectionsMax = CONNECTIONS,
    http_connections_per_address: ConnectionsPerAddress = CONNECTIONS_PER_ADDRESS,
    health_listen: HealthListen = "",
    log_format: LogFormat = "text",
) -> None:
    """Placement over HTTP, as OpenStack's clients know it. It needs the database alone: what it writes is told to the
    bus by the placement workers.
    """
    log_as({**os.environ, "MOOR_LOG_FORMAT": log_format})
    places = _places("placement-api", bus, db)
    serving = serving_of(
        ApiFlags(
            listen=listen,
            share_port=share_port,
            auth=auth,
            allow_anyone=allow_anyone,
            users=users,
            policy=policy,
            cors_origins=tuple(cors_origin or ()),
            prefix=prefix,
            tls_cert=tls_cert,
            tls_key=tls_key,
            keystone=KeystoneFlags(
                keystone_url, keystone_user, keystone_password, keystone_project, keystone_domain, keystone_ca
            ),
            connections=ConnectionFlags(
                http_idle_s, http_head_s, http_body_s, http_connections, http_connections_per_address
            ),
        )
    )
    try:
        _run(serve_placement(places.db_url, serving, health_listen))
    except BadListenError as wrong:
        raise typer.BadParameter(str(wrong)) from None


def _run(work: Coroutine[Any, Any, None]) -> None:
    try:
        run_process(work)
    except BadAddressError as wrong:
        raise typer.BadParameter(str(wrong)) from None


def _places(worker: str, bus: str, db: str, cell: str = "") -> Places:
    """Where the broker and the database are, for who needs a database."""
    places = _stated(bus, db, cell)
    if not (places.db_of(cell) if cell else places.db_url):
        raise typer.BadParameter(f"a {worker} worker needs --db, or MOOR_DB_URL")
    return places


def _stated(bus: str, db: str, cell: str) -> Places:
    settings = settled(bus=bus, db=db, cells=cell)
    return structs.replace(settings.places, bus_url=settings.bus_url)


def _one(cell: str, worker: str) -> str:
    if not cell or "," in cell:
        raise typer.BadParameter(f"a {worker} needs --cell, or MOOR_CELL: one cell, not {cell!r}")
    return cell
