"""Run a command with RabbitMQ and PostgreSQL at hand: `python -m tests.servers -- COMMAND ARGS...`

Each is the one that MOOR_TEST_AMQP_URL or MOOR_TEST_POSTGRES_URL names, if it is set; else a private one from what is
installed; else we install it first, if we may. The command finds both variables set, and MOOR_TEST_AMQP_CTL: a
command line that is `rabbitmqctl` for that broker. We end with the command's exit code, and everything that we or
the command started ends with us.
"""

import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import NoReturn

from tests.servers.command import run
from tests.servers.installed import (
    AMQP_CTL_VARIABLE,
    AMQP_VARIABLE,
    POSTGRES_VARIABLE,
    AskForHelp,
    Install,
    InstallFailedError,
    Ready,
    Software,
    decide,
    install,
    look,
)
from tests.servers.postgres import FAST, PrivatePostgres
from tests.servers.rabbitmq import PrivateRabbitMQ
from tests.servers.starting import DidNotStartError


class UnavailableError(RuntimeError):
    """A server is missing, and somebody else has to do something about it."""


def main(arguments: Sequence[str]) -> int:
    match arguments:
        case ["--", _, *_]:
            command = tuple(arguments[1:])
        case _:
            print("usage: python -m tests.servers -- COMMAND ARGS...", file=sys.stderr)
            return os.EX_USAGE
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, _leave)
    try:
        with ExitStack() as servers:
            return run(command, {**os.environ, **_provide(servers)})
    except (UnavailableError, InstallFailedError, DidNotStartError) as refused:
        print(f"tests.servers: {refused}", file=sys.stderr)
        return os.EX_UNAVAILABLE


def _provide(servers: ExitStack) -> dict[str, str]:
    """Start what was not given, both at once; return the variables that say how to reach it."""
    needed = _needed(os.environ)
    _ensure_installed(needed)
    given = {}
    rabbitmq = PrivateRabbitMQ() if Software.RABBITMQ in needed else None
    postgres = PrivatePostgres(settings=FAST) if Software.POSTGRES in needed else None
    for server in [server for server in (rabbitmq, postgres) if server]:
        servers.callback(server.stop)
        server.launch()
    if postgres:
        postgres.wait_until_ready()
        given[POSTGRES_VARIABLE] = postgres.url
    if rabbitmq:
        rabbitmq.wait_until_ready()
        given[AMQP_VARIABLE] = rabbitmq.url
        given[AMQP_CTL_VARIABLE] = rabbitmq.ctl_command
    elif AMQP_CTL_VARIABLE not in os.environ and (rabbitmqctl := shutil.which("rabbitmqctl")):
        given[AMQP_CTL_VARIABLE] = rabbitmqctl
    return given


def _needed(environment: Mapping[str, str]) -> tuple[Software, ...]:
    variables = {Software.RABBITMQ: AMQP_VARIABLE, Software.POSTGRES: POSTGRES_VARIABLE}
    return tuple(software for software, variable in variables.items() if not environment.get(variable))


def _ensure_installed(needed: tuple[Software, ...]) -> None:
    match decide(look(), needed):
        case Ready():
            return
        case AskForHelp(message):
            raise UnavailableError(message)
        case Install() as decision:
            install(decision)
    if decide(look(), needed) != Ready():
        raise UnavailableError(
            f"installed {' '.join(needed)}, but their programs are not where Debian puts them"
        )


def _leave(signum: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
