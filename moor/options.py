"""What several commands take, and how they end.

Exit codes: 0 it is done; 1 it is not, and why; 2 a flag or a setting is wrong; 3 time is up, and it may still be done.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from msgspec import Struct
from rich.console import Console

from bus.asking import NoAnswer
from bus.broker import Broker, Connection, ConnectionLost, Refusal
from bus.errors import Failure, NotFound
from bus.logs import BadLogSettingError, begin_to_log
from bus.places import BadSetting
from bus.tuning import Section, Tuned
from bus.urls import broker_at
from moor.settings import Settings, of_commands, settings_from, tuning_from
from moor.tuning import CloudSettings, Tuning

T = TypeVar("T")
S = TypeVar("S", bound=Struct)

# Nobody looks at what goes to a file or another program: there a row stays one line.
WIDTH_OF_NO_TERMINAL = 200

out = Console()
if not out.is_terminal and "COLUMNS" not in os.environ:
    out.width = WIDTH_OF_NO_TERMINAL
err = Console(stderr=True)

# What a command does with its broker: none of it takes long, unless the broker has an alarm or hangs.
COMMAND_S_MAX = 60.0

NOT_DONE = 1
WRONG = 2
NOT_IN_TIME = 3
# What shells say of a command that Ctrl-C ended.
INTERRUPTED = 130

BusUrl = Annotated[
    str,
    typer.Option(
        "--bus",
        metavar="URL",
        show_default=False,
        help="The broker: amqp://user:password@host/vhost, amqps://..., or unix:///path. "
        r"[dim]\[MOOR_BUS_URL; else that of `moor up`][/dim]",
    ),
]
DatabaseUrl = Annotated[
    str,
    typer.Option(
        "--db",
        metavar="URL",
        show_default=False,
        help=r"The database: postgresql+asyncpg://user:password@host/name or sqlite:///path. [dim]\[MOOR_DB_URL][/dim]",
    ),
]
PlacementDatabaseUrl = Annotated[
    str,
    typer.Option(
        "--placement-db",
        metavar="URL",
        show_default=False,
        help=r"The database of placement's tables, if it is another. [dim]\[MOOR_PLACEMENT_DB_URL][/dim]",
    ),
]
IronicDatabaseUrl = Annotated[
    str,
    typer.Option(
        "--ironic-db",
        metavar="URL",
        show_default=False,
        help=r"The database of the bare-metal daemons' rows, if it is another. [dim]\[MOOR_IRONIC_DB_URL][/dim]",
    ),
]
IronicUrl = Annotated[
    str,
    typer.Option(
        "--ironic",
        metavar="URL",
        show_default=False,
        help="Ironic's REST API: http://user:password@host:port. "
        r"[dim]\[MOOR_IRONIC_URL; else that of `moor up --nodes`][/dim]",
    ),
]
Cells = Annotated[
    str,
    typer.Option(
        "--cells",
        metavar="NAME,NAME",
        show_default=False,
        help=r"The cells that there are. [dim]\[MOOR_CELLS][/dim]",
    ),
]
Project = Annotated[
    str,
    typer.Option(
        envvar="MOOR_PROJECT",
        metavar="NAME",
        show_default=False,
        help="Whose instances; an application must say for which of its projects it speaks.",
    ),
]
HealthListen = Annotated[
    str,
    typer.Option(
        "--health-listen",
        envvar="MOOR_HEALTH_LISTEN",
        metavar="ADDRESS:PORT",
        show_default=False,
        help="Serve /healthz, /readyz and /metrics there; a port alone is on loopback.",
    ),
]
LogFormat = Annotated[
    str,
    typer.Option("--log-format", envvar="MOOR_LOG_FORMAT", metavar="text|json", help="How to write the log."),
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]


# The file that was named before the command; set once, by the command line.
_config: ContextVar[Path | None] = ContextVar("config", default=None)


def log_as(environment: Mapping[str, str], *, level: str = "INFO") -> None:
    """Begin to log as these variables say."""
    try:
        begin_to_log(environment, level=level)
    except BadLogSettingError as wrong:
        raise typer.BadParameter(str(wrong)) from None


def use_config(file: Path | None) -> None:
    _config.set(file)


def said_of_commands() -> Mapping[str, object]:
    """What the file says for flags, by its keys."""
    try:
        return of_commands(os.environ, config=_config.get(), here=Path.cwd())
    except BadSetting as wrong:
        raise typer.BadParameter(str(wrong)) from None


def defaults_of(command: Any, written: Mapping[str, object]) -> dict[str, Any]:
    """Of the flags of this command, or of each command of a group: what counts if neither flag nor variable is given."""
    own = {each.name: written[key] for each in command.params if (key := key_of(each)) in written}
    parts = getattr(command, "commands", {})
    return own | {name: defaults_of(part, written) for name, part in parts.items()}


def key_of(flag: Any) -> str:
    """How a file calls it; nothing if it has no variable."""
    variable = getattr(flag, "envvar", None)
    return str(variable).removeprefix("MOOR_").lower() if variable else ""


def settled(
    *,
    bus: str = "",
    db: str = "",
    placement_db: str = "",
    ironic: str = "",
    ironic_db: str = "",
    cells: str = "",
    data: str = "",
) -> Settings:
    """The settings of the command that runs: its flags, and what lies beneath them."""
    flags = {
        "bus_url": bus,
        "db_url": db,
        "placement_db_url": placement_db,
        "ironic_url": ironic,
        "ironic_db_url": ironic_db,
        "cells": cells,
        "data": data,
    }
    try:
        return settings_from(flags, os.environ, config=_config.get(), here=Path.cwd())
    except BadSetting as wrong:
        raise typer.BadParameter(str(wrong)) from None


def tuning() -> Tuning:
    """What the variables and the file state of workers' settings."""
    try:
        return tuning_from(os.environ, config=_config.get(), here=Path.cwd())
    except BadSetting as wrong:
        raise typer.BadParameter(str(wrong)) from None


def tuned(section: Section[S], base: S | None = None, **flags: object) -> S:
    """The settings of a worker. The flags are named as its fields are; one that is None was not given."""
    given = {field: Tuned(value, flag_of(field)) for field, value in flags.items() if value is not None}
    try:
        return tuning().of(section, base, given)
    except BadSetting as wrong:
        raise typer.BadParameter(str(wrong)) from None


def tuned_cloud(base: CloudSettings | None = None) -> CloudSettings:
    """The settings of all workers of a process; the base holds the defaults of the command."""
    try:
        return tuning().of_cloud(base or CloudSettings())
    except BadSetting as wrong:
        raise typer.BadParameter(str(wrong)) from None


def flag_of(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def broker_of(url: str) -> Broker:
    if url.startswith("memory:"):
        raise typer.BadParameter(
            f"bus_url is {url!r}: a bus in memory is inside of the process that owns it; `moor up` serves its own at "
            "unix:///path, where other commands find it"
        )
    try:
        return broker_at(url)
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from None


def with_connection(url: str, work: Callable[[Connection], Awaitable[T]]) -> T:
    """Connect, do it, disconnect; what the broker refuses is said in a line, and the exit code tells."""
    broker = broker_of(url)

    async def connected() -> T:
        connection = await broker.connect()
        try:
            async with asyncio.timeout(COMMAND_S_MAX):
                return await work(connection)
        except TimeoutError:
            why = connection.blocked or "it does not answer"
            raise ConnectionLost(f"not done within {COMMAND_S_MAX:.0f} s: {why}") from None
        finally:
            await connection.close()

    return run(connected())


def run(work: Coroutine[Any, Any, T]) -> T:
    """Whatever keeps it from being done is a line, not a traceback."""
    try:
        return asyncio.run(work)
    except ConnectionLost as lost:
        fail(f"no broker: {lost}; is `moor up` running, or does MOOR_BUS_URL name another?")
    except NotFound as missing:
        fail(f"the broker refused: {missing}; has `moor broker declare` made there what Moorage needs?")
    except Refusal as refused:
        fail(f"the broker refused: {refused}")
    except NoAnswer as problem:
        fail(f"{problem}: are there workers on this bus?", NOT_IN_TIME)
    except Failure as problem:
        fail(str(problem))


def check_writable(flag: str, file: Path | None) -> None:
    """Found out before the work, not after it."""
    if file is None:
        return
    try:
        file.open("ab").close()
    except OSError as problem:
        raise typer.BadParameter(f"{flag} is {str(file)!r}: it cannot be written: {problem}") from None


def fail(why: str, code: int = NOT_DONE) -> NoReturn:
    """Say why on stderr, and end with this exit code."""
    err.print(why, style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(code)
