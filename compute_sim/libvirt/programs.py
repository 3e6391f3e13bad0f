"""Runs the programs that make disks: what they print when they fail is the reason of the failure.

They read what tenants have made. So each may have only so much memory, and take only so long.
"""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from compute_sim.libvirt.failures import WorkFailed

PATIENCE_S = 600.0
_MEMORY_KIB = 1024 * 1024
_LIMITED = ("sh", "-c", 'ulimit -v "$0"; exec "$@"', str(_MEMORY_KIB))


def run(command: Sequence[str | Path], patience_s: float = PATIENCE_S) -> str:
    """The output of this command. Raises `WorkFailed` with the command's name and its own words."""
    name = Path(command[0]).name
    if shutil.which(command[0]) is None:
        raise WorkFailed(f"the program {name} is not installed on the compute")
    try:
        done = subprocess.run(  # noqa: S603 - a program by its name, and no shell
            [*_LIMITED, *map(str, command)],
            capture_output=True,
            text=True,
            timeout=patience_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise WorkFailed(f"{name} has not ended within {patience_s:g} s") from None
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise WorkFailed(f"{name}: {words[-1] if words else f'ended with code {done.returncode}'}")
    return done.stdout
