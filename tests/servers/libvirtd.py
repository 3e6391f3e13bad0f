"""A private libvirtd with QEMU: its own sockets, state and configuration, which end with the test process.

As root it runs in a mount namespace of its own, where the folders that are compiled into libvirt are others; otherwise as a session's
daemon, whose folders follow from the environment. It listens at a Unix socket only. What it has learnt of QEMU takes it long to learn,
so that is kept for the next one.
"""

import os
import shlex
import signal
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import Self

import psutil

from tests.servers.installed import OF_LIBVIRT, NotInstalledError, libvirtd, missing
from tests.servers.keeper import Command, Keeper
from tests.servers.starting import wait_until_ready

_COMPILED_IN = {
    "run": "/run/libvirt",
    "lib": "/var/lib/libvirt",
    "etc": "/etc/libvirt",
    "log": "/var/log/libvirt",
    "cache": "/var/cache/libvirt",
}
_QEMU = """
security_driver = "none"
namespaces = []
cgroup_controllers = []
stdio_handler = "file"
"""
_AS_ROOT = """
user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
"""
# Whatever libvirtd learnt is valid as long as QEMU and libvirt are the same: it checks that itself.
_CACHE = Path(tempfile.gettempdir()) / f"moorage-libvirt-cache-{os.getuid()}"


class PrivateLibvirtd:
    """A libvirtd with the test driver of QEMU. It may be stopped, killed and started again; its guests outlive it, until `stop`."""

    def __init__(self) -> None:
        self._keeper: Keeper | None = None
        self._server = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def directory(self) -> Path:
        assert self._keeper is not None, "a libvirtd that was never started has no directory"
        return self._keeper.directory

    @property
    def uri(self) -> str:
        kind = "system" if os.getuid() == 0 else "session"
        return f"qemu+unix:///{kind}?socket={self.directory / 'sock' / 'libvirt-sock'}"

    def start(self) -> None:
        program = libvirtd()
        if program is None or missing(OF_LIBVIRT):
            raise NotInstalledError(
                f"{' and '.join(missing(OF_LIBVIRT))} not found: sudo apt-get install -y {' '.join(OF_LIBVIRT)}"
            )
        if self._keeper is None:
            self._keeper = Keeper()
            self._write_files(self._keeper.directory)
        environment = {
            "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin",
            "HOME": str(self.directory),
            "XDG_RUNTIME_DIR": str(self.directory / "run"),
            "XDG_CONFIG_HOME": str(self.directory / "etc"),
            "XDG_CACHE_HOME": str(self.directory / "cache"),
            "LC_ALL": "C.UTF-8",
        }
        line = ["sh", str(self.directory / "start"), str(program)]
        if os.getuid() == 0:
            line = ["unshare", "--mount", "--propagation", "private", *line]
        log = str(self.directory / "startup.log")
        self._server = self._keeper.start(Command(argv=tuple(line), env=environment, log=log))
        wait_until_ready(
            "libvirtd",
            ready=self._answers,
            alive=lambda: self.is_alive,
            logs=(self.directory / "startup.log", self.directory / "libvirtd.log"),
        )

    def _answers(self) -> bool:
        done = subprocess.run(
            ("virsh", "-c", self.uri, "version"),
            capture_output=True,
            check=False,
            timeout=90,
            stdin=subprocess.DEVNULL,
        )
        return done.returncode == 0

    def _write_files(self, directory: Path) -> None:
        for name in (*_COMPILED_IN, "sock"):
            (directory / name).mkdir()
        as_root = os.getuid() == 0
        (directory / "etc" / ("qemu.conf" if as_root else "libvirt")).parent.mkdir(exist_ok=True)
        conf = directory / "etc" / "qemu.conf" if as_root else directory / "etc" / "libvirt" / "qemu.conf"
        conf.parent.mkdir(exist_ok=True)
        conf.write_text(_QEMU + (_AS_ROOT if as_root else ""))
        (directory / "libvirtd.conf").write_text(
            f'unix_sock_dir = "{directory / "sock"}"\n'
            f'host_uuid = "{uuid.uuid4()}"\n'
            'auth_unix_rw = "none"\nauth_unix_ro = "none"\n'
            f'log_outputs = "3:file:{directory / "libvirtd.log"}"\n'
        )
        _CACHE.mkdir(exist_ok=True)
        mounts = [
            f"mkdir -p {target} && mount --bind {shlex.quote(str(_CACHE if name == 'cache' else directory / name))} {target}"
            for name, target in _COMPILED_IN.items()
        ]
        daemon = f'exec "$1" --config {shlex.quote(str(directory / "libvirtd.conf"))} --pid-file {shlex.quote(str(directory / "pid"))}'
        (directory / "start").write_text("\n".join(["set -e", *(mounts if as_root else []), daemon, ""]))

    def processes(self) -> tuple[int, ...]:
        """The daemon, and the guests' processes."""
        return self._keeper.processes() if self._keeper else ()

    @property
    def pid(self) -> int:
        return int((self.directory / "pid").read_text())

    @property
    def is_alive(self) -> bool:
        return self._server in self.processes()

    @property
    def is_connected(self) -> bool:
        """Is a client connected to the daemon?"""
        sockets = psutil.Process(self.pid).net_connections("unix")
        here = [each for each in sockets if str(each.laddr).endswith("/libvirt-sock")]
        # One of them is the one that it listens at.
        return len(here) > 1

    def kill(self) -> None:
        """Kill the daemon alone: its guests run on."""
        os.kill(self.pid, signal.SIGKILL)
        wait_until_ready(
            "the end of libvirtd",
            ready=lambda: not self.is_alive,
            alive=lambda: True,
            logs=(),
        )

    def stop(self) -> None:
        """End the daemon and all of its guests."""
        if self._keeper:
            self._keeper.close()
            self._keeper = None
