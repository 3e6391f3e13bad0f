"""Which servers this machine can run, and what to do about a missing one.

`decide` is pure: it judges a `Machine`. Other functions look at the real machine and install on it.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

AMQP_VARIABLE = "MOOR_TEST_AMQP_URL"
AMQP_CTL_VARIABLE = "MOOR_TEST_AMQP_CTL"
POSTGRES_VARIABLE = "MOOR_TEST_POSTGRES_URL"


class NotInstalledError(RuntimeError):
    """The server is not installed; the message says how to install it."""


class InstallFailedError(RuntimeError):
    """The package manager failed; the message has its output."""


class Software(StrEnum):
    """The needed software, by the name of its Debian package."""

    RABBITMQ = "rabbitmq-server"
    POSTGRES = "postgresql"
    CHROMIUM = "chromium"
    SYSTEMD = "systemd"
    LIBVIRT = "libvirt-daemon-system"
    VIRSH = "libvirt-clients"
    QEMU = "qemu-system-x86"
    QEMU_IMG = "qemu-utils"
    ISO = "genisoimage"
    XMLLINT = "libxml2-utils"
    MARIADB = "mariadb-server"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The installed software, and whether we may install more."""

    installed: frozenset[Software]
    has_apt: bool
    become_root: tuple[str, ...] | None
    """The prefix that runs a command as root: empty for root itself, None if there is no way."""


@dataclass(frozen=True)
class Ready:
    """All needed software is installed."""


@dataclass(frozen=True)
class Install:
    """These packages are missing, and we may install them."""

    packages: tuple[Software, ...]
    become_root: tuple[str, ...]


@dataclass(frozen=True)
class AskForHelp:
    """Something is missing that we may not install."""

    message: str


_TITLES = {
    Software.RABBITMQ: "RabbitMQ",
    Software.POSTGRES: "PostgreSQL",
    Software.CHROMIUM: "Chromium",
    Software.SYSTEMD: "systemd-analyze",
    Software.LIBVIRT: "libvirtd",
    Software.VIRSH: "virsh",
    Software.QEMU: "QEMU",
    Software.QEMU_IMG: "qemu-img",
    Software.ISO: "genisoimage",
    Software.XMLLINT: "xmllint",
    Software.MARIADB: "MariaDB",
}
# The program of each software but the servers, which have several: any of these.
_PROGRAMS = {
    Software.CHROMIUM: ("chromium", "chromium-browser"),
    Software.SYSTEMD: ("systemd-analyze",),
    Software.LIBVIRT: ("libvirtd",),
    Software.VIRSH: ("virsh",),
    Software.QEMU: ("qemu-system-x86_64",),
    Software.QEMU_IMG: ("qemu-img",),
    Software.ISO: ("genisoimage",),
    Software.XMLLINT: ("xmllint",),
    Software.MARIADB: ("mariadbd",),
}
# What the tests with libvirt's test driver need, and those with real guests.
OF_LIBVIRT = (Software.VIRSH, Software.QEMU_IMG, Software.ISO, Software.XMLLINT)
OF_GUESTS = (*OF_LIBVIRT, Software.LIBVIRT, Software.QEMU)
# A browser is started by each test that needs one, so none can be named; nor can systemd's program.
_SETTING_INSTEAD = {
    Software.RABBITMQ: f"export {AMQP_VARIABLE}=amqp://USER:PASSWORD@HOST:5672/",
    Software.POSTGRES: f"export {POSTGRES_VARIABLE}=postgresql+asyncpg://SUPERUSER@HOST:5432/postgres",
}


def decide(machine: Machine, needed: Collection[Software]) -> Ready | Install | AskForHelp:
    missing = tuple(
        software for software in Software if software in needed and software not in machine.installed
    )
    if not missing:
        return Ready()
    if machine.has_apt and machine.become_root is not None:
        return Install(missing, machine.become_root)
    return AskForHelp(_how_to_help(missing, has_apt=machine.has_apt))


def _how_to_help(missing: tuple[Software, ...], *, has_apt: bool) -> str:
    titles = " and ".join(_TITLES[software] for software in missing)
    it, a_running_one = ("it", "a running one") if len(missing) == 1 else ("them", "running ones")
    if has_apt:
        why, how = f"only root may install {it}", f"sudo apt-get install -y {' '.join(missing)}"
    else:
        why, how = f"there is no apt-get to install {it}", f"(your system's way to install {titles})"
    named = [_SETTING_INSTEAD[software] for software in missing if software in _SETTING_INSTEAD]
    if not named:
        return f"{titles} not found, and {why}. Install {it}:\n    {how}"
    instead = "\n".join(f"    {each}" for each in named)
    return (
        f"{titles} not found, and {why}. Either install {it}:\n    {how}\nor name {a_running_one}:\n{instead}"
    )


def look() -> Machine:
    binaries = {
        Software.RABBITMQ: rabbitmq_scripts(),
        Software.POSTGRES: postgres_binaries(),
        **{software: program_of(software) for software in _PROGRAMS},
    }
    return Machine(
        installed=frozenset(software for software, found in binaries.items() if found),
        has_apt=shutil.which("apt-get") is not None,
        become_root=_become_root(),
    )


def install(decision: Install) -> None:
    """Install the packages. Their scripts may start servers; those are not used and keep running."""
    print(f"tests.servers: installing {' '.join(decision.packages)}", file=sys.stderr)
    apt_get = (*decision.become_root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq")
    # Installed packages stay as they are, version included.
    only_add = ("install", "-y", "--no-upgrade", "--no-install-recommends")
    _run((*apt_get, "update"))
    _run((*apt_get, "-o", "DPkg::Lock::Timeout=300", *only_add, *decision.packages))


def rabbitmq_scripts() -> Path | None:
    """The directory of RabbitMQ's own scripts: /usr/sbin has Debian's wrappers, which switch to another user."""
    on_path = shutil.which("rabbitmq-server")
    places = (
        Path("/usr/lib/rabbitmq/bin"),
        *_newest_first("/usr/lib/rabbitmq/lib", "rabbitmq_server-*/sbin"),
        Path("/opt/rabbitmq/sbin"),
        *(
            (Path(on_path).resolve().parent,)
            if on_path and "wrapper" not in Path(on_path).resolve().name
            else ()
        ),
    )
    return _first_with(places, ("rabbitmq-server", "rabbitmqctl"))


def postgres_binaries() -> Path | None:
    on_path = shutil.which("postgres")
    places = (
        *_newest_first("/usr/lib/postgresql", "*/bin"),
        *((Path(on_path).resolve().parent,) if on_path else ()),
    )
    return _first_with(places, ("postgres", "initdb"))


def program_of(software: Software) -> Path | None:
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    found = [shutil.which(name, path=path) for name in _PROGRAMS[software]]
    return next((Path(each) for each in found if each), None)


def _first_with(places: tuple[Path, ...], names: tuple[str, ...]) -> Path | None:
    return next((place for place in places if all(os.access(place / name, os.X_OK) for name in names)), None)


def _newest_first(root: str, pattern: str) -> list[Path]:
    def version(found: Path) -> list[int]:
        return [int(part) for part in found.parent.name.rpartition("-")[2].split(".") if part.isdecimal()]

    return sorted(Path(root).glob(pattern), key=version, reverse=True)


def _become_root() -> tuple[str, ...] | None:
    if os.geteuid() == 0:
        return ()
    without_password = ("sudo", "-n")
    if (
        shutil.which("sudo")
        and subprocess.run((*without_password, "true"), capture_output=True, check=False).returncode == 0
    ):
        return without_password
    return None


def _run(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise InstallFailedError(
            f"{' '.join(command)} failed with exit code {done.returncode}:\n{done.stdout}"
        )
