"""Runs a command with RabbitMQ and PostgreSQL: `python -m tests.servers [--durable] [--brokers N [--browser] [--libvirt] [--guests] [--mariadb]] -- COMMAND ARGS...`

It uses the server named in MOOR_TEST_AMQP_URL or MOOR_TEST_POSTGRES_URL, if set. Otherwise it starts a private one from
the installed software, which it installs first where it may; its data is kept in memory if there is room. With --durable, which is for
measurements, data is on the disk, and PostgreSQL waits for it (`fsync`). The command finds both variables set, and
MOOR_TEST_AMQP_CTL, the `rabbitmqctl` command line for that broker. With N private brokers, MOOR_TEST_AMQP_URL_2 and
MOOR_TEST_AMQP_CTL_2 name the second, and so on: then tests that stop their broker can run in parallel. With --browser it makes
sure that a browser is there, with --libvirt that libvirt's tools are, with --guests that libvirtd and QEMU are, too, and with --mariadb that
MariaDB is, for the tests that start one. It exits with
the command's exit code, and ends everything that it or the command started.
"""

import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import NoReturn

from laboratory.private_servers import DidNotStartError
from tests.servers.command import run
from tests.servers.free_places import place_in_memory
from tests.servers.installed import (
    AMQP_CTL_VARIABLE,
    AMQP_VARIABLE,
    OF_GUESTS,
    OF_LIBVIRT,
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
from tests.servers.own_broker import of_broker
from tests.servers.postgres import FAST, PrivatePostgres
from tests.servers.rabbitmq import PrivateRabbitMQ

# What is made sure of by an option, beside the servers.
_DURABLE = "--durable"
_BESIDE = {
    "--browser": (Software.CHROMIUM,),
    "--libvirt": OF_LIBVIRT,
    "--guests": OF_GUESTS,
    "--mariadb": (Software.MARIADB,),
}


class UnavailableError(RuntimeError):
    """A server is missing, and the user must install it."""


def main(arguments: Sequence[str]) -> int:
    read = _read(arguments)
    if read is None:
        print(
            "usage: python -m tests.servers [--durable] [--brokers N [--browser] [--libvirt] [--guests] [--mariadb]] -- COMMAND ARGS...",
            file=sys.stderr,
        )
        return os.EX_USAGE
    is_durable, brokers, beside, command = read
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, _leave)
    try:
        with ExitStack() as servers:
            return run(command, {**os.environ, **_provide(servers, brokers, beside, is_durable=is_durable)})
    except (UnavailableError, InstallFailedError, DidNotStartError) as refused:
        print(f"tests.servers: {refused}", file=sys.stderr)
        return os.EX_UNAVAILABLE


def _read(arguments: Sequence[str]) -> tuple[bool, int, tuple[Software, ...], tuple[str, ...]] | None:
    """Are the servers durable; the number of brokers; what else must be installed; the command. None if they are not in the usage's form."""
    if "--" not in arguments:
        return None
    end = arguments.index("--")
    options, command = [*arguments[:end]], tuple(arguments[end + 1 :])
    is_durable, brokers, beside = options[:1] == [_DURABLE], 1, tuple[Software, ...]()
    options = options[is_durable:]
    if options[:1] == ["--brokers"] and len(options) > 1 and options[1].isdecimal():
        brokers = int(options[1])
        names = options[2:]
        if len({*names}) < len(names) or not {*names} <= {*_BESIDE}:
            return None
        beside = tuple(software for name in names for software in _BESIDE[name])
        options = []
    return (is_durable, brokers, beside, command) if brokers and command and not options else None


def _provide(
    servers: ExitStack, brokers: int, beside: tuple[Software, ...], *, is_durable: bool
) -> dict[str, str]:
    """Start the servers that were not given, all at once. Returns the variables that say how to reach them."""
    needed = _needed(os.environ)
    _ensure_installed((*needed, *beside))
    given = {}
    place = None if is_durable else place_in_memory()
    settings = {} if is_durable else FAST
    rabbitmqs = [PrivateRabbitMQ(place=place) for _ in range(brokers)] if Software.RABBITMQ in needed else []
    postgres = PrivatePostgres(settings=settings, place=place) if Software.POSTGRES in needed else None
    for server in (*rabbitmqs, *((postgres,) if postgres else ())):
        servers.callback(server.stop)
        server.launch()
    if postgres:
        postgres.wait_until_ready()
        given[POSTGRES_VARIABLE] = postgres.url
    for number, rabbitmq in enumerate(rabbitmqs, 1):
        rabbitmq.wait_until_ready()
        given[of_broker(AMQP_VARIABLE, number)] = rabbitmq.url
        given[of_broker(AMQP_CTL_VARIABLE, number)] = rabbitmq.ctl_command
    if not rabbitmqs and AMQP_CTL_VARIABLE not in os.environ and (rabbitmqctl := shutil.which("rabbitmqctl")):
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
