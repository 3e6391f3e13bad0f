"""The properties of this machine that the figures depend on."""

import os
import platform
import re
import subprocess
from pathlib import Path

from msgspec import Struct

from tests.servers.installed import postgres_binaries, rabbitmq_scripts


class Machine(Struct, frozen=True):
    processors: int
    model: str
    system: str
    python: str
    rabbitmq: str
    postgresql: str
    # The load average of the last minute.
    load: float


def this_machine() -> Machine:
    return Machine(
        processors=os.cpu_count() or 1,
        model=_found(r"^model name\s*: (.*)$", _text("/proc/cpuinfo")),
        system=_found(r'^PRETTY_NAME="?([^"\n]*)', _text("/etc/os-release")),
        python=platform.python_version(),
        rabbitmq=_rabbitmq_version(),
        postgresql=_postgresql_version(),
        load=os.getloadavg()[0],
    )


def _rabbitmq_version() -> str:
    """Read from the name of its installation directory: asking the program costs an Erlang start."""
    scripts = rabbitmq_scripts()
    if scripts is None:
        return ""
    names = [scripts.resolve(), *scripts.resolve().parent.glob("lib/rabbitmq_server-*")]
    return next((found for name in names if (found := _found(r"rabbitmq_server-([\d.]+)", str(name)))), "?")


def _postgresql_version() -> str:
    binaries = postgres_binaries()
    if binaries is None:
        return ""
    said = subprocess.run(
        (str(binaries / "postgres"), "--version"), capture_output=True, text=True, check=True
    )
    return _found(r"([\d.]+)", said.stdout)


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1] if found else ""


def _text(path: str) -> str:
    return Path(path).read_text() if Path(path).exists() else ""
