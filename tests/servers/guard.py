"""The process between us and the command. It ends everything that the command started, even if we are killed.

It adopts processes that the command orphans, daemons too. It ends all of them when the command has ended, and when the
kernel reports our own death (see `die_with`). It passes signals on to the command, and exits with the command's code as
a shell counts it.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

from laboratory.private_servers import adopt_orphans, die_with, end_below

# How long the command may clean up after a signal, and then how long its remaining processes may run.
COMMAND_GRACE_S = 30.0
REST_GRACE_S = 5.0

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PARENT_DIED = signal.SIGUSR1
WATCHED = (*PASSED_ON, PARENT_DIED, signal.SIGCHLD)

_SENT_BY_THE_KERNEL = 0x80
_NOT_FOUND = 127
_WAIT_S_MAX = 3600.0


def main(command: list[str]) -> int:
    adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    guard = os.getpid()

    def before_exec() -> None:
        die_with(guard)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)

    try:
        child = subprocess.Popen(command, preexec_fn=before_exec)  # noqa: PLW1509 - there is one thread here
    except OSError as refused:
        print(f"tests.servers: cannot run {command[0]}: {refused}", file=sys.stderr)
        return _NOT_FOUND
    exit_code = _outcome(child.pid)
    end_below(guard, gently_for_s=REST_GRACE_S)
    _reap(child.pid)
    return exit_code if exit_code >= 0 else 128 - exit_code


def reached_us_alone(told: signal.struct_siginfo) -> bool:
    """The kernel sends Ctrl-C to the whole group of the terminal. Another process may signal only this one."""
    return told.si_code != _SENT_BY_THE_KERNEL


def _outcome(child: int) -> int:
    """Wait for the command and pass signals on; end it when our parent is gone."""
    killed_at = float("inf")
    while (exit_code := _reap(child)) is None:
        told = signal.sigtimedwait(WATCHED, max(0.0, min(killed_at - time.monotonic(), _WAIT_S_MAX)))
        if told is None:
            if time.monotonic() >= killed_at:
                return -signal.SIGKILL
        elif told.si_signo == PARENT_DIED:
            return -PARENT_DIED
        elif told.si_signo in PASSED_ON:
            killed_at = min(killed_at, time.monotonic() + COMMAND_GRACE_S)
            if reached_us_alone(told):
                os.kill(child, told.si_signo)
    return exit_code


def _reap(child: int) -> int | None:
    """Reap all ended processes, adopted ones too. Returns the child's exit code if it was among them."""
    exit_code = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if ended[0] == child:
                exit_code = os.waitstatus_to_exitcode(ended[1])
    return exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
