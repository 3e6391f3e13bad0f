"""Runs one command to its end under a guard: passes signals on to it and returns its exit code."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import partial

from laboratory.private_servers import die_with
from tests.servers.guard import PARENT_DIED, PASSED_ON, WATCHED, reached_us_alone


def run(command: tuple[str, ...], environment: Mapping[str, str]) -> int:
    """Return the command's exit code as a shell counts it. Must be called from the main thread.

    From here on signals wait until the guard asks for them, also after this has returned: cleaning up must not be
    interrupted.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    guard = subprocess.Popen(
        (sys.executable, "-m", "tests.servers.guard", *command),
        env=environment,
        preexec_fn=partial(die_with, os.getpid(), PARENT_DIED),  # noqa: PLW1509 - there is one thread here
    )
    while guard.poll() is None:
        told = signal.sigwaitinfo(WATCHED)
        if told.si_signo in PASSED_ON and reached_us_alone(told):
            guard.send_signal(told.si_signo)
    return guard.returncode if guard.returncode >= 0 else 128 - guard.returncode
