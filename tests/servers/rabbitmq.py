"""A private RabbitMQ: on loopback only, with temporary data, removed when the process ends.

It shares nothing with other nodes on the machine: neither the home with the Erlang cookie, nor the port mapper (epmd).
"""

import os
import secrets
import shlex
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from laboratory.private_servers import Command, Keeper, wait_until_ready
from tests.servers.free_places import free_port
from tests.servers.installed import NotInstalledError, rabbitmq_scripts
from tests.servers.kept import KeptServer

_NODE = "moor@localhost"
TOOLS = ("rabbitmqctl", "rabbitmq-queues", "rabbitmq-upgrade")
_CTL_PATIENCE_S = 120.0
# Erlang's own ports listen on every address unless told otherwise.
_LOOPBACK_ONLY = "-kernel inet_dist_use_interface {127,0,0,1}"
_PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
_METHOD_FRAME = b"\x01"


class CtlError(RuntimeError):
    """rabbitmqctl failed; the message has its output."""


@dataclass(frozen=True, kw_only=True)
class Membership:
    """Makes a node one of a cluster on this machine. Its port mapper and its cookie are those of the whole cluster."""

    node: str
    # The node that the others join.
    first: str
    cookie: str
    epmd: int


@dataclass(frozen=True, kw_only=True)
class _Ports:
    amqp: int
    distribution: int
    epmd: int


class PrivateRabbitMQ(KeptServer):
    """A RabbitMQ node with the default user guest/guest, and no plugins unless they are named.

    `stop` removes the data. `kill` is a crash: `start` then recovers the same data on the same port.
    """

    def __init__(
        self,
        *,
        place: Path | None = None,
        more_settings: tuple[str, ...] = (),
        plugins: tuple[str, ...] = (),
        membership: Membership | None = None,
    ) -> None:
        super().__init__(place)
        self._more_settings = more_settings
        self._plugins = plugins
        self._membership = membership
        self._node = membership.node if membership else _NODE
        self._ports = _Ports(amqp=0, distribution=0, epmd=0)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self.address}/"

    @property
    def address(self) -> str:
        assert self._ports.amqp, "a server that was never started has no address"
        return f"127.0.0.1:{self._ports.amqp}"

    @property
    def node(self) -> str:
        """The name of the Erlang node."""
        return self._node

    @property
    def ctl_command(self) -> str:
        """The `rabbitmqctl` command line for this node, quoted for a shell."""
        assert self._keeper is not None, "a server that was never started has no rabbitmqctl"
        return shlex.join(("/bin/sh", str(self._keeper.directory / "rabbitmqctl")))

    def _write_files(self, directory: Path, scripts: Path) -> None:
        settings = [
            f"listeners.tcp.1 = 127.0.0.1:{self._ports.amqp}",
            "disk_free_limit.absolute = 50MB",
            "log.console = false",
            "log.file.level = warning",
            *self._more_settings,
        ]
        if self._membership:
            settings += [
                "cluster_formation.peer_discovery_backend = classic_config",
                f"cluster_formation.classic_config.nodes.1 = {self._membership.first}",
                "cluster_partition_handling = pause_minority",
            ]
        # Erlang refuses a cookie that others may read. Its own it makes readable for a moment, when a tool may read it already.
        cookie = directory / ".erlang.cookie"
        cookie.touch(0o600)
        cookie.write_text(self._membership.cookie if self._membership else secrets.token_hex(10))
        (directory / "rabbitmq.conf").write_text("".join(f"{line}\n" for line in settings))
        # Empty but existing: otherwise the machine's own file would be read.
        (directory / "rabbitmq-env.conf").touch()
        (directory / "enabled_plugins").write_text(f"[{','.join(self._plugins)}].\n")
        env = [f"{name}={value}" for name, value in _environment(directory, self._node, self._ports).items()]
        for tool in TOOLS:
            line = shlex.join(("env", "-i", *env, str(scripts / tool), "-n", self._node))
            (directory / tool).write_text(f'#!/bin/sh\nexec {line} "$@"\n')

    def launch(self) -> None:
        """Start without waiting; call `wait_until_ready` afterwards."""
        assert not self.processes(), f"RabbitMQ on port {self._ports.amqp} is running already"
        scripts = rabbitmq_scripts()
        if scripts is None:
            raise NotInstalledError("RabbitMQ is not installed: apt-get install rabbitmq-server")
        if self._keeper is None:
            self._keeper = Keeper(self._place)
            mapper_port = self._membership.epmd if self._membership else free_port()
            self._ports = _Ports(amqp=free_port(), distribution=free_port(), epmd=mapper_port)
            self._write_files(self._keeper.directory, scripts)
        directory = self._keeper.directory
        env, log = _environment(directory, self._node, self._ports), str(directory / "startup.log")
        if self._membership is None:
            start_port_mapper(self._keeper, self._ports.epmd)
        server = (str(scripts / "rabbitmq-server"), "-noinput")
        self._server = self._keeper.start(Command(argv=server, env=env, log=log))

    def wait_until_ready(self) -> None:
        assert self._keeper is not None, "launch comes first"
        directory = self._keeper.directory
        wait_until_ready(
            "RabbitMQ",
            ready=lambda: _speaks_amqp(self._ports.amqp),
            alive=lambda: self._server in self.processes(),
            logs=(directory / "startup.log", directory / "log" / f"{self._node}.log"),
        )

    def settle(self) -> None:
        """Write the table of quorum queues to the disk, so that a crash cannot make them useless.

        A node records a new quorum queue in a table that reaches the disk up to a second later. If it is killed before,
        the queue comes back without a leader and never gets one. So a test that has just declared some calls this before `kill`.
        """
        self.ctl("eval", "[ok = dets:sync(Table) || Table <- dets:all()].")

    def ctl(self, *args: str, stdin: str | None = None) -> str:
        """Run rabbitmqctl and return its output. It starts Erlang, so it takes about a second."""
        return self.tool("rabbitmqctl", *args, stdin=stdin)

    def tool(self, name: str, *args: str, stdin: str | None = None) -> str:
        """Run one of TOOLS, as `ctl` does."""
        assert self._keeper is not None, "a server that was never started has no tools"
        done = subprocess.run(
            ("/bin/sh", str(self._keeper.directory / name), *args),
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            timeout=_CTL_PATIENCE_S,
            check=False,
        )
        if done.returncode != 0:
            said = (done.stderr + done.stdout).strip()
            raise CtlError(f"{name} {shlex.join(args)} failed with exit code {done.returncode}:\n{said}")
        return done.stdout


def start_port_mapper(keeper: Keeper, port: int) -> None:
    """A node would start a port mapper as a daemon. As a child of the keeper it ends with it in every case."""
    if epmd := shutil.which("epmd"):
        mapper = (epmd, "-port", str(port), "-address", "127.0.0.1")
        env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(keeper.directory)}
        keeper.start(Command(argv=mapper, env=env, log=str(keeper.directory / "epmd.log")))


def _environment(directory: Path, node: str, ports: _Ports) -> dict[str, str]:
    """The complete environment of the node and rabbitmqctl: nothing of our own may misdirect them."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(directory),
        "LC_ALL": "C.UTF-8",
        "ERL_EPMD_PORT": str(ports.epmd),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        # The script then execs the Erlang machine instead of staying its parent.
        "RABBITMQ_ALLOW_INPUT": "1",
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": str(directory / "rabbitmq-env.conf"),
        "RABBITMQ_CTL_DIST_PORT_MAX": "0",
        "RABBITMQ_CTL_DIST_PORT_MIN": "0",
        "RABBITMQ_CTL_ERL_ARGS": _LOOPBACK_ONLY,
        "RABBITMQ_DIST_PORT": str(ports.distribution),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
        "RABBITMQ_NODENAME": node,
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(ports.amqp),
        "RABBITMQ_PID_FILE": str(directory / "rabbitmq.pid"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _LOOPBACK_ONLY,
    }


def _speaks_amqp(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(_PROTOCOL_HEADER)
            return connection.recv(1) == _METHOD_FRAME
    except OSError:
        return False
