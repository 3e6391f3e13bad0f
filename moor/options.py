"""Options that several commands share, and how commands report errors and exit.

Exit codes: 0 done; 1 not done (stderr says why); 2 a flag or setting is wrong; 3 time is up, and it may still be done.
"""

import asyncio
import json
import os
import sys
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import click
from msgspec import Struct, structs
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from bus.addresses import broker_at
from bus.broker import Broker, Connection
from kit.errors import ConnectionLost, Failure, NotFound, Refusal
from kit.health import read_address
from kit.logs import begin_to_log, want_traces
from kit.settings import BadSetting, Section, Stated, shown, without_password
from moor.flags import option
from moor.settings import GENERAL, Reloading, Settings, Sources, sources

if TYPE_CHECKING:
    from moor.client import Client
    from moor.client.errors import ClientError
    from moor.worker_settings import CloudSettings

T = TypeVar("T")
G = TypeVar("G")
S = TypeVar("S", bound=Struct)

# In a file or a pipe nobody reads columns on a screen: there each row stays on one line.
WIDTH_OF_NO_TERMINAL = 200


class Terminal(Console):
    """A console that shows control characters as escapes: a name that a stranger chose must not command the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            shown = segment.text if segment.control else printable(segment.text)
            yield segment if shown == segment.text else Segment(shown, segment.style)


def printable(text: str) -> str:
    """The text with control characters escaped as in JSON; line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else json.dumps(each)[1:-1] for each in text)


# An address such as fe80:1234:1 is no emoji.
out = Terminal(emoji=False, highlight=False)
err = Terminal(stderr=True, emoji=False, highlight=False)


def fit_width() -> None:
    """Give the output its width: COLUMNS if set, else the terminal's."""
    columns = os.environ.get("COLUMNS", "")
    # A terminal whose size is not known says 0.
    if columns.isdecimal() and int(columns):
        out.width = int(columns)
    elif not out.is_terminal:
        out.width = WIDTH_OF_NO_TERMINAL


# The time limit for a command's work on the broker, which is short unless the broker has an alarm or hangs.
COMMAND_S_MAX = 60.0

NOT_DONE = 1
WRONG = 2
NOT_IN_TIME = 3
# The exit code that shells use for a command that Ctrl-C ended.
INTERRUPTED = 130


def option_of(section: Section[Any], field: str, *names: str, **details: Any) -> Any:
    """The flag of a setting: its explanation and its limits are those of the setting.

    The variables of the flags of single commands are read as flags; those of addresses and of tables with the file.
    """
    setting = section.settings[field]
    flag = setting.extra.get("flag")
    explained: dict[str, Any] = {
        "help": setting.meaning + (f" [env var: {setting.variable}]" if flag else ""),
        "envvar": None if flag or section.name else setting.variable,
        "metavar": setting.extra.get("metavar"),
        "min": getattr(setting.described.type, "ge", None),
        "max": getattr(setting.described.type, "le", None),
    }
    return option(*((flag,) if flag else names), **explained | details)


BusUrl = Annotated[str, option_of(GENERAL, "bus_url", show_default=False)]
DatabaseUrl = Annotated[str, option_of(GENERAL, "db_url", show_default=False)]
PlacementDatabaseUrl = Annotated[str, option_of(GENERAL, "placement_db_url", show_default=False)]
IronicDatabaseUrl = Annotated[str, option_of(GENERAL, "ironic_db_url", show_default=False)]
IronicUrl = Annotated[str, option_of(GENERAL, "ironic_url", show_default=False)]
NovaBusUrl = Annotated[str, option_of(GENERAL, "nova_bus_url", show_default=False)]
Cells = Annotated[str, option_of(GENERAL, "cells", show_default=False)]
Project = Annotated[str, option_of(GENERAL, "project", metavar="NAME", show_default=False)]
FaultsFile = Annotated[
    Path | None,
    option("--faults", help="The faults of the simulated hosts: a TOML or JSON file."),
]
IRONIC_LISTEN = "127.0.0.1:6385"
IronicListenAt = Annotated[
    str, option(metavar="HOST:PORT", help="The address of the simulated Ironic's REST API.")
]
SchedulerFlags = Annotated[
    list[str] | None,
    option(
        "--scheduler",
        metavar="KEY=VALUE",
        show_default=False,
        help="A setting of schedulers, as `moor settings scheduler` lists them; a list has commas. May be repeated.",
    ),
]
PoolFlags = Annotated[
    list[str] | None,
    option(
        "--pool",
        metavar="NAME:CLASS=TOTAL[@HOSTS]",
        show_default=False,
        help="A pool of each cell that shares a resource class with its simulated hosts, such as nfs:DISK_GB=20000, or with "
        "those whose names match: net:IPV4_ADDRESS=250@*-0000?. These have nothing of the class themselves. May be repeated. "
        r"[MOOR_COMPUTE_POOLS, or pools in [compute]]",
    ),
]
NetworkFlags = Annotated[
    list[str] | None,
    option(
        "--network",
        metavar="NAME=KILOBITS",
        show_default=False,
        help="A physical network that each simulated host reaches, with its bandwidth for ports, such as physnet0=10000000. May be "
        r"repeated. [MOOR_COMPUTE_NETWORKS, or networks in [compute]]",
    ),
]


Settle = Annotated[
    int,
    option(
        min=0,
        metavar="SECONDS",
        help="What changed within so many seconds is in flight, and is not judged. Fewer may report what is still on its way.",
    ),
]


class Form(StrEnum):
    """In which form a command prints what it shows."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


_form: ContextVar[Form] = ContextVar("form", default=Form.TABLE)


def form() -> Form:
    return _form.get()


def wants_document() -> bool:
    """Whether the command prints all fields for programs, in place of a table for people."""
    return form() in (Form.JSON, Form.YAML)


def _note_form(context: click.Context, value: Form | None) -> Form | None:
    """The form counts until the command ends."""
    context.call_on_close(partial(_form.reset, _form.set(value or Form.TABLE)))
    return value


# Each command that shows things has this option. What prints them asks `form`.
Output = Annotated[
    Form | None,
    option(
        "--output",
        "-o",
        metavar="|".join(Form),
        show_default=False,
        notes=_note_form,
        help="How to print it. `wide`: whole ids, each row on one line, and all that a table can show; "
        "`json` and `yaml`: all fields, for programs; `name`: one name or id in a line.",
    ),
]


# The value of --config; set once, by the command line.
_config: ContextVar[Path | None] = ContextVar("config", default=None)


_hint_of: ContextVar[Callable[[str], str]] = ContextVar("hint_of", default=lambda _: "")

# What this process reads again on SIGHUP; None for a command that is no worker.
_reloading: ContextVar[Reloading | None] = ContextVar("reloading", default=None)


# How the help calls what names an instance, a group and so on (naming.py).
ID = "ID|NAME"


@contextmanager
def wrong_value(prefix: str = "", also: type[Exception] = ValueError) -> Iterator[None]:
    """Turn a ValueError in this context, or an error that is `also` meant, into an error of the command, whose exit code is 2."""
    try:
        yield
    except (ValueError, also) as wrong:
        raise click.BadParameter(f"{prefix}{wrong}") from None


def read_listen(text: str) -> tuple[str, int]:
    """Parse the address of the simulated Ironic's REST API."""
    found = read_address(text, "--ironic-listen", f"host:port, as {IRONIC_LISTEN}")
    return found.host, found.port


def log_as(environment: Mapping[str, str], *, level: str = "INFO") -> None:
    """Start logging as MOOR_LOG_FORMAT and MOOR_LOG_LEVEL in `environment` say; `level` is the default level."""
    with wrong_value():
        begin_to_log(environment, level=level)


class Operating(Struct, frozen=True):
    """The options of a worker's process for its health page and its log."""

    health_listen: Annotated[
        str, option_of(GENERAL, "health_listen", metavar="ADDRESS:PORT", show_default=False)
    ] = ""
    log_level: Annotated[str, option_of(GENERAL, "log_level", metavar="LEVEL", show_default=False)] = ""
    log_format: Annotated[str, option_of(GENERAL, "log_format", metavar="text|json")] = "text"
    traces_url: Annotated[str, option_of(GENERAL, "traces_url", metavar="URL", show_default=False)] = ""
    traces_share: Annotated[float, option_of(GENERAL, "traces_share", min=0, max=1)] = 1.0

    def begin(self, level: str = "INFO") -> None:
        """Start the log, whose level is `level` unless a setting says another. From now on a SIGHUP has the settings that this
        process takes by `tuned` and `tuned_cloud` read again.
        """
        log_as(
            {**os.environ, "MOOR_LOG_FORMAT": self.log_format, "MOOR_LOG_LEVEL": self.log_level}, level=level
        )
        with wrong_value():
            want_traces(self.traces_url, self.traces_share)
        # Commands that are no workers need none of it.
        from kit.process import reload_by  # noqa: PLC0415

        reloading = Reloading(_config.get(), Path.cwd(), log_level=level)
        _reloading.set(reloading)
        read = found().of(GENERAL)
        flags = {
            field: given
            for field in ("log_level", "log_format")
            if (given := getattr(self, field)) != getattr(read, field)
        }
        tuned(GENERAL, **flags)
        reload_by(reloading.reload)


def begin_command(config: Path | None, hint_of: Callable[[str], str]) -> None:
    """Note for all commands the settings file that the command line names, and the function that says where to look for a thing that was not found."""
    _config.set(config)
    _hint_of.set(hint_of)


def found() -> Sources:
    """Where the settings of the running command come from, beside its flags."""
    with wrong_value():
        return sources(os.environ, config=_config.get(), here=Path.cwd())


def defaults_of(command: Any, written: Mapping[str, Stated]) -> dict[str, Any]:
    """The settings file's values for a command's flags; for a group of commands, also those of each command in it.

    A value counts if neither the flag nor its variable is given.
    """
    own = {each.name: written[key].value for each in command.params if (key := key_of(each)) in written}
    return own | {name: defaults_of(part, written) for name, part in getattr(command, "commands", {}).items()}


def key_of(flag: Any) -> str:
    """The key of a flag in the settings file: its variable without MOOR_, in lower case. Empty without a variable."""
    variable = getattr(flag, "envvar", None)
    return str(variable).removeprefix("MOOR_").lower() if variable else ""


def command_settings(
    *,
    bus: str = "",
    db: str = "",
    placement_db: str = "",
    ironic: str = "",
    ironic_db: str = "",
    nova_bus: str = "",
    cells: str = "",
    data: str = "",
) -> Settings:
    """The settings of the running command: its flags, then variables, then the file, then defaults."""
    flags = {
        "bus_url": bus,
        "db_url": db,
        "placement_db_url": placement_db,
        "ironic_url": ironic,
        "ironic_db_url": ironic_db,
        "nova_bus_url": nova_bus,
        "cells": cells,
        "data": data,
    }
    with wrong_value():
        return found().of_command(flags)


def tuned(section: Section[S], others: Mapping[str, Stated] | None = None, **flags: object) -> S:
    """The settings of one worker. `flags` are named after its fields; a flag that is None was not given."""
    with wrong_value():
        given = {
            field: section.stated(field, value, flag_of(field))
            for field, value in flags.items()
            if value is not None
        }
        given = {**(others or {}), **given}
        settings = found().of(section, flags=given)
    _hold(section, settings, given)
    return settings


def _hold(section: Section[S], settings: S, flags: Mapping[str, Stated], base: S | None = None) -> None:
    if (reloading := _reloading.get()) is not None:
        reloading.hold(section, settings, flags, base)


def tuned_cloud(
    base: "CloudSettings | None" = None,
    scheduler: Sequence[str] | None = None,
    pools: Sequence[str] | None = None,
    networks: Sequence[str] | None = None,
) -> "CloudSettings":
    """The settings of all workers in this process: flags, then variables, then the settings file, then `base`.

    `base` has the command's own defaults; `scheduler`, `pools` and `networks` are its flags --scheduler, --pool and --network.
    """
    # The workers' settings are many modules, and most commands need none of them.
    from moor.worker_settings import COMPUTE, SCHEDULER, CloudSettings, by_section, of_cloud  # noqa: PLC0415

    flags = {SCHEDULER.name: scheduler_flags(scheduler), COMPUTE.name: compute_flags(pools, networks)}
    usual = base or CloudSettings()
    with wrong_value():
        settings = of_cloud(found().of, usual, flags)
    for (section, live), (_, default) in zip(by_section(settings), by_section(usual), strict=True):
        _hold(section, live, flags.get(section.name, {}), default)
    return settings


def put_once(given: dict[str, T], name: str, value: T, where: str) -> None:
    """Add what a command was given under this name. If it was given before, the command ends: which of the two counts?

    `where` is the option or text that has both.
    """
    if name in given:
        raise click.BadParameter(
            f"{where} gives {name} twice, as {shown(name, given[name])} and as {shown(name, value)}"
        )
    given[name] = value


def pairs_of(flag: str, texts: Sequence[str] | None, default: str | None = None) -> dict[str, str]:
    """Parse KEY=VALUE of a repeatable flag. A text without `=` gets the default value, if there is one."""
    pairs: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not key or (not equals and default is None):
            raise click.BadParameter(f"{flag} is {text!r}, must be KEY=VALUE")
        put_once(pairs, key, value if equals else default or "", flag)
    return pairs


def scheduler_flags(flags: Sequence[str] | None) -> dict[str, Stated]:
    """The scheduler settings given by `--scheduler KEY=VALUE`, checked."""
    from moor.worker_settings import SCHEDULER  # noqa: PLC0415 - as above

    with wrong_value():
        return {
            key.strip(): SCHEDULER.stated(key.strip(), value.strip(), "--scheduler")
            for key, value in pairs_of("--scheduler", flags).items()
        }


def compute_flags(pools: Sequence[str] | None, networks: Sequence[str] | None = None) -> dict[str, Stated]:
    from moor.worker_settings import COMPUTE  # noqa: PLC0415 - as above

    given = (("pools", pools, "--pool"), ("networks", networks, "--network"))
    return {field: COMPUTE.stated(field, flags, flag) for field, flags, flag in given if flags}


def flag_of(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def broker_of(url: str) -> Broker:
    if url.startswith("memory:"):
        raise click.BadParameter(
            f"bus_url is {without_password(url)!r}: a memory bus exists only inside its own process; `moor up` serves its bus at a Unix socket: "
            "name it as unix:///path, or leave bus_url out"
        )
    with wrong_value():
        return broker_at(url)


def with_connection(url: str, work: Callable[[Connection], Awaitable[T]]) -> T:
    """Connect, run `work`, disconnect. A refusal of the broker is printed as one line, with exit code 1."""
    broker = broker_of(url)

    async def connected() -> T:
        connection = await broker.connect()
        try:
            async with asyncio.timeout(COMMAND_S_MAX):
                return await work(connection)
        except TimeoutError:
            why = connection.blocked or "the broker does not answer"
            raise ConnectionLost(f"not done within {COMMAND_S_MAX:.0f} s: {why}") from None
        finally:
            await connection.close()

    return run(connected())


def run(work: Coroutine[Any, Any, T], by: Callable[[Coroutine[Any, Any, T]], T] = asyncio.run) -> T:
    """Run the command's work; print an expected failure as one line, without a traceback."""
    try:
        return by(work)
    except asyncio.CancelledError:
        fail("stopped by a signal")
    except BadSetting as wrong:
        fail(str(wrong), WRONG)
    except _client_error() as problem:
        _fail_as(problem)
    except ConnectionLost as lost:
        fail(f"no broker: {lost}; is `moor up` running, or does MOOR_BUS_URL name another?")
    except NotFound as missing:
        fail(f"the broker refused: {missing}; has `moor broker declare` been run on this broker?")
    except Refusal as refused:
        from moor.client.errors import what_to_do  # noqa: PLC0415

        fail(f"the broker refused: {refused}{what_to_do(str(refused))}")
    except Failure as problem:
        fail(str(problem))


def run_worker(work: Coroutine[Any, Any, None]) -> None:
    """Run a worker until it is told to stop."""
    from kit.process import run_process  # noqa: PLC0415 - only workers need it

    with wrong_value():
        run_process(work)


def _client_error() -> "type[ClientError]":
    """The client's errors. Python looks at them only when something was raised, and most commands need no client by then."""
    from moor.client.errors import ClientError  # noqa: PLC0415

    return ClientError


def _fail_as(problem: "ClientError") -> NoReturn:
    from moor.client import errors  # noqa: PLC0415

    match problem:
        case errors.NotSendable():
            raise click.BadParameter(str(problem)) from None
        case errors.NotFound():
            fail("; ".join(filter(None, (str(problem), _hint_of.get()(problem.what)))))
        case errors.BrokerAway():
            fail(f"{problem}; is `moor up` running, or does MOOR_BUS_URL name another?")
        case errors.NotInTime():
            fail(f"{problem}: do workers run on this bus?", NOT_IN_TIME)
    fail(str(problem))


def with_client(
    bus: str,
    work: "Callable[[Client], Awaitable[T]]",
    *,
    operates: bool = False,
    project: str = "",
    patience_s: float = 30.0,
) -> T:
    """Run a command's work with a client on this bus."""
    return run_with(on_bus(bus, project, operates=operates, patience_s=patience_s), work)


def on_bus(
    bus: BusUrl = "", project: Project = "", *, operates: bool = False, patience_s: float = 30.0
) -> "Client":
    """The client that these flags of a command name, to be opened."""
    return client(command_settings(bus=bus), operates=operates, project=project, patience_s=patience_s)


def client(
    settings: Settings,
    *,
    operates: bool = False,
    project: str = "",
    patience_s: float = 30.0,
    waits: bool = False,
) -> "Client":
    """A client on the bus of these settings, to be opened; one that `waits`, also where no broker answers yet."""
    from moor.client import Client  # noqa: PLC0415 - not every command needs it

    # Refuses a memory bus, which is in no other process.
    broker_of(settings.bus_url)
    return Client(settings.bus_url, project=project, patience_s=patience_s, as_operator=operates, waits=waits)


@asynccontextmanager
async def cell_clients(settings: Settings, patience_s: float) -> AsyncIterator["Mapping[str, Client]"]:
    """An operator's clients on the brokers of the cells that have their own."""
    async with AsyncExitStack() as stack:
        below: dict[str, Client] = {}
        for cell, url in settings.addresses.cell_bus_urls.items():
            if url != settings.addresses.bus_url:
                there = structs.replace(settings, addresses=structs.replace(settings.addresses, bus_url=url))
                # A broker that is away is a cell that does not answer.
                opened = client(there, operates=True, patience_s=patience_s, waits=True)
                below[cell] = await stack.enter_async_context(opened)
        yield below


def run_with(opened: AbstractAsyncContextManager[G], work: Callable[[G], Awaitable[T]]) -> T:
    """Run a command's work with what the context `opened` gives, such as a client on the bus."""

    async def with_opened() -> T:
        async with opened as given:
            return await work(given)

    return run(with_opened())


def check_alone(flag: str, why: str, others: Mapping[str, object]) -> None:
    """Refuse this flag together with any of the others that is set."""
    for other, given in others.items():
        if given:
            raise click.BadParameter(f"{other} is {given!r}, and cannot be combined with {flag}: {why}")


def check_writable(flag: str, file: Path | None) -> None:
    """Check that the file can be written, before the command starts its work."""
    if file is None:
        return
    with wrong_value(f"{flag} is {str(file)!r}, which cannot be written: ", OSError):
        file.open("ab").close()


def fail(why: str, code: int = NOT_DONE) -> NoReturn:
    """Print the reason to stderr and exit with this code."""
    tell(why, "red")
    raise click.exceptions.Exit(code)


def be_sure(doubt: str, question: str = "Go on?", *, yes: bool) -> None:
    """Go on only if the user is sure of what is doubted: by --yes, or by the answer at a terminal. Otherwise end the command."""
    if why := why_unsure(doubt, question, yes=yes):
        fail(why)


def why_unsure(doubt: str, question: str, *, yes: bool) -> str:
    """Why nothing is done where this is doubted; empty if the user is sure."""
    if not (yes or sys.stdin.isatty()):
        return f"nothing was done: {doubt}. If that is meant, say so with --yes"
    tell(doubt, "yellow")
    return "" if yes or click.confirm(question, err=True) else "nothing was done"


def say(text: str, style: str = "") -> None:
    """Print the text as it is, whatever characters are in it."""
    out.print(text, style=style, markup=False, soft_wrap=True)


def tell(text: str, style: str = "") -> None:
    """Print the text to stderr as it is: programs may read the output proper."""
    err.print(text, style=style, markup=False, soft_wrap=True)
