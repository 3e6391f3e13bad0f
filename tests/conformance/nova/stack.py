"""Starts a whole real Nova: databases, broker, stand-ins, placement, API, conductors, computes, and a scheduler.

All processes are children of one keeper, so that they end with the process that started them, however it ends.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
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
from tests.nova.mariadb import MariaDB, start_mariadb
from tests.placement_servers import answers, openstacks_server, our_server
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
KILLED_WITHIN_S = 30
# So much of a log an error has.
TOLD = 4000


class NotStartedError(RuntimeError):
    """A command of Nova's failed; the message has the end of its output."""


class Wanted(Struct, frozen=True):
    # "ours" or "theirs".
    placement: str = "ours"
    scheduler: str = "theirs"
    # The hosts of each cell.
    cells: Mapping[str, Sequence[str]] = MappingProxyType(
        {"cell1": ("c1h1", "c1h2", "c1h3"), "cell2": ("c2h1", "c2h2")}
    )
    # Options of nova.conf, by section.
    options: Mapping[str, Mapping[str, str]] = {}
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

    def said(self, name: str) -> str:
        log = self.log_of(name)
        return log.read_text(errors="replace") if log.exists() else ""

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

    def kill(self, process: int) -> None:
        """A process of the stack, with its children."""
        for each in (process, *descendants(process)):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        self.wait(f"the end of {process}", lambda: not self.is_alive(process), KILLED_WITHIN_S)
        for group in self.groups.values():
            group[:] = [each for each in group if each != process]

    def wait(
        self, name: str, ready: Callable[[], bool], within_s: float, alive: Callable[[], bool] = lambda: True
    ) -> None:
        """The error has the end of the log of this name."""
        try:
            wait_for(lambda: ready() or not alive(), within_s=within_s)
        except NeverTrueError as problem:
            raise NotStartedError(f"{name}:\n{self.said(name)[-TOLD:]}") from problem
        if not ready():
            raise NotStartedError(f"{name} has ended:\n{self.said(name)[-TOLD:]}")

    def manage(self, *argv: str, level: str = API_LEVEL, allowed: Sequence[int] = (0,)) -> str:
        done = subprocess.run(
            (self.program("nova-manage"), "--config-file", str(self.configuration(level)), *argv),
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            cwd=self.directory,
        )
        if done.returncode not in allowed:
            said = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
            raise NotStartedError(f"nova-manage {' '.join(argv)} ended with {done.returncode}:\n{said}")
        return done.stdout

    def start_computes(self, cell: str, hosts: Sequence[str], driver: str = "") -> int:
        """With the driver of nova.conf, or another one."""
        name = f"computes-{hosts[0]}"
        already = self.said(name).count(COMPUTES_STARTED)
        process = self.start(
            "computes", name, (*self.module("computes"), str(self.configuration(cell)), driver, *hosts)
        )
        self.hosts[process] = hosts
        self.wait(
            name,
            lambda: self.said(name).count(COMPUTES_STARTED) > already,
            COMPUTES_WITHIN_S,
            lambda: self.is_alive(process),
        )
        return process

    def start_conductors(self) -> None:
        """The super conductor, which asks the scheduler, and one conductor for each cell."""
        timed = (*self.module("timed_conductor"), str(self.timings))
        conf = str(self.configuration(API_LEVEL))
        self.start("super conductor", "super-conductor", (*timed, "--config-file", conf))
        for cell in self.wanted.cells:
            self.start(
                "cell conductors",
                f"conductor-{cell}",
                (self.program("nova-conductor"), "--config-file", str(self.configuration(cell))),
            )

    def start_their_scheduler(self) -> int:
        return self.start(
            "scheduler",
            "nova-scheduler",
            (
                self.program("nova-scheduler"),
                "--config-file",
                str(self.directory / "scheduler" / "nova.conf"),
            ),
        )

    def wait_for_scheduler(self, name: str = "nova-scheduler", queue: str = "scheduler") -> None:
        """Until a scheduler consumes; a request that comes before is lost, and its caller waits for a minute."""
        listing = ("--silent", "list_queues", "-p", virtual_host(API_LEVEL), "name", "consumers")
        self.wait(
            name,
            lambda: re.search(rf"^{queue}\t[1-9]", self.rabbitmq.ctl(*listing), re.MULTILINE) is not None,
            SCHEDULER_WITHIN_S,
            lambda: any(self.is_alive(each) for each in self.groups.get("scheduler", ())),
        )


@contextmanager
def nova_stack(
    wanted: Wanted, our_scheduler: Callable[[NovaStack], object] | None = None
) -> Iterator[NovaStack]:
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
        stack.start(
            "stub",
            "stub",
            (sys.executable, "-m", "tests.conformance.nova.stub_services", str(stub), stack.api.url),
        )
        _start_mariadb(stack)
        stack.rabbitmq.wait_until_ready()
        stack.groups["nova broker"] = [*stack.rabbitmq.processes()]
        for level in (API_LEVEL, *wanted.cells):
            stack.rabbitmq.ctl("add_vhost", virtual_host(level))
            stack.rabbitmq.ctl("set_permissions", "-p", virtual_host(level), "guest", ".*", ".*", ".*")
        placement, *computes_placement = _placements(stack, ending, postgres)
        stack.places = NovaPlaces(
            directory=stack.directory,
            amqp=stack.rabbitmq.address,
            database=f"127.0.0.1:{stack.database.port}",
            placement=placement,
            computes_placement="".join(computes_placement),
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
            our_scheduler(stack)
        stack.wait_for_scheduler()
        yield stack


def _start_mariadb(stack: NovaStack) -> None:
    stack.database, process = start_mariadb(
        stack.keeper,
        *("--userstat=1", f"--max-connections={DATABASES_MAX}"),
        *("--innodb-buffer-pool-size=512M", "--skip-name-resolve"),
    )
    stack.groups["nova database"] = [process]
    databases = ("nova_api", "placement", *(database_of(level) for level in (API_LEVEL, *stack.wanted.cells)))
    with stack.database.connection() as connection, connection.cursor() as cursor:
        for user in ("nova", "scheduler", "placement", "computes"):
            cursor.execute(f"CREATE USER '{user}'@'127.0.0.1'")
            cursor.execute(f"GRANT ALL ON *.* TO '{user}'@'127.0.0.1'")
        for database in databases:
            cursor.execute(f"CREATE DATABASE {database} CHARACTER SET utf8mb3")


def _placements(stack: NovaStack, ending: ExitStack, postgres: PrivatePostgres | None) -> list[str]:
    """Start the placement that is wanted; returns its address, and that of the computes' own if it is apart.

    Each of Nova's is under a user of its own in the database, which counts by users.
    """
    groups = ("placement", *(("computes placement",) if stack.wanted.is_placement_apart else ()))
    if postgres:
        postgres.wait_until_ready()
        stack.groups["placement database"] = [*postgres.processes()]
    urls = []
    for group, user in zip(groups, ("placement", "computes"), strict=False):
        theirs = f"mysql://{user}@127.0.0.1:{stack.database.port}/placement"
        server = ending.enter_context(
            our_server(postgres.url, auth="noauth2")
            if postgres
            else openstacks_server(theirs, stack.programs)
        )
        stack.groups[group] = [server.eldest]
        urls.append(server.url)
    return urls


def _migrate(stack: NovaStack) -> None:
    """Make the tables by Nova's own migrations, the first time; then a copy of the empty databases is kept beside the programs."""
    cell0 = database_of(API_LEVEL)
    kept = {name: stack.programs.parent / f"empty-{name}.sql" for name in ("nova_api", cell0)}
    if not all(each.exists() for each in kept.values()):
        stack.manage("api_db", "sync")
        stack.manage("db", "sync", "--local_cell")
        for name, file in kept.items():
            part = file.with_suffix(".part")
            part.write_bytes(_mariadb(stack, "mariadb-dump", name))
            part.rename(file)
    else:
        for name, file in kept.items():
            _mariadb(stack, "mariadb", name, file.read_bytes())
    for cell in stack.wanted.cells:
        _mariadb(stack, "mariadb", database_of(cell), kept[cell0].read_bytes())
    server = f"127.0.0.1:{stack.database.port}"
    stack.manage("cell_v2", "map_cell0", "--database_connection", f"mysql+pymysql://nova@{server}/{cell0}")
    for cell in stack.wanted.cells:
        stack.manage(
            *("cell_v2", "create_cell", "--name", cell),
            *("--database_connection", f"{CELL_DATABASE}{database_of(cell)}"),
            *("--transport-url", stack.places.transport(cell)),
        )


def _mariadb(stack: NovaStack, program: str, database: str, reads: bytes = b"") -> bytes:
    return subprocess.run(
        (program, "--no-defaults", f"--socket={stack.directory}/mariadb.sock", "--user=root", database),
        input=reads,
        stdout=subprocess.PIPE,
        check=True,
    ).stdout


def _start_api(stack: NovaStack) -> None:
    address = stack.api.url.removeprefix("http://").removesuffix("/v2.1")
    argv = (
        *(stack.program("pyuwsgi"), "--http-socket", address, "--master", "--need-app", "--lazy-apps"),
        *("--add-header", "Connection: close", "--processes", "2", "--threads", "4", "--enable-threads"),
        *("--die-on-term", "--disable-logging", "--module", "nova.wsgi.osapi_compute:application"),
    )
    process = stack.start("api", "api", argv, OS_NOVA_CONFIG_DIR=str(stack.directory / API_LEVEL))
    wait_until_ready(
        "nova-api",
        ready=partial(answers, int(address.rpartition(":")[2])),
        alive=lambda: stack.is_alive(process),
        logs=(stack.log_of("api"),),
    )
