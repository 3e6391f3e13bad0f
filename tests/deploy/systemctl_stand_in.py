"""Stands in for systemctl, below a directory of its own: it starts units as their files say, and waits until they tell that they are
ready. It knows only the directives that matter to a worker, and no users or sandboxes: systemd-analyze checks those.

    python systemctl_stand_in.py DIRECTORY enable --now moor-scheduler@1
"""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PATIENCE_S = 120.0


class UnitError(Exception):
    pass


class Machine:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._state = root / "systemctl.json"
        for each in ("log", "run"):
            (root / each).mkdir(exist_ok=True)

    def do(self, words: list[str]) -> None:
        verb, flags = words[0], [word for word in words[1:] if word.startswith("-")]
        units = [word for word in words[1:] if not word.startswith("-")]
        state = (
            json.loads(self._state.read_text()) if self._state.exists() else {"enabled": [], "running": {}}
        )
        enabled, running = state["enabled"], state["running"]
        workers = [unit for unit in units if unit != "moor.target"]
        if verb == "enable":
            enabled += [unit for unit in workers if unit not in enabled]
        if len(workers) < len(units):
            workers += enabled if verb == "start" else [*running] if verb == "stop" else []
        try:
            if verb in ("stop", "restart"):
                for unit in workers:
                    self._stop(running.pop(unit))
            if verb in ("start", "restart") or "--now" in flags:
                for unit in workers:
                    if (process := self._start(unit)) is not None:
                        running[unit] = process
        finally:
            self._state.write_text(json.dumps(state))

    def _start(self, unit: str) -> int | None:
        lines = self._lines(unit)
        environment = {
            "PATH": os.environ["PATH"],
            "XDG_CONFIG_HOME": "/nonexistent",
            # At their usual ports a `moor up` may serve.
            "MOOR_LISTEN": "127.0.0.1:0",
            "MOOR_DASHBOARD_LISTEN": "127.0.0.1:0",
            **self._environment(lines),
        }
        command = shlex.split(next(value for key, value in lines if key == "ExecStart"))
        log = (self.root / "log" / f"{unit}.log").open("a")
        if ("Type", "oneshot") in lines:
            done = subprocess.run(command, env=environment, stdout=log, stderr=log, check=False)
            if done.returncode:
                raise UnitError(f"{unit} ended with {done.returncode}: {self._said(unit)}")
            return None
        address = str(self.root / "run" / "notify")
        Path(address).unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            told.bind(address)
            told.settimeout(1)
            process = subprocess.Popen(
                command,
                env=environment | {"NOTIFY_SOCKET": address},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._until_ready(unit, process, told)
        return process.pid

    def _until_ready(self, unit: str, process: subprocess.Popen[bytes], told: socket.socket) -> None:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end and process.poll() is None:
            try:
                if told.recv(4096).startswith(b"READY=1"):
                    return
            except TimeoutError:
                continue
        process.kill()
        raise UnitError(f"{unit} is not ready: {self._said(unit)}")

    def _stop(self, process: int) -> None:
        os.kill(process, signal.SIGTERM)
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            # The file is gone with the process, also between opening and reading it.
            try:
                state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                return
            if state == "Z":
                return
            time.sleep(0.1)
        raise UnitError(f"process {process} does not stop")

    def _lines(self, unit: str) -> list[tuple[str, str]]:
        name, _, instance = unit.partition("@")
        file = self.root / "units" / (f"{name}@.service" if instance else f"{name}.service")
        text = file.read_text().replace("%i", instance)
        # What the machine has at fixed places lies below this directory.
        for place in ("/etc/moorage", "/opt/moorage"):
            text = text.replace(place, f"{self.root}{place}")
        pairs = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
        return [(key, value) for key, equals, value in pairs if equals]

    def _environment(self, lines: list[tuple[str, str]]) -> dict[str, str]:
        found: dict[str, str] = {}
        for key, value in lines:
            if key == "Environment":
                found |= dict([value.split("=", 1)])
            elif key == "EnvironmentFile":
                file = Path(value.removeprefix("-"))
                if file.exists() or not value.startswith("-"):
                    pairs = (line.partition("=") for line in file.read_text().splitlines())
                    found |= {name: text.strip("'") for name, equals, text in pairs if equals}
        return found

    def _said(self, unit: str) -> str:
        return (self.root / "log" / f"{unit}.log").read_text()[-2000:]


if __name__ == "__main__":
    try:
        Machine(Path(sys.argv[1])).do(sys.argv[2:])
    except UnitError as wrong:
        sys.exit(str(wrong))
