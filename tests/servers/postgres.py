"""A private PostgreSQL: on loopback only, with temporary data, on the disk or elsewhere, removed when the process ends."""

import os
import pwd
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from laboratory.private_servers import Command, Keeper, wait_until_ready
from tests.servers.free_places import free_port
from tests.servers.installed import NotInstalledError, postgres_binaries
from tests.servers.kept import KeptServer

# Commits survive the server's death, which tests bring about; only the machine's death would lose them.
# synchronous_commit and full_page_writes stay on: without them a killed server may lose or tear what it committed.
FAST = MappingProxyType({"fsync": "off"})

_ALWAYS = MappingProxyType(
    {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "max_connections": "200",
        # In the data directory instead of /dev/shm, so that removing the directory removes everything.
        "dynamic_shared_memory_type": "mmap",
    }
)


class PrivatePostgres(KeptServer):
    """A PostgreSQL server with one superuser, `postgres`, whom every local user may be.

    `stop` removes the data. `kill` is a crash: `start` then recovers the same data on the same port.
    """

    def __init__(
        self,
        *,
        settings: Mapping[str, str] = MappingProxyType({}),
        place: Path | None = None,
        standby_of: "PrivatePostgres | None" = None,
        data_by: str = "",
    ) -> None:
        """`standby_of` is a running server, of which this one becomes a standby by streaming replication. `data_by` is a command of
        a shell that makes the directory `data` in place of that.
        """
        self._standby_of = standby_of
        self._data_by = data_by
        self._settings = {**_ALWAYS, **settings}
        super().__init__(place)
        self._port = 0

    @property
    def url(self) -> str:
        return f"postgresql+asyncpg://postgres@{self.address}/postgres"

    @property
    def address(self) -> str:
        assert self._port, "a server that was never started has no address"
        return f"127.0.0.1:{self._port}"

    def launch(self) -> None:
        """Start without waiting; call `wait_until_ready` afterwards."""
        assert not self.processes(), f"PostgreSQL on port {self._port} is running already"
        binaries = postgres_binaries()
        if binaries is None:
            raise NotInstalledError("PostgreSQL is not installed: apt-get install postgresql")
        if self._keeper is None:
            self._keeper, self._port = Keeper(self._place), free_port()
        directory = self._keeper.directory
        user, group = unprivileged()
        if user is not None and group is not None:
            os.chown(directory, user, group)
        options = {**self._settings, "port": str(self._port)}
        initdb = (
            *(str(binaries / "initdb"), "-D", "data", "--no-sync", "--no-instructions"),
            *("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"),
        )
        postgres = (
            *(str(binaries / "postgres"), "-D", "data"),
            *(part for name, value in options.items() for part in ("-c", f"{name}={value}")),
        )
        make: tuple[str, ...] = initdb
        if self._standby_of is not None:
            host, _, port = self._standby_of.address.partition(":")
            # It writes standby.signal and the way to the primary, too.
            make = (
                *(str(binaries / "pg_basebackup"), "-h", host, "-p", port, "-U", "postgres"),
                *("-D", "data", "-R", "-X", "stream", "-c", "fast", "--no-sync"),
            )
        made = self._data_by or shlex.join(make)
        script = f"test -e data/PG_VERSION || {made} && exec {shlex.join(postgres)}"
        self._server = self._keeper.start(
            Command(
                argv=("/bin/sh", "-c", script),
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
                log=str(directory / "server.log"),
                user=user,
                group=group,
            )
        )

    def wait_until_ready(self) -> None:
        assert self._keeper is not None, "launch comes first"
        wait_until_ready(
            "PostgreSQL",
            ready=self._is_ready,
            alive=lambda: self._server in self.processes(),
            logs=(self._keeper.directory / "server.log",),
        )

    def _is_ready(self) -> bool:
        assert self._keeper is not None
        try:
            lines = (self._keeper.directory / "data" / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        # A killed server leaves this file behind, so it must name the process that we started.
        return lines[:1] == [str(self._server)] and "".join(lines[7:8]).strip() in ("ready", "standby")


def unprivileged() -> tuple[int, int] | tuple[None, None]:
    """The user that PostgreSQL runs as: it refuses to run as root."""
    if os.geteuid() != 0:
        return None, None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    raise NotInstalledError(
        "PostgreSQL refuses to run as root, and there is neither a user postgres nor a user nobody"
    )
