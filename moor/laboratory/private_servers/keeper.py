"""Holds a server's processes and data, and removes both when the test process ends, however it ends.

A killed process cannot clean up after itself, and a daemon or a changed user id escapes the kernel's own means
(PR_SET_PDEATHSIG). So a keeper is a separate process: it is the parent of the server, adopts what the server orphans,
and watches a pipe whose other end only the test process holds. The kernel closes that end when the test process dies.
"""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from moor.laboratory.private_servers.processes import END_PATIENCE_S, descendants, end_below

_ROOT = Path(__file__).parents[3]
_IPC_RMID = 0
_SHARED_MEMORY_LINE = 6
# A file system that Linux keeps in memory. Each test creates and removes hundreds of files of a database and of queues.
# On ext4 this takes the servers several times as much CPU, because a deleted inode is skipped for some seconds.
IN_MEMORY = Path("/dev/shm")  # noqa: S108 - a private directory is made there
BYTES_FREE_MIN = 4 * 2**30


class KeeperLostError(RuntimeError):
    """The keeper ended by itself, with the server's processes and data."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A process to start, its user, and the file for its output."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: str
    user: int | None = None
    group: int | None = None


class Keeper:
    """A directory and the processes started through it. `close` ends the processes and removes the directory.

    The directory is made below `place`, or where temporary files are.
    """

    directory: Path

    def __init__(self, place: Path | None = None) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            (
                sys.executable,
                "-m",
                "moor.laboratory.private_servers.keeper_process",
                *((str(place),) if place else ()),
            ),
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C is sent to all of the terminal's group. The keeper leaves when we do, not before.
            start_new_session=True,
        )
        self.directory = Path(str(self._reply()["directory"]))

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, command: Command) -> int:
        """Start a process and return its id. The id belongs to it as long as it is in `processes`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asdict(command)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as gone:
            raise KeeperLostError(f"keeper {self.pid} is gone; cannot start {command.argv[0]}") from gone
        reply = self._reply()
        if "error" in reply:
            raise OSError(f"cannot start {command.argv[0]}: {reply['error']}")
        return int(reply["pid"])

    def processes(self) -> tuple[int, ...]:
        return descendants(self.pid)

    def kill(self) -> None:
        """Send SIGKILL to every process at once; the directory stays as it is."""
        end_below(self.pid)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(END_PATIENCE_S * 2)
        self._process.stdout.close()
        if self.directory.exists():
            # The keeper was killed, and the kernel ended its processes, but the directory remains.
            remove(self.directory)

    def _reply(self) -> dict[str, int | str]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise KeeperLostError(
                f"keeper {self.pid} ended without an answer, exit code {self._process.wait()}"
            )
        reply: dict[str, int | str] = json.loads(line)
        return reply


def place_in_memory(place: Path = IN_MEMORY, bytes_free_min: int = BYTES_FREE_MIN) -> Path | None:
    """Where the data of servers is kept in memory; None without enough free memory there."""
    return place if place.is_dir() and shutil.disk_usage(place).free >= bytes_free_min else None


def remove(directory: Path) -> None:
    """Remove a server's data after its processes have ended."""
    # PostgreSQL keeps a few bytes of System V shared memory as a lock; a killed one leaves them in the kernel.
    for pid_file in directory.glob("*/postmaster.pid"):
        lines = pid_file.read_text().splitlines()
        if len(lines) > _SHARED_MEMORY_LINE and (key_and_id := lines[_SHARED_MEMORY_LINE].split()):
            ctypes.CDLL(None).shmctl(int(key_and_id[1]), _IPC_RMID, None)
    shutil.rmtree(directory)
