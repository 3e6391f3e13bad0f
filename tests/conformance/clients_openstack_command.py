"""Runs the `openstack` command as a program, as a person at a terminal would; returns its output, or raises its error."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PATIENCE_S = 120.0
# The features of the newest version, without asking for a version: the command negotiates one with the server.
NEWEST, SETTLED, FIRST = "1.39", "1", "1.0"


class RefusedError(RuntimeError):
    """The command ended with an error; the message holds its output."""


class Openstack:
    """The command, and which of its subcommands were used so far."""

    def __init__(self, program: Path, url: str, credentials: Sequence[str]) -> None:
        self._before = (str(program), "--os-endpoint", url, *credentials)
        # Ignore the cloud configuration of the person who runs this.
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
        self.used: set[str] = set()

    def __call__(self, subcommand: str, *arguments: str, version: str = NEWEST) -> str:
        """Returns its output."""
        self.used.add(subcommand)
        done = subprocess.run(
            (*self._before, "--os-placement-api-version", version, *subcommand.split(), *arguments),
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

    def told(self, subcommand: str, *arguments: str, version: str = NEWEST) -> Any:
        return json.loads(self(subcommand, *arguments, "-f", "json", version=version))

    def refused(self, subcommand: str, *arguments: str, version: str = NEWEST) -> str:
        try:
            printed = self(subcommand, *arguments, version=version)
        except RefusedError as refusal:
            return str(refusal)
        raise AssertionError(f"was not refused, but printed {printed!r}")

    @property
    def subcommands(self) -> set[str]:
        """All placement subcommands, by the command's own list."""
        told = json.loads(self("command list", "--group", "openstack.placement.v1", "-f", "json"))
        self.used.remove("command list")
        return {command for group in told for command in group["Commands"]}
