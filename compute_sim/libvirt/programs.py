"""Runs the programs that make disks: what they print when they fail is the reason of the failure."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from compute_sim.libvirt.failures import WorkFailed

PATIENCE_S = 600.0


def run(command: Sequence[str | Path]) -> str:
    """The output of this command. Raises `WorkFailed` with the command's name and its own words."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(  # noqa: S603 - a program by its name, and no shell
            [*map(str, command)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise WorkFailed(f"the program {name} is not installed on the compute") from None
    except subprocess.TimeoutExpired:
        raise WorkFailed(f"{name} has not ended within {PATIENCE_S:g} s") from None
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise WorkFailed(f"{name}: {words[-1] if words else f'ended with code {done.returncode}'}")
    return done.stdout
