"""Finds the descendants of a process, and ends them together with it.

Linux only: it reads /proc and calls prctl. It must not import anything outside the standard library.
"""

import ctypes
import os
import signal
import time
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

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
