"""The process behind a `Keeper`: it owns one directory and the processes of one server, and outlives its creator.

Its directory is below the place that its argument names, or where temporary files are. It writes lines of JSON to
stdout: first its directory, then the process id of each command that it reads from stdin.
When stdin ends, in whatever way, or a signal tells it to end, it kills all its descendants and removes the directory.
The data is temporary, so the kill is immediate.

It has one thread, so that its children die with it: see `die_with`. It knows nothing about the kind of server.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

from moor.laboratory.private_servers.keeper import Command, remove
from moor.laboratory.private_servers.processes import adopt_orphans, die_with, end_below


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
