"""A private Prometheus: on loopback only, with temporary data. Its programs are those that are installed, or else Debian's package, which is
unpacked into `.venv` and not installed, so no service is started and no root is needed.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import yaml

from laboratory.private_servers import die_with, wait_until_ready
from tests.servers.free_places import free_port
from tests.servers.installed import NotInstalledError
from tests.waiting import PATIENCE_S

PROGRAMS = ("prometheus", "promtool")
_UNPACKED: Path = Path(sys.prefix) / "debian"


def prometheus_programs() -> Path:
    """The directory of Prometheus's programs. The first caller unpacks them, if they are not installed."""
    if found := _found():
        return found
    _UNPACKED.mkdir(exist_ok=True)
    # Test processes run at the same time.
    with (_UNPACKED / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if found := _found():
            return found
        _unpack()
    if found := _found():
        return found
    raise NotInstalledError(f"Debian's package has no {' and '.join(PROGRAMS)} in usr/bin")


def promtool(*arguments: str, cwd: Path) -> str:
    """What promtool prints. An AssertionError has it, if promtool fails."""
    command = (str(prometheus_programs() / "promtool"), *arguments)
    done = subprocess.run(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


class PrivatePrometheus:
    def __init__(self, url: str) -> None:
        self.url = url
        self._client = httpx.Client(base_url=url, timeout=PATIENCE_S)

    def query(self, expression: str) -> Sequence[Mapping[str, Any]]:
        """The series that this expression has now."""
        found = self._get("/api/v1/query", query=expression)
        result: Sequence[Mapping[str, Any]] = found["result"]
        return result

    def firing(self) -> set[str]:
        alerts = self._get("/api/v1/alerts")["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    def _get(self, path: str, **parameters: str) -> Any:
        answer = self._client.get(path, params=parameters).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def is_ready(self) -> bool:
        try:
            return self._client.get("/-/ready").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def close(self) -> None:
        self._client.close()


@contextmanager
def private_prometheus(
    targets: Sequence[str], rules: Mapping[str, Any] | None = None
) -> Iterator[PrivatePrometheus]:
    """A Prometheus that scrapes these addresses, and evaluates these rules, each second."""
    with tempfile.TemporaryDirectory(prefix="prometheus-") as name:
        place = Path(name)
        (place / "rules.yaml").write_text(yaml.safe_dump(rules or {"groups": []}))
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "moorage", "static_configs": [{"targets": [*targets]}]}],
        }
        (place / "prometheus.yaml").write_text(yaml.safe_dump(config))
        address, log = f"127.0.0.1:{free_port()}", place / "log"
        with log.open("w") as output:
            process = subprocess.Popen(
                (
                    str(prometheus_programs() / "prometheus"),
                    f"--config.file={place}/prometheus.yaml",
                    f"--storage.tsdb.path={place}/data",
                    f"--web.listen-address={address}",
                ),
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509 - it only calls prctl
            )
        server = PrivatePrometheus(f"http://{address}")
        try:
            wait_until_ready(
                "Prometheus", ready=server.is_ready, alive=lambda: process.poll() is None, logs=(log,)
            )
            yield server
        finally:
            server.close()
            process.send_signal(signal.SIGKILL)
            process.wait()


def _found() -> Path | None:
    on_path = shutil.which("prometheus")
    places: tuple[Path, ...] = (
        _UNPACKED / "usr" / "bin",
        *((Path(on_path).resolve().parent,) if on_path else ()),
    )
    for place in places:
        if all(os.access(place / name, os.X_OK) for name in PROGRAMS):
            return place
    return None


def _unpack() -> None:
    if shutil.which("apt-get") is None:
        raise NotInstalledError(f"install Prometheus: {' and '.join(PROGRAMS)} are not on the path")
    # Lists of packages may be missing on a new machine. Only root may fetch them.
    if not _run("apt-get", "download", "prometheus"):
        _run(*(() if os.geteuid() == 0 else ("sudo", "-n")), "apt-get", "-qq", "update")
        if not _run("apt-get", "download", "prometheus"):
            raise NotInstalledError(
                "Prometheus not found, and `apt-get download prometheus` fails. Either of these helps: sudo apt-get update; sudo apt-get "
                "install -y prometheus"
            )
    (package,) = _UNPACKED.glob("prometheus_*.deb")
    _run("dpkg-deb", "-x", package.name, ".")
    package.unlink()


def _run(*command: str) -> bool:
    done = subprocess.run(command, cwd=_UNPACKED, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return done.returncode == 0


def rules_at_once(rules: Mapping[str, Any]) -> Mapping[str, Any]:
    """These alerts without their `for`: each fires as soon as its condition is true."""
    copy: Mapping[str, Any] = json.loads(json.dumps(rules))
    for group in copy["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    return copy
