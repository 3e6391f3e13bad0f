"""The units in deploy/systemd are read by systemd's own checker, and start what there is with the variables that it needs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from moor.clouds.run_command import app as run_app
from tests.servers.installed import AskForHelp, Install, Software, decide, install, look

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
MOOR = Path(sys.executable).with_name("moor")
INSTANCES = {
    "placement": "1",
    "scheduler": "1",
    "keeper": "1",
    "nova-scheduler": "1",
    "conductor": "harbour",
    "compute": "harbour",
    "ironic": "daemon-1",
}
# On systemd's scale, 10 is the worst.
EXPOSURE_MAX = 1.5


@pytest.fixture(scope="module")
def checker() -> str:
    match decide(look(), (Software.SYSTEMD,)):
        case AskForHelp(message):
            pytest.fail(message)
        case Install() as decision:
            install(decision)
    found = shutil.which("systemd-analyze")
    assert found, "the package systemd is installed, but has no systemd-analyze"
    return found


@pytest.fixture
def units(tmp_path: Path) -> list[str]:
    """Copies that start the program of these tests; templates with an instance."""
    names = []
    for unit in sorted((*UNITS.glob("*.service"), *UNITS.glob("*.target"))):
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/moorage/bin/moor", str(MOOR)))
        worker = unit.stem.removeprefix("moor-").removesuffix("@")
        names.append(str(tmp_path / unit.name.replace("@", f"@{INSTANCES.get(worker, '')}")))
    return names


def test_systemd_finds_nothing_wrong(checker: str, units: list[str]) -> None:
    done = analyze(checker, "verify", "--man=no", "--recursive-errors=no", *units)

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_systemd_finds_what_is_wrong(checker: str, units: list[str]) -> None:
    wrong = Path(units[0])
    wrong.with_name("x.service").write_text(
        (UNITS / "moor-dashboard.service").read_text().replace("Restart=always", "Restart=sometimes")
    )

    done = analyze(checker, "verify", "--man=no", str(wrong.with_name("x.service")))

    assert "sometimes" in done.stderr


def test_no_unit_may_do_more_than_it_must(checker: str, units: list[str]) -> None:
    services = [unit for unit in units if unit.endswith(".service")]

    done = analyze(checker, "security", "--offline=true", f"--threshold={EXPOSURE_MAX * 10:.0f}", *services)

    assert done.returncode == 0, done.stdout
    found = re.findall(r"Overall exposure level for (\S+): ([\d.]+)", done.stdout)
    assert len(found) == len(services)
    assert max(float(exposure) for _, exposure in found) <= EXPOSURE_MAX


def test_there_is_a_unit_for_each_worker_that_servers_have() -> None:
    workers = {*run_app.commands}
    started = {
        found[1]
        for unit in UNITS.glob("*.service")
        if (found := re.search(r"^ExecStart=\S+ run (\S+)", unit.read_text(), re.MULTILINE))
    }

    assert started == workers - {"simulated-ironic"}


def test_every_unit_has_its_own_port_for_its_health() -> None:
    ports = [
        port
        for unit in UNITS.glob("*.service")
        for port in re.findall(r"HEALTH_LISTEN=\S+:(\S+)", unit.read_text())
    ]

    assert len(ports) == len(set(ports)) == len(INSTANCES) + 2


def analyze(checker: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checker, *words],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
    )
