"""Starts a whole real Nova: databases, broker, stand-ins, placement, API, conductors, computes, and a scheduler.

All processes are children of one keeper, so that they end with the process that started them, however it ends.
"""

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct

from laboratory.private_servers import Command, Keeper, descendants, wait_until_ready
from tests.conformance.nova.nova_api import NovaApi
from tests.conformance.nova.nova_conf import (
    API_LEVEL,
    CELL_DATABASE,
    NovaPlaces,
    database_of,
    virtual_host,
    write_configuration,
)
from tests.environments import environment
from tests.nova.mariadb import MariaDB
from tests.placement_servers import our_server
from tests.servers.free_places import free_port, place_in_memory
from tests.servers.postgres import FAST, PrivatePostgres
from tests.servers.rabbitmq import PrivateRabbitMQ
from tests.waiting import NeverTrueError, wait_for

# Nova's version of the facts and figures. Its fake driver imports what Nova's own tests need.
NOVA = (
    *("nova==34.0.0", "openstack-placement==16.0.0", "PyMySQL>=1.1", "pyuwsgi>=2.0.30"),
    *("fixtures", "testtools", "oslotest", "requests-mock", "ddt"),
)
ROOT = Path(__file__).parents[3]
COMPUTES_STARTED = "all computes have started"
DATABASES_MAX = 2000
COMPUTES_WITHIN_S = 600
COMPUTES_PER_PROCESS = 50
SCHEDULER_WITHIN_S = 120


class NotStartedError(RuntimeError):
    """A command of Nova's failed; the message has the end of its output."""


class Wanted(Struct, frozen=True):
    """What the stack is to be."""

    # "ours" or "theirs".
    placement: str = "ours"
    scheduler: str = "theirs"
    # The hosts of each cell.
    cells: Mapping[str, Sequence[str]] = MappingProxyType(
        {"cell1": ("c1h1", "c1h2", "c1h3"), "cell2": ("c2h1", "c2h2")}
    )
    # Options of nova.conf, by section.
    options: Mapping[str, Mapping[str, str]] = {}
    conductors: int = 1
    report_s: int = 5
    down_s: int = 30
    notifies: bool = True
    # Computes have a placement server of their own on the same books, so that the other one's figures are of scheduling alone.
    is_placement_apart: bool = False


class NovaStack:
    """The running services. `groups` has the processes of each kind, for figures."""

    def __init__(self, wanted: Wanted, programs: Path, keeper: Keeper) -> None:
        self.wanted = wanted
        self.programs = programs
        self.keeper = keeper
        self.groups: dict[str, list[int]] = {}
        self.hosts: dict[int, Sequence[str]] = {}
        self.database = MariaDB(0)
        self.rabbitmq = PrivateRabbitMQ(place=place_in_memory())
        self.places = NovaPlaces(keeper.directory, "", "", "", "")
        # The variables of our scheduler, if it is ours.
        self.our_environment: dict[str, str] = {}
        self.api = NovaApi("")

    @property
    def directory(self) -> Path:
        return self.keeper.directory

    @property
    def timings(self) -> Path:
        """How long each select_destinations took (timed_conductor.py)."""
        return self.directory / "select_destinations.txt"

    def configuration(self, level: str) -> Path:
        return self.directory / level / "nova.conf"

    def log_of(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def start(self, kind: str, name: str, argv: Sequence[str], **environment: str) -> int:
        """Start a process; `kind` is its group."""
        process = self.keeper.start(
            Command(
                argv=tuple(argv),
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", **environment},
                log=str(self.log_of(name)),
            )
        )
        self.groups.setdefault(kind, []).append(process)
        return process

    def program(self, name: str) -> str:
        return str(self.programs / name)

    def module(self, name: str) -> tuple[str, ...]:
        return (self.program("python"), "-m", f"tests.conformance.nova.{name}")

    def is_alive(self, process: int) -> bool:
        return process in self.keeper.processes()

    def end(self, process: int, signum: int = signal.SIGTERM, within_s: float = 30) -> None:
        """End a process of the stack, with its children."""
        below = descendants(process)
        os.kill(process, signum)
        with suppress(NeverTrueError):
            wait_for(lambda: not self.is_alive(process), within_s=within_s)
        for each in (process, *below):
            if self.is_alive(each):
                os.kill(each, signal.SIGKILL)
        for group in self.groups.values():
            if process in group:
                group.remove(process)

    def run(self, *argv: str, allowed: Sequence[int] = (0,)) -> str:
        """Run one of Nova's own commands, and return its output."""
        done = subprocess.run(
            (self.program(argv[0]), *argv[1:]),
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            cwd=self.directory,
        )
        if done.returncode not in allowed:
            said = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
            raise NotStartedError(f"{' '.join(argv)} ended with {done.returncode}:\n{said}")
        return done.stdout

    def manage(self, *argv: str, level: str = API_LEVEL, allowed: Sequence[int] = (0,)) -> str:
        return self.run(
            "nova-manage", "--config-file", str(self.configuration(level)), *argv, allowed=allowed
        )

    def start_computes(self, cell: str, hosts: Sequence[str], driver: str = "") -> int:
        """With the driver of nova.conf, or another one."""
        name = f"computes-{hosts[0]}"
        log = self.log_of(name)
        already = log.read_text().count(COMPUTES_STARTED) if log.exists() else 0
        process = self.start(
            "computes", name, (*self.module("computes"), str(self.configuration(cell)), driver, *hosts)
        )
        self.hosts[process] = hosts

        def have_started() -> bool:
            if not self.is_alive(process):
                raise NotStartedError(f"computes {hosts[0]}...:\n{_end_of(log)}")
            return log.read_text(errors="replace").count(COMPUTES_STARTED) > already

        wait_for(have_started, f"computes {hosts[0]}... start: {log}", within_s=COMPUTES_WITHIN_S)
        return process

    def start_conductors(self) -> None:
        """The super conductor, which asks the scheduler, and one conductor for each cell."""
        for number in range(self.wanted.conductors):
            self.start(
                "super conductor",
                f"super-conductor-{number}",
                (
                    *self.module("timed_conductor"),
                    str(self.timings),
                    "--config-file",
                    str(self.configuration(API_LEVEL)),
                ),
            )
        for cell in self.wanted.cells:
            argv = (self.program("nova-conductor"), "--config-file", str(self.configuration(cell)))
            self.start("cell conductors", f"conductor-{cell}", argv)

    def start_their_scheduler(self) -> int:
        conf = self.directory / "scheduler" / "nova.conf"
        return self.start(
            "scheduler", "nova-scheduler", (self.program("nova-scheduler"), "--config-file", str(conf))
        )

    def wait_for_scheduler(self) -> None:
        """Until a scheduler consumes; a request that comes before is lost, and its caller waits for a minute."""

        def listening() -> int:
            if not any(map(self.is_alive, self.groups.get("scheduler", ()))):
                raise NotStartedError(f"no scheduler listens:\n{_end_of(self.log_of('nova-scheduler'))}")
            return self.schedulers_listening()

        wait_for(listening, "a scheduler listens", within_s=SCHEDULER_WITHIN_S)

    def schedulers_listening(self) -> int:
        listed = self.rabbitmq.ctl(
            "--silent", "list_queues", "-p", virtual_host(API_LEVEL), "name", "consumers"
        )
        queues = dict(line.split("\t") for line in listed.splitlines() if "\t" in line)
        return int(queues.get("scheduler", 0))


Scheduler = Callable[[NovaStack], AbstractContextManager[None]]


@contextmanager
def nova_stack(wanted: Wanted, our_scheduler: Scheduler | None = None) -> Iterator[NovaStack]:
    """The whole of it, with a scheduler that listens. `our_scheduler` is started in place of Nova's if that is wanted."""
    programs = environment("nova-stack", NOVA)
    with ExitStack() as ending:
        keeper = Keeper(place_in_memory())
        ending.callback(keeper.close)
        stack = NovaStack(wanted, programs, keeper)
        postgres = (
            PrivatePostgres(settings=FAST, place=place_in_memory()) if wanted.placement == "ours" else None
        )
        if postgres:
            ending.callback(postgres.stop)
            postgres.launch()
        ending.callback(stack.rabbitmq.stop)
        stack.rabbitmq.launch()
        stub = free_port()
        stack.api = NovaApi(f"http://127.0.0.1:{free_port()}/v2.1")
        stub_argv = (sys.executable, "-m", "tests.conformance.nova.stub_services", str(stub), stack.api.url)
        stack.start("stub", "stub", stub_argv)
        _start_mariadb(stack)
        stack.rabbitmq.wait_until_ready()
        stack.groups["nova broker"] = [*stack.rabbitmq.processes()]
        for level in (API_LEVEL, *wanted.cells):
            stack.rabbitmq.ctl("add_vhost", virtual_host(level))
            stack.rabbitmq.ctl("set_permissions", "-p", virtual_host(level), "guest", ".*", ".*", ".*")
        placement, computes_placement = _placements(stack, ending, postgres)
        stack.places = NovaPlaces(
            directory=stack.directory,
            amqp=stack.rabbitmq.address,
            database=f"127.0.0.1:{stack.database.port}",
            placement=placement,
            computes_placement=computes_placement,
            stub=f"http://127.0.0.1:{stub}",
            options=wanted.options,
            report_s=wanted.report_s,
            down_s=wanted.down_s,
            notifies=wanted.notifies,
        )
        write_configuration(stack.places, programs, tuple(wanted.cells))
        _migrate(stack)
        stack.start_conductors()
        _start_api(stack)
        for cell, hosts in wanted.cells.items():
            for first in range(0, len(hosts), COMPUTES_PER_PROCESS):
                stack.start_computes(cell, hosts[first : first + COMPUTES_PER_PROCESS])
        stack.manage("cell_v2", "discover_hosts")
        if wanted.scheduler == "theirs":
            stack.start_their_scheduler()
        elif our_scheduler:
            ending.enter_context(our_scheduler(stack))
        stack.wait_for_scheduler()
        yield stack


def _start_mariadb(stack: NovaStack) -> None:
    port = free_port()
    data = stack.directory / "mariadb"
    installing = ("mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root")
    subprocess.run((*installing, "--auth-root-authentication-method=normal"), check=True, capture_output=True)
    server = (
        *(
            "/usr/sbin/mariadbd",
            "--no-defaults",
            f"--datadir={data}",
            f"--socket={stack.directory}/mariadb.sock",
        ),
        *(f"--port={port}", "--bind-address=127.0.0.1", "--user=root", "--skip-log-bin", "--userstat=1"),
        *(f"--max-connections={DATABASES_MAX}", "--innodb-buffer-pool-size=512M", "--skip-name-resolve"),
    )
    process = stack.start("nova database", "mariadb", server)
    stack.database = MariaDB(port)
    wait_until_ready(
        "MariaDB",
        ready=lambda: _is_open(stack.database),
        alive=lambda: stack.is_alive(process),
        logs=(stack.log_of("mariadb"),),
    )
    databases = ("nova_api", "placement", *(database_of(level) for level in (API_LEVEL, *stack.wanted.cells)))
    with stack.database.connection() as connection, connection.cursor() as cursor:
        for user in ("nova", "scheduler", "placement", "computes"):
            cursor.execute(f"CREATE USER '{user}'@'127.0.0.1'")
            cursor.execute(f"GRANT ALL ON *.* TO '{user}'@'127.0.0.1'")
        for database in databases:
            cursor.execute(f"CREATE DATABASE {database} CHARACTER SET utf8mb3")


def _is_open(database: MariaDB) -> bool:
    try:
        database.connection().close()
    except Exception:  # noqa: BLE001 - it raises several kinds until it is ready
        return False
    return True


def _placements(stack: NovaStack, ending: ExitStack, postgres: PrivatePostgres | None) -> tuple[str, str]:
    """Start the placement that is wanted; returns its address, and that of the computes' own if it is apart."""
    groups = ("placement", *(("computes placement",) if stack.wanted.is_placement_apart else ()))
    if postgres:
        postgres.wait_until_ready()
        stack.groups["placement database"] = [*postgres.processes()]
        urls = [_our_placement(stack, group, ending, postgres.url) for group in groups]
    else:
        users = ("placement", "computes")
        urls = [_their_placement(stack, *each) for each in zip(groups, users, strict=False)]
    return urls[0], urls[1] if urls[1:] else ""


def _our_placement(stack: NovaStack, group: str, ending: ExitStack, database: str) -> str:
    server = ending.enter_context(our_server(database, auth="noauth2"))
    stack.groups[group] = [server.eldest]
    return server.url


def _their_placement(stack: NovaStack, group: str, user: str) -> str:
    """A server under a user of its own in the database, which counts by users."""
    settings = {
        "OS_PLACEMENT_DATABASE__CONNECTION": f"mysql+pymysql://{user}@127.0.0.1:{stack.database.port}/placement",
        "OS_API__AUTH_STRATEGY": "noauth2",
        "OS_OSLO_POLICY__ENFORCE_NEW_DEFAULTS": "false",
    }
    subprocess.run(
        (stack.program("placement-manage"), "db", "sync"),
        env={**os.environ, **settings},
        check=True,
        capture_output=True,
    )
    port = free_port()
    argv = (
        *(stack.program("pyuwsgi"), "--http-socket", f"127.0.0.1:{port}", "--master", "--need-app"),
        *("--add-header", "Connection: close", "--processes", "2", "--die-on-term", "--disable-logging"),
        *("--module", "placement.wsgi.api:application"),
    )
    name = group.replace(" ", "-")
    process = stack.start(group, name, argv, **settings)
    _wait_for_http(name, stack, process, f"http://127.0.0.1:{port}/")
    return f"http://127.0.0.1:{port}"


def _migrate(stack: NovaStack) -> None:
    """Make the tables by Nova's own migrations, the first time; then a copy of the empty databases is kept beside the programs."""
    kept = {
        name: stack.programs.parent / f"empty-{name}.sql" for name in ("nova_api", database_of(API_LEVEL))
    }
    if not all(each.exists() for each in kept.values()):
        stack.manage("api_db", "sync")
        stack.manage("db", "sync", "--local_cell")
        for name, file in kept.items():
            _keep(stack, name, file)
    else:
        for name, file in kept.items():
            _restore(stack, file, name)
    for cell in stack.wanted.cells:
        _restore(stack, kept[database_of(API_LEVEL)], database_of(cell))
    server = f"127.0.0.1:{stack.database.port}"
    cell0 = f"mysql+pymysql://nova@{server}/{database_of(API_LEVEL)}"
    stack.manage("cell_v2", "map_cell0", "--database_connection", cell0)
    for cell in stack.wanted.cells:
        stack.manage(
            *("cell_v2", "create_cell", "--name", cell),
            *("--database_connection", f"{CELL_DATABASE}{database_of(cell)}"),
            *("--transport-url", stack.places.transport(cell)),
        )


def _keep(stack: NovaStack, name: str, file: Path) -> None:
    dumping = (
        "mariadb-dump",
        "--no-defaults",
        f"--socket={stack.directory}/mariadb.sock",
        "--user=root",
        name,
    )
    with file.with_suffix(".part").open("wb") as part:
        subprocess.run(dumping, stdout=part, check=True)
    file.with_suffix(".part").rename(file)


def _restore(stack: NovaStack, file: Path, name: str) -> None:
    reading = ("mariadb", "--no-defaults", f"--socket={stack.directory}/mariadb.sock", "--user=root", name)
    with file.open("rb") as kept:
        subprocess.run(reading, stdin=kept, check=True)


def _start_api(stack: NovaStack) -> None:
    address = stack.api.url.removeprefix("http://").removesuffix("/v2.1")
    argv = (
        *(stack.program("pyuwsgi"), "--http-socket", address, "--master", "--need-app", "--lazy-apps"),
        *("--add-header", "Connection: close", "--processes", "2", "--threads", "4", "--enable-threads"),
        *("--die-on-term", "--disable-logging", "--module", "nova.wsgi.osapi_compute:application"),
    )
    process = stack.start("api", "api", argv, OS_NOVA_CONFIG_DIR=str(stack.directory / API_LEVEL))
    _wait_for_http("nova-api", stack, process, f"http://{address}/")


def _wait_for_http(name: str, stack: NovaStack, process: int, url: str) -> None:
    wait_until_ready(
        name,
        ready=partial(_answers, url),
        alive=lambda: stack.is_alive(process),
        logs=(stack.log_of(name.removeprefix("nova-")),),
    )


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:  # noqa: S310 - of a server of ours
            return int(answer.status) < 400
    except OSError:
        return False


def _end_of(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-30:]) if log.exists() else "no log"
