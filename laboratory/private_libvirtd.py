"""A private libvirtd with QEMU: its own sockets, state and configuration, which end with the process that started it.

As root it runs in a mount namespace of its own, where the folders that are compiled into libvirt are others; otherwise as a session's
daemon, whose folders follow from the environment. It listens at a Unix socket only.
"""

import os
import shlex
import shutil
import signal
import subprocess
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Self

from kit.errors import Failure
from laboratory.private_servers import Command, Keeper, wait_until_ready

# The programs that are needed, each with the Debian package that has it.
NEEDED = {
    "libvirtd": "libvirt-daemon-system",
    "virsh": "libvirt-clients",
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
}
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
_VIRSH_S = 90.0


class NotInstalled(Failure):
    """A program is not installed; the text says how to install it."""


def check_installed() -> None:
    """Raise `NotInstalled`, which names all packages that are missing."""
    path = _path()
    missing = {name: package for name, package in NEEDED.items() if shutil.which(name, path=path) is None}
    if missing:
        raise NotInstalled(
            f"{', '.join(missing)} not found: on Debian, apt-get install {' '.join(missing.values())}"
        )


def copy_learnt(to: Path) -> None:
    """Copy what the machine's own libvirt has learnt of QEMU, if it has: to learn it may take a minute.

    It is valid as long as QEMU and libvirt are the same: libvirt checks that itself.
    """
    own, learnt = own_cache()
    with suppress(OSError, shutil.Error):
        shutil.copytree(own / learnt, to / learnt, dirs_exist_ok=True)


def own_cache() -> tuple[Path, str]:
    """The cache of the machine's own libvirt, or of this user's, and the folder there of what it has learnt of QEMU."""
    if os.getuid() == 0:
        return Path("/var/cache/libvirt"), "qemu/capabilities"
    return Path.home() / ".cache" / "libvirt", "qemu/cache/capabilities"


class PrivateLibvirtd:
    """A libvirtd with QEMU. It may be stopped, killed and started again; its guests outlive it, until `stop`."""

    def __init__(self, cache: Path) -> None:
        """What it learns of QEMU is kept in `cache`, for others too."""
        self._cache = cache
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
        """Start it, and wait until it answers. Raises `NotInstalled`, or `DidNotStartError`."""
        check_installed()
        if self._keeper is None:
            self._keeper = Keeper()
            self._write_files(self._keeper.directory)
        environment = {
            "PATH": _path(),
            "HOME": str(self.directory),
            "XDG_RUNTIME_DIR": str(self.directory / "run"),
            "XDG_CONFIG_HOME": str(self.directory / "etc"),
            "XDG_CACHE_HOME": str(self.directory / "cache"),
            "LC_ALL": "C.UTF-8",
        }
        line = ["sh", str(self.directory / "start"), str(shutil.which("libvirtd", path=_path()))]
        if os.getuid() == 0:
            line = ["unshare", "--mount", "--propagation", "private", *line]
        log = str(self.directory / "startup.log")
        self._server = self._keeper.start(Command(argv=tuple(line), env=environment, log=log))
        wait_until_ready(
            "libvirtd",
            ready=lambda: not self._virsh("version").returncode,
            alive=lambda: self.is_alive,
            logs=(self.directory / "startup.log", self.directory / "libvirtd.log"),
        )

    def virsh(self, *words: str) -> str:
        """What `virsh` prints. Raises `CalledProcessError` if it fails."""
        done = self._virsh(*words)
        done.check_returncode()
        return done.stdout

    def _virsh(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - a program by its name, and no shell
            [str(shutil.which("virsh", path=_path())), "-c", self.uri, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=_VIRSH_S,
            stdin=subprocess.DEVNULL,
        )

    def _write_files(self, directory: Path) -> None:
        for name in (*_COMPILED_IN, "sock"):
            (directory / name).mkdir()
        as_root = os.getuid() == 0
        conf = directory / "etc" / "qemu.conf" if as_root else directory / "etc" / "libvirt" / "qemu.conf"
        conf.parent.mkdir(exist_ok=True)
        conf.write_text(_QEMU + (_AS_ROOT if as_root else ""))
        (directory / "libvirtd.conf").write_text(
            f'unix_sock_dir = "{directory / "sock"}"\n'
            f'host_uuid = "{uuid.uuid4()}"\n'
            'auth_unix_rw = "none"\nauth_unix_ro = "none"\n'
            f'log_outputs = "3:file:{directory / "libvirtd.log"}"\n'
        )
        self._cache.mkdir(exist_ok=True)
        if not as_root:
            (directory / "cache" / "libvirt").symlink_to(self._cache)
        mounts = [
            f"mkdir -p {target} && mount --bind {shlex.quote(str(self._cache if name == 'cache' else directory / name))} {target}"
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


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
