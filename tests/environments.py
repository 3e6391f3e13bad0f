"""Third-party programs, each in a Python environment of its own that is created on first use and kept.

They cannot share ours: they have dozens of dependencies, and would pin ours to other versions.
"""

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

DIRECTORY = Path(__file__).parents[1] / ".venvs"
LINES_SHOWN = 10


class NotInstallableError(RuntimeError):
    """The package installer refused; the message holds the end of its output."""


def environment(name: str, requirements: Sequence[str]) -> Path:
    """The directory of its programs. The environment is created again when other requirements are asked for."""
    DIRECTORY.mkdir(exist_ok=True)
    with (DIRECTORY / f"{name}.lock").open("w") as lock:
        # Concurrent callers wait, and then find it created.
        fcntl.flock(lock, fcntl.LOCK_EX)
        here = DIRECTORY / name
        made_for = here / "made-for.txt"
        wanted = "\n".join((sys.version, *requirements))
        if not made_for.exists() or made_for.read_text() != wanted:
            print(f"installing {', '.join(requirements)} in {here}", file=sys.stderr, flush=True)
            shutil.rmtree(here, ignore_errors=True)
            _run((sys.executable, "-m", "venv", str(here)))
            _run((str(here / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", *requirements))
            made_for.write_text(wanted)
        return here / "bin"


def _run(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        shown = "\n".join(done.stdout.splitlines()[-LINES_SHOWN:])
        raise NotInstallableError(f"{' '.join(command)} failed with exit code {done.returncode}:\n{shown}")
