"""The commands of docs/operate/ are run as they are printed, in the order of a first day: with private servers that speak only TLS, and
with places below a directory of the test in place of /etc, /opt and /var.
"""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.deploy.deployed import Servers, running_servers

pytestmark = [pytest.mark.rabbitmq, pytest.mark.postgresql, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "operate"
# A page of another kind of deployment has a test of its own.
ELSEWHERE = {"clusters.md"}
ORDER = ("deploying.md", "monitoring.md", "troubleshooting.md", "backup.md", "upgrades.md")
# What takes minutes, and the same for this test: the package itself is built by test_package.py.
INSTALLS = ("python3 -m venv /opt/moorage", "/opt/moorage/bin/pip install .")
# A shell in which nobody has read an operator's file yet.
NEW_SHELL = "for name in $(env | sed -n 's/^\\(MOOR_[A-Z_]*\\)=.*/\\1/p'); do unset $name; done"
BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)


def blocks_of(page: str) -> list[str]:
    return BLOCK.findall((PAGES / page).read_text())


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with running_servers() as found:
        yield found


@pytest.fixture
def machine() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="moor-") as place:
        root = Path(place)
        for each in ("bin", "units", "etc/moorage", "etc/sysusers.d", "opt/moorage", "backups"):
            (root / each).mkdir(parents=True)
        (root / "etc/moorage").rmdir()
        (root / "opt/moorage/bin").symlink_to(Path(sys.executable).parent)
        try:
            yield root
        finally:
            state = root / "systemctl.json"
            for process in json.loads(state.read_text())["running"].values() if state.exists() else ():
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


def programs(root: Path, servers: Servers) -> None:
    """What is not on the machine of these tests, or must not be touched there."""
    stand_in = shlex.join([sys.executable, str(Path(__file__).with_name("systemctl_stand_in.py")), str(root)])
    for name, line in {
        "systemctl": f'exec {stand_in} "$@"',
        "systemd-sysusers": "exit 0",
        "rabbitmqctl": f'exec {servers.rabbitmq.ctl_command} "$@"',
    }.items():
        program = root / "bin" / name
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)


def placed(text: str, root: Path, servers: Servers, ports: str) -> str:
    """The commands, with the places and addresses of this test."""
    bus, database = urlsplit(servers.bus), urlsplit(servers.db)
    for name, real in {
        **dict.fromkeys(INSTALLS, "true"),
        "/etc/ssl/moorage/ca.pem": str(servers.certificates.ca),
        "mq1.example": bus.netloc.rpartition("@")[2],
        "db1.example": database.netloc.rpartition("@")[2],
        "/etc/systemd/system/": f"{root}/units/",
        "/etc/sysusers.d/": f"{root}/etc/sysusers.d/",
        "/etc/moorage": f"{root}/etc/moorage",
        "/opt/moorage": f"{root}/opt/moorage",
        "/var/backups": f"{root}/backups",
        "/var/lib/moorage-passwords": f"{root}/passwords",
        "-o moorage -g moorage ": "",
        "-C /etc ": f"-C {root}/etc ",
        "127.0.0.1:91": f"127.0.0.1:{ports}",
    }.items():
        text = text.replace(name, real)
    return text


def free_hundred() -> str:
    """The first digits of a hundred ports that nobody uses, for health pages: the units number them."""
    for hundred in (30 + (os.getpid() + step) % 29 for step in range(29)):
        with ExitStack() as open_sockets, suppress(OSError):
            for port in range(hundred * 100, hundred * 100 + 100):
                open_sockets.enter_context(socket.create_server(("127.0.0.1", port)))
            return str(hundred)
    raise AssertionError("of each hundred ports from 3000 to 5899, somebody uses one")


def test_every_page_of_operators_is_run() -> None:
    pages = {page.name for page in PAGES.glob("*.md") if blocks_of(page.name)}

    assert pages - ELSEWHERE == set(ORDER)
    assert all(name in "".join(blocks_of("deploying.md")) for name in INSTALLS)


def test_every_page_is_reached_from_the_first() -> None:
    links = re.findall(r"\]\(([^)#]+\.\w+)(?:#[^)]*)?\)", (PAGES / "README.md").read_text())

    assert {page.name for page in PAGES.glob("*.md")} - {"README.md"} <= {*links}


def test_a_first_day_goes_as_the_pages_say(servers: Servers, machine: Path) -> None:
    programs(machine, servers)
    ports = free_hundred()
    administrators = next(
        "\n".join(line for line in block.splitlines() if line.startswith("export MOOR_"))
        for block in blocks_of("deploying.md")
        if "export MOOR_BUS_URL" in block
    )
    script = ["set -euo pipefail", f"cd {ROOT}"]
    for page in ORDER:
        for number, block in enumerate(blocks_of(page)):
            commands = block
            if "--replace-env" in block:
                commands = f"({NEW_SHELL}\n{administrators}\n{block})"
            # The copies of units get the ports, too.
            commands = commands.replace(
                "systemctl daemon-reload",
                f"sed -i 's/127.0.0.1:[9]1/127.0.0.1:{ports}/' {machine}/units/*.service",
            )
            script += [f"echo '== {page}, block {number + 1}'", commands]
    postgres = urlsplit(servers.postgres.url)
    done = subprocess.run(
        ["bash", "-c", placed("\n".join(script), machine, servers, ports)],
        capture_output=True,
        text=True,
        check=False,
        env={
            "PATH": f"{machine}/bin:{os.environ['PATH']}",
            "HOME": str(machine),
            "COLUMNS": "200",
            "PGHOST": str(postgres.hostname),
            "PGPORT": str(postgres.port),
            "PGUSER": "postgres",
        },
    )

    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert "Traceback" not in done.stderr
    assert "active" in done.stdout
