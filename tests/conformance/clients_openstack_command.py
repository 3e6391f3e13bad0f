"""Runs the `openstack` command as a program, as a person at a terminal would; returns its output, or raises its error."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

PATIENCE_S = 120.0
# The features of the newest version, without asking for a version: the command negotiates one with the server.
NEWEST, SETTLED, FIRST = "1.39", "1", "1.0"


class RefusedError(RuntimeError):
    """The command ended with an error; the message holds its output."""


class Openstack:
    def __init__(self, program: Path, url: str, credentials: Sequence[str]) -> None:
        self._before = (str(program), "--os-endpoint", url, *credentials)
        # Ignore the cloud configuration of the person who runs this.
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}

    def __call__(self, command: str, version: str = NEWEST) -> str:
        """Returns its output."""
        done = subprocess.run(
            (*self._before, "--os-placement-api-version", version, *command.split()),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        if done.returncode != 0:
            raise RefusedError(done.stderr.strip())
        return done.stdout
