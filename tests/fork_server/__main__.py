"""The fork server: see `tests.fork_server`. It reads requests from the socket at stdin, and ends when that is closed.

It has one thread and runs no loop, so that a forked process finds nothing half done.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import NamedTuple, NoReturn

from kit.keystone import OpenStackSettings
from kit.login import tls_of
from placement_worker.api.policy import policy_named
from tests.judge.watching import notes
from tests.planting import plant_as_asked

REQUEST_BYTES_MAX = 2**20
DESCRIPTORS = 4
# Everything below these that is no program: see _import_all.
PACKAGES = (
    "kit",
    "engine",
    "placement_worker",
    "scheduler_worker",
    "cell_conductor",
    "compute_sim",
    "ironic_sync",
    "nova_bridge",
    "moor",
    "laboratory",
)
PROGRAM, MIGRATIONS = "__main__", "migrations"
# Modules that they import only when they need them.
LATER = ("alembic.autogenerate", "alembic.migration", "alembic.op", "bus.unix_socket.client")


class Request(NamedTuple):
    module: str
    arguments: list[str]
    env: dict[str, str]
    # Its stdin, stdout and stderr, and where to report its process id and then its exit code.
    descriptors: list[int]


def main() -> None:
    _import_all()
    plant_as_asked()
    control = socket.socket(fileno=os.dup(0))
    request = _serve(control)
    if request is not None:
        _become(request)


def _import_all() -> None:
    for name in PACKAGES:
        package = importlib.import_module(name)
        for each in pkgutil.walk_packages(package.__path__, f"{name}."):
            if PROGRAM not in each.name and MIGRATIONS not in each.name:
                importlib.import_module(each.name)
    for name in LATER:
        importlib.import_module(name)
    # Read all that a process reads once, with the imports for that: half of the CPU in which a `moor up` gets ready.
    policy_named("legacy")
    tls_of(OpenStackSettings())
    gc.collect()
    # The collector must not visit, and thereby copy, the pages that all forked processes share.
    gc.freeze()


def _serve(control: socket.socket) -> Request | None:
    """Fork for each request. Returns the request in a forked process, and None at the end of the server."""
    woken, wakes = socket.socketpair()
    for end in (woken, wakes):
        end.setblocking(False)
    before = signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    reports: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([control, woken], [], [])
        if woken in ready:
            woken.recv(REQUEST_BYTES_MAX)
            _report_ended(reports)
        if control not in ready:
            continue
        text, descriptors, _, _ = socket.recv_fds(control, REQUEST_BYTES_MAX, DESCRIPTORS)
        if not text:
            return None
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, before)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for each in (control, woken, wakes, *reports.values()):
                each.close()
            return Request(**json.loads(text), descriptors=descriptors)
        *streams, report = descriptors
        for descriptor in streams:
            os.close(descriptor)
        reports[pid] = socket.socket(fileno=report)
        _tell(reports[pid], pid)


def _report_ended(reports: dict[int, socket.socket]) -> None:
    while reports:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with reports.pop(pid) as report:
            _tell(report, os.waitstatus_to_exitcode(status))


def _tell(report: socket.socket, number: int) -> None:
    # The test may have ended, and nobody listens.
    with suppress(OSError):
        report.sendall(f"{number}\n".encode())


def _become(request: Request) -> None:
    """Be the process that `python -m` would start."""
    for number, descriptor in enumerate(request.descriptors[:-1]):
        os.dup2(descriptor, number)
    for descriptor in request.descriptors:
        os.close(descriptor)
    _open_streams()
    os.environ.clear()
    os.environ.update(request.env)
    notes.next_test()
    sys.argv = [request.module, *request.arguments]
    sys.modules.pop(f"{request.module}.{PROGRAM}", None)
    try:
        runpy.run_module(request.module, run_name=PROGRAM, alter_sys=True)
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        _leave(ended.code or 0)


def _leave(code: int) -> NoReturn:
    """End as Python does, but without freeing every module: that takes 0.1 s, and copies the pages of all of them.

    Objects that the program has left behind are freed, so that their warnings are printed.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - as `multiprocessing` ends its processes
    atexit._run_exitfuncs()  # noqa: SLF001
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _open_streams() -> None:
    """As Python opens them when it starts in the C locale. The server's are of other files."""
    sys.stdin = os.fdopen(0, encoding="utf-8", errors="surrogateescape")
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="surrogateescape")
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace")


if __name__ == "__main__":
    main()
