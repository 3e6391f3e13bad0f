"""Placement over HTTP as a separate server: this project's, and OpenStack's. Each ends with the process that started it."""

import http.client
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct
from sqlalchemy.engine import make_url

from laboratory.private_servers import Command, Keeper, wait_until_ready
from tests.environments import environment
from tests.servers.free_places import free_port

# All figures and the conformance suite are of version 16. It runs under uwsgi, as in deployments.
OPENSTACKS = ("openstack-placement==16.0.0", "pyuwsgi>=2.0.30", "psycopg2-binary>=2.9")
OPENSTACKS_WORKERS = 2
ANSWERS_WITHIN_S = 20.0
HOST = "127.0.0.1"


class PlacementServer(Struct, frozen=True):
    host: str
    port: int
    # The parent of all the server's processes, which does no work itself.
    eldest: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


@contextmanager
def our_server(
    database_url: str, *, auth: str = "none", options: Sequence[str] = (), settings: Mapping[str, str] = {}
) -> Iterator[PlacementServer]:
    """The server as users run it: `moor run placement-api`, with these variables."""
    port = free_port()
    moor = Path(sys.executable).parent / "moor"
    argv = (
        *(str(moor), "run", "placement-api", "--listen", f"{HOST}:{port}"),
        *("--auth", auth, "--db", database_url, *options),
    )
    with _served("our placement", argv, settings, port) as server:
        yield server


@contextmanager
def openstacks_server(database_url: str, programs: Path | None = None) -> Iterator[PlacementServer]:
    """The real one under uwsgi, with its tables and `noauth2`: a caller named `admin` may do everything."""
    programs = programs or environment("openstack-placement", OPENSTACKS)
    settings = openstacks_settings(database_url)
    made = subprocess.run(
        (str(programs / "placement-manage"), "db", "sync"),
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        raise RuntimeError(
            f"placement-manage db sync failed with exit code {made.returncode}:\n{made.stderr}"
        )
    port = free_port()
    argv = (
        *(str(programs / "pyuwsgi"), "--http-socket", f"{HOST}:{port}", "--master", "--need-app"),
        # A process with a kept-alive connection serves no other one, and closes it without notice.
        *("--add-header", "Connection: close"),
        *("--processes", str(OPENSTACKS_WORKERS), "--module", "placement.wsgi.api:application"),
        *("--die-on-term", "--disable-logging"),
    )
    with _served("openstack-placement", argv, settings, port) as server:
        yield server


def openstacks_settings(database_url: str) -> Mapping[str, str]:
    """Its configuration, as environment variables of its processes, with its database driver."""
    url = make_url(database_url)
    drivers = {"postgresql": "postgresql+psycopg2", "mysql": "mysql+pymysql"}
    plain = url.set(drivername=drivers.get(url.get_backend_name(), "sqlite"))
    return {
        "OS_PLACEMENT_DATABASE__CONNECTION": plain.render_as_string(hide_password=False),
        "OS_API__AUTH_STRATEGY": "noauth2",
        # Under the newer rules an administrator may not reshape.
        "OS_OSLO_POLICY__ENFORCE_NEW_DEFAULTS": "false",
    }


@contextmanager
def _served(
    name: str, argv: Sequence[str], settings: Mapping[str, str], port: int
) -> Iterator[PlacementServer]:
    keeper = Keeper()
    try:
        log = keeper.directory / "server.log"
        process = keeper.start(Command(argv=tuple(argv), env={**os.environ, **settings}, log=str(log)))
        wait_until_ready(
            name,
            ready=partial(answers, port),
            alive=lambda: process in keeper.processes(),
            logs=(log,),
        )
        yield PlacementServer(HOST, port, keeper.pid)
    finally:
        keeper.close()


def answers(port: int) -> bool:
    """Does it answer with its versions? That needs no token."""
    connection = http.client.HTTPConnection(HOST, port, timeout=ANSWERS_WITHIN_S)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status == http.HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()
