"""Run one command to its end: pass signals on to it, take its exit code, end what it leaves running."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from contextlib import suppress

from tests.servers.processes import adopt_orphans, die_with, end_below

# How long the command may take to clean up once it was told to end, and then how long what it left running may.
GRACE_S = 30.0
_GRACE_FOR_THE_REST_S = 5.0

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SENT_BY_THE_KERNEL = 0x80
_NOT_FOUND = 127


def run(command: tuple[str, ...], environment: Mapping[str, str], *, spare: Collection[int]) -> int:
    """Return the command's exit code, as a shell counts. Must be called from the main thread, once."""
    adopt_orphans()
    # From here on signals wait until we ask for them. They stay so to the end: cleaning up is not to be interrupted.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, (*_PASSED_ON, signal.SIGCHLD))
    parent = os.getpid()

    def before_exec() -> None:
        die_with(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)

    try:
        child = subprocess.Popen(command, env=environment, preexec_fn=before_exec)  # noqa: PLW1509 - one thread
    except OSError as refused:
        print(f"tests.servers: cannot run {command[0]}: {refused}", file=sys.stderr)
        return _NOT_FOUND
    child.returncode = _wait_for(child.pid)
    end_below(os.getpid(), spare=spare, gently_for_s=_GRACE_FOR_THE_REST_S)
    _reap(child.pid)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _wait_for(child: int) -> int:
    killed_at = float("inf")
    while (exit_code := _reap(child)) is None:
        wait_s = max(0.0, min(killed_at - time.monotonic(), 3600.0))
        told = signal.sigtimedwait((*_PASSED_ON, signal.SIGCHLD), wait_s)
        if told is None and time.monotonic() >= killed_at:
            os.kill(child, signal.SIGKILL)
            killed_at = float("inf")
        elif told is not None and told.si_signo != signal.SIGCHLD:
            killed_at = min(killed_at, time.monotonic() + GRACE_S)
            # Ctrl-C comes from the kernel and reaches everybody in the terminal's group, the command too. Whatever
            # another process sends reached us alone.
            if told.si_code != _SENT_BY_THE_KERNEL:
                os.kill(child, told.si_signo)
    return exit_code


def _reap(child: int) -> int | None:
    """Collect everybody that ended, adopted orphans too; the child's exit code if it was among them."""
    exit_code = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if ended[0] == child:
                exit_code = os.waitstatus_to_exitcode(ended[1])
    return exit_code
