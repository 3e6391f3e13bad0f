"""Servers of our own, for demos and tests: their processes and data end with the process that started them, however that ends.

A killed process cannot clean up after itself, and a daemon or a changed user id escapes the kernel's own means
(PR_SET_PDEATHSIG). So a keeper is a separate process, which this module is when it is run: it is the parent of the server, adopts what the
server orphans, and watches a pipe whose other end only the process holds that started it. The kernel closes that end when that process dies.

The keeper's process owns one directory: below the place that its argument names, or where temporary files are. It writes lines of JSON to
stdout: first its directory, then the process id of each command that it reads from stdin. When stdin ends, in whatever way, or a signal
tells it to end, it kills all its descendants and removes the directory. The data is temporary, so the kill is immediate. It has one thread,
so that its children die with it: see `die_with`. It knows nothing about the kind of server.

Linux only: it reads /proc and calls prctl. It must not import anything outside the standard library.
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

END_PATIENCE_S = 30.0
_POLL_S = 0.01

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class StillAliveError(RuntimeError):
    """Processes still live too long after a SIGKILL."""


def die_with(parent: int, signum: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when `parent` ends. For `preexec_fn`, so before the exec.

    The kernel means the parent's *thread*: only start such a child from a thread that lives as long as it.
    """
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:
        # The parent ended between the fork and the line above, so no signal will come.
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every orphaned descendant, daemons too: none can escape."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants(of: int) -> tuple[int, ...]:
    """All living processes below `of`, parents before children. Zombies do not count."""
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            # A process may end while we read about it.
            with suppress(FileNotFoundError, ProcessLookupError):
                state, parent = _state_and_parent((entry / "stat").read_text(errors="replace"))
                if state not in "ZX":
                    children[parent].append(int(entry.name))
    found: list[int] = []
    generation = [of]
    while generation:
        generation = [child for parent in generation for child in sorted(children[parent])]
        found += generation
    return tuple(found)


def end_below(root: int, *, gently_for_s: float = 0.0) -> None:
    """End every process below `root`: first by SIGTERM, if `gently_for_s` is given, then by SIGKILL."""
    started_at = time.monotonic()
    if gently_for_s:
        _send(signal.SIGTERM, descendants(root))
    while left := descendants(root):
        waited_s = time.monotonic() - started_at
        if waited_s >= gently_for_s:
            _send(signal.SIGKILL, left)
        if waited_s >= gently_for_s + END_PATIENCE_S:
            raise StillAliveError(f"processes {left} below {root} survived SIGKILL for {END_PATIENCE_S:g} s")
        time.sleep(_POLL_S)


def _send(signum: signal.Signals, pids: Collection[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signum)


def _state_and_parent(stat: str) -> tuple[str, int]:
    # "pid (name) state parent ...", where the name may hold anything, brackets and spaces too.
    state, parent = stat.rpartition(")")[2].split()[:2]
    return state, int(parent)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


START_PATIENCE_S = 90.0
LOG_LINES_SHOWN = 25
_READY_POLL_S = 0.05


class DidNotStartError(RuntimeError):
    """The server ended or did not answer in time; the message has the end of its log."""


def wait_until_ready(
    name: str, *, ready: Callable[[], bool], alive: Callable[[], bool], logs: Iterable[Path]
) -> None:
    """Wait until it is ready. If it ends or takes too long, raise an error with the end of its log."""
    deadline = time.monotonic() + START_PATIENCE_S
    while not ready():
        if not alive():
            raise DidNotStartError(f"{name} ended while starting\n{_ends_of(logs)}")
        if time.monotonic() > deadline:
            raise DidNotStartError(f"{name} was not ready within {START_PATIENCE_S:g} s\n{_ends_of(logs)}")
        time.sleep(_READY_POLL_S)


def _ends_of(logs: Iterable[Path]) -> str:
    parts = []
    for log in logs:
        if log.exists():
            lines = log.read_text(errors="replace").splitlines()
            shown = lines[-LOG_LINES_SHOWN:]
            parts.append("\n".join((f"last {len(shown)} of {len(lines)} lines of {log.name}:", *shown)))
    return "\n".join(parts) or "it wrote no log"


_ROOT = Path(__file__).parents[1]
_IPC_RMID = 0
_SHARED_MEMORY_LINE = 6


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
                "laboratory.private_servers",
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


def remove(directory: Path) -> None:
    """Remove a server's data after its processes have ended."""
    # PostgreSQL keeps a few bytes of System V shared memory as a lock; a killed one leaves them in the kernel.
    for pid_file in directory.glob("*/postmaster.pid"):
        lines = pid_file.read_text().splitlines()
        if len(lines) > _SHARED_MEMORY_LINE and (key_and_id := lines[_SHARED_MEMORY_LINE].split()):
            ctypes.CDLL(None).shmctl(int(key_and_id[1]), _IPC_RMID, None)
    shutil.rmtree(directory)


def main(place: str | None = None) -> None:
    adopt_orphans()
    signal.signal(signal.SIGCHLD, _reap)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, _leave)
    directory = Path(tempfile.mkdtemp(prefix="moor-server-", dir=place))
    try:
        _say({"directory": str(directory)})
        for line in sys.stdin:
            _say(_start(Command(**json.loads(line)), directory))
    finally:
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        end_below(os.getpid())
        _reap()
        remove(directory)


def _start(command: Command, directory: Path) -> dict[str, int | str]:
    try:
        with Path(command.log).open("ab") as log:
            child = subprocess.Popen(  # noqa: S603 - what our own parent names
                command.argv,
                env=command.env,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                user=command.user,
                group=command.group,
                extra_groups=None if command.group is None else (),
                preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509 - there is one thread here
            )
    except OSError as refused:
        return {"error": str(refused)}
    return {"pid": child.pid}


def _say(reply: dict[str, int | str] | dict[str, str]) -> None:
    # If the reader is gone, stdin is at its end too.
    with suppress(BrokenPipeError):
        print(json.dumps(reply), flush=True)


def _reap(_signum: int = signal.SIGCHLD, _frame: FrameType | None = None) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _leave(signum: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)


if __name__ == "__main__":
    main(*sys.argv[1:])
