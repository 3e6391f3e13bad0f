"""The `openstack` command as a program, asked as a person at a terminal would ask it: what it printed, or why it refused."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PATIENCE_S = 120.0
# What the newest version knows, and what none is asked for: the command then settles on one with the server.
NEWEST, SETTLED, FIRST = "1.39", "1", "1.0"


class RefusedError(RuntimeError):
    """The command ended with an error, which this tells."""


class Openstack:
    """The command, and which of its subcommands were used so far."""

    def __init__(self, program: Path, url: str, credentials: Sequence[str]) -> None:
        self._before = (str(program), "--os-endpoint", url, *credentials)
        # Whatever cloud the person at this terminal has is not meant.
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
        self.used: set[str] = set()

    def __call__(self, subcommand: str, *arguments: str, version: str = NEWEST) -> str:
        """What it printed."""
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
        """All that there are for placement, by its own account."""
        told = json.loads(self("command list", "--group", "openstack.placement.v1", "-f", "json"))
        self.used.remove("command list")
        return {command for group in told for command in group["Commands"]}
