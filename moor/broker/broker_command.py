"""`moor broker`: the exchanges, queues, users and rights that each broker must have."""

import json
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import click
import msgspec
from msgspec import structs
from rich.markup import escape

from bus.addresses import ADDRESSES
from bus.broker import Connection
from bus.definitions import SALT_BYTES, Rights, definitions_of, other_inboxes
from bus.queues import API_QUEUES, APPLICATION_NAME, APPLICATION_USER, Objects, Queue, Site, application_queue
from bus.topology import ROLES, Application, Route, objects_of_application, routes, user_of
from kit.settings import text_of, without_password
from moor.broker.deployments import BrokerDeployment, deployments_of, depths_of
from moor.flags import Commands, argument, option
from moor.options import (
    BusUrl,
    Cells,
    Output,
    command_settings,
    fail,
    out,
    tuned,
    wants_document,
    with_client,
    with_connection,
    wrong_value,
)
from moor.resource_commands import commands_of
from moor.resources import APPLICATION
from moor.secret_files import (
    EnvironmentDirectory,
    PasswordDirectory,
    PasswordFiles,
    ReplaceEnvironment,
    Rotate,
    changes_credentials,
    environment_files,
    files_of_passwords,
    known_passwords,
    passwords_of,
    write_all,
    write_private,
)
from moor.settings import Settings
from moor.showing import print_json
from moor.tables import Columns, print_table, styled
from moor.worker_settings import IRONIC_DAEMONS

app = Commands("The broker's exchanges, queues, users and rights.")


WHERE = {Site.API: "API", Site.CELL: "cell", Site.BOTH: "every broker", Site.IRONIC: "Ironic's"}
MESSAGES = Columns[tuple[str, Route]](
    {
        "message": lambda each: each[0],
        "is": lambda each: each[1].kind.value,
        "goes to": lambda each: each[1].exchange,
    }
)
RIGHTS = Columns[tuple[str, str, str]](
    {"user": lambda each: each[0], "may": lambda each: each[1], "what": lambda each: styled(each[2])},
    lists=("what",),
)

Ctl = Annotated[
    str,
    option(
        help="The command that runs rabbitmqctl for the broker, for instance 'kubectl exec -i rabbit-0 -- rabbitmqctl'."
    ),
]


@app.verb()
@changes_credentials
def declare(
    bus: BusUrl = "",
    cells: Cells = "",
    *,
    ironic: Annotated[
        bool,
        option(
            "--ironic", help="Create Ironic's exchange too, with Ironic's settings, where no Ironic does."
        ),
    ] = False,
    users: Annotated[
        bool, option("--users", help="Create a user for each role and cell, with its rights.")
    ] = False,
    credentials: Annotated[
        Path | None,
        option(help="The file of the users' passwords: known ones are read from it, new ones are added."),
    ] = None,
    env_dir: EnvironmentDirectory = None,
    replace_env: ReplaceEnvironment = False,
    password_dir: PasswordDirectory = None,
    rotate: Rotate = None,
    ctl: Ctl = "rabbitmqctl",
    only: Annotated[
        str,
        option(
            metavar="api|ironic|CELL",
            help="Only one broker: the API level's, Ironic's own, or this cell's.",
        ),
    ] = "",
) -> None:
    """Declare exchanges and queues. Those that exist with the same settings stay as they are.

    Each broker gets what belongs there: the API level's, and those of cells and of Ironic (MOOR_CELL_BUS_URLS,
    MOOR_IRONIC_BUS_URL). If a URL names several nodes, its queues of questions are kept on several, too.
    """
    if users and credentials is None:
        raise click.BadParameter("--users needs --credentials FILE, in which the passwords are saved")
    if not users:
        _check_no_passwords({"--env-dir": env_dir, "--password-dir": password_dir, "--rotate": rotate})
    known = known_passwords(credentials)
    password_files = files_of_passwords(password_dir, "broker")
    command = ctl_of(ctl) if users else []
    settings, deployments = _deployments(bus, cells)
    named = {name for each in deployments for name in each.rights()} if users else ()
    passwords = passwords_of({*named}, known, rotate)
    chosen = _chosen(deployments, only)
    granted = {
        each.url: _granted_already(each, known, command)
        for each in chosen
        if users and Site.IRONIC in each.sites
    }
    with wrong_value("a broker's URL: "):
        variables = broker_variables(settings, passwords, password_files) if env_dir is not None else {}
    files = environment_files(env_dir, variables, replace=replace_env)
    write_all(credentials if users else None, known, passwords, files=files, password_files=password_files)
    for deployment in chosen:
        objects = deployment.objects(create_foreign=ironic)
        with_connection(deployment.url, partial(_declare, objects))
        out.print(
            f"[green]declared[/green] {len(objects.exchanges)} exchanges and {len(objects.queues)} queues"
            f" for {', '.join(deployment.names)}"
        )
        if users:
            _create_users(deployment, passwords, command, granted.get(deployment.url))
    if users:
        out.print(f"their passwords are in {escape(str(credentials))}", soft_wrap=True)


@app.verb()
def show(
    bus: BusUrl = "",
    cells: Cells = "",
    *,
    _output: Output = None,
) -> None:
    """Show each broker's queues, rights and messages. With a bus URL, show how many parcels wait in each queue."""
    settings, deployments = _deployments(bus, cells, else_cells=("one-cell",))
    is_named = bool(settings.addresses.bus_url)
    depths = [
        with_connection(each.url, partial(depths_of, [queue.name for queue in each.objects().queues]))
        if is_named
        else {}
        for each in deployments
    ]
    if wants_document():
        brokers = [_as_json(*each) for each in zip(deployments, depths, strict=True)]
        messages = {
            name: {"is": route.kind.value, "exchange": route.exchange} for name, route in routes().items()
        }
        print_json({"brokers": brokers, "messages": messages})
        return
    for deployment, waiting in zip(deployments, depths, strict=True):
        if len(deployments) > 1:
            out.rule(
                escape(f"broker of {', '.join(deployment.names)}: {without_password(deployment.url)}"),
                align="left",
            )
        print_table(deployment.objects().queues, _queue_columns(waiting))
        out.print()
        print_table(_rights(deployment), RIGHTS)
        out.print()
    print_table(sorted(routes().items(), key=itemgetter(0)), MESSAGES)


async def _declare(objects: Objects, connection: Connection) -> None:
    await connection.declare(objects)


def _check_no_passwords(flags: Mapping[str, object]) -> None:
    for flag, given in flags.items():
        if given:
            raise click.BadParameter(f"{flag} needs --users, whose passwords are meant")


def _deployments(
    bus: str, cells: str, else_cells: tuple[str, ...] = ()
) -> tuple[Settings, tuple[BrokerDeployment, ...]]:
    settings = command_settings(bus=bus, cells=cells)
    addresses = structs.replace(settings.addresses, bus_url=settings.bus_url)
    return settings, deployments_of(addresses, addresses.cells or else_cells, tuned(IRONIC_DAEMONS))


def _chosen(deployments: Sequence[BrokerDeployment], only: str) -> Sequence[BrokerDeployment]:
    chosen = [each for each in deployments if not only or only in each.names]
    if not chosen:
        names = ", ".join(name for each in deployments for name in each.names)
        raise click.BadParameter(f"--only is {only!r}: the brokers are {names}")
    return chosen


def _granted_already(
    deployment: BrokerDeployment, known: Mapping[str, str], ctl: Sequence[str]
) -> Rights | None:
    """The rights of Ironic's daemons on this broker that they keep, since another Ironic's inbox is among them.

    On a broker that is Ironic's alone they keep all: it may be the API level's, by another URL.
    """
    user = user_of("ironic")
    for row in _listed(ctl, "list_permissions", "-p", deployment.virtual_host):
        if row["user"] == user:
            granted = Rights(user, row["configure"], row["write"], row["read"])
            others = ", ".join(other_inboxes(deployment.rights()[user], granted))
            if others and user not in known:
                fail(
                    f"{user} reads {others} on this broker already, for another Ironic: give the --credentials file that has "
                    "its password. With a new one, those daemons could not log in any more"
                )
            if others:
                out.print(f"{user} keeps its rights to {escape(others)}, for another Ironic", soft_wrap=True)
            return granted if others or deployment.sites == (Site.IRONIC,) else None
    return None


def _create_users(
    deployment: BrokerDeployment, passwords: Mapping[str, str], ctl: list[str], granted: Rights | None
) -> None:
    names = sorted(deployment.rights())
    definitions = definitions_of(
        deployment.objects().exchanges,
        deployment.cells,
        {name: passwords[name] for name in names},
        salt=secrets.token_bytes(SALT_BYTES),
        virtual_host=deployment.virtual_host,
        sites=deployment.sites,
        inbox=deployment.inbox,
        granted=granted,
    )
    rabbitmqctl(ctl, "import_definitions", stdin=json.dumps(definitions))
    out.print(f"[green]created[/green] {len(names)} users for {', '.join(deployment.names)}")


def _queue_columns(depths: dict[str, int | None]) -> Columns[Queue]:
    def waiting(queue: Queue) -> str:
        depth = depths.get(queue.name, "")
        return "not declared" if depth is None else str(depth)

    return Columns(
        {
            "queue": lambda queue: queue.name,
            "kind": lambda queue: queue.kind.value,
            "on": lambda queue: WHERE[queue.site],
            "waiting": waiting,
            "bound to": lambda queue: styled(
                _lines((each.exchange, each.pattern) for each in queue.bindings)
            ),
        },
        lists=("bound to",),
    )


def _rights(deployment: BrokerDeployment) -> Iterator[tuple[str, str, str]]:
    """For each user: what it may publish, and what it may consume."""
    for user, rights in sorted(deployment.rights().items()):
        if not rights.topics:
            yield user, "publish and consume", "everything"
            continue
        writes = ((topic.exchange, each) for topic in rights.topics for each in _plain(topic.write))
        yield user, "publish", _lines(writes)
        queues = [queue.name for queue in deployment.objects().queues if rights.may_read(queue.name)]
        yield user, "consume", "\n".join(queues)


def _lines(keys: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"{exchange} [dim]{escape(key)}[/dim]" for exchange, key in keys)


def _as_json(deployment: BrokerDeployment, depths: dict[str, int | None]) -> object:
    objects = deployment.objects()
    return {
        "of": deployment.names,
        "exchanges": [exchange.name for exchange in objects.exchanges],
        "queues": [
            {
                "name": queue.name,
                "kind": queue.kind.value,
                "on": queue.site.value,
                "bindings": [[binding.exchange, binding.pattern] for binding in queue.bindings],
                **({"waiting": depths[queue.name]} if depths else {}),
            }
            for queue in objects.queues
        ],
        "rights": {
            user: {
                "configure": rights.configure,
                "write": rights.write,
                "read": rights.read,
                "topics": {
                    topic.exchange: {"write": topic.write, "read": topic.read} for topic in rights.topics
                },
            }
            for user, rights in deployment.rights().items()
        },
    }


def _plain(pattern: str) -> list[str]:
    """A right's keys in readable form: without the anchors and escapes of its regular expression."""
    if pattern == "^$":
        return []
    keys = pattern.removeprefix("^(").removesuffix(")$").replace("\\", "").replace("[^.]+", "*")
    return keys.split("|")


# Roles that ask Ironic's API, and need to know which cell a node belongs to.
_WITH_IRONIC = ("ironic", "operator")
_OF_IRONIC = ("ironic_url", "ironic_cell", "ironic_groups", "ironic_shards")


def broker_variables(
    settings: Settings, passwords: Mapping[str, str], files: PasswordFiles | None = None
) -> dict[str, dict[str, str]]:
    """The variables of each user, by its name. An empty value: this user needs no such variable.

    A cell's worker gets only the address of its cell's broker, and an API-level one those of all brokers.
    """
    addresses, login = settings.addresses, (files or PasswordFiles(None, "broker")).login
    found: dict[str, dict[str, str]] = {}
    for role in ROLES:
        for cell in addresses.cells if role.per_cell else ("",):
            user = user_of(role.name, cell)
            own = addresses.cell_bus_urls.get(cell, settings.bus_url)
            found[user] = {"MOOR_BUS_URL": login(own, user, passwords[user])}
            if cell:
                found[user]["MOOR_CELL"] = cell
                continue
            found[user] |= {
                "MOOR_CELLS": ",".join(addresses.cells),
                "MOOR_CELL_BUS_URLS": ",".join(
                    f"{name}={login(url, user, passwords[user])}"
                    for name, url in addresses.cell_bus_urls.items()
                ),
            }
            if role.name == "ironic":
                of_ironic = addresses.ironic_bus_url
                found[user]["MOOR_IRONIC_BUS_URL"] = (
                    login(of_ironic, user, passwords[user]) if of_ironic else ""
                )
            if role.name in _WITH_IRONIC:
                found[user] |= {
                    ADDRESSES.variable(field): _text(getattr(addresses, field)) for field in _OF_IRONIC
                }
    return found


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ",".join(f"{key}={each}" for key, each in value.items())
    return text_of(value)


# `moor application`: applications, each with its own broker user, projects, rights and limits.
#
# A command first creates the user on the broker, then tells the schedulers which projects' feeds to publish. Repeating a command that broke
# off completes it.

applications = commands_of(
    APPLICATION, "Applications: programs with their own broker user, which may act only for their projects."
)

Name = Annotated[
    str, argument(metavar="NAME", help="The application's name; its user is called moor-app-NAME.")
]
Credentials = Annotated[
    Path | None,
    option(
        metavar="FILE",
        show_default=False,
        help="The file of the users' passwords: known ones are read from it, a new one is added. Without it, a new password "
        "is printed.",
    ),
]


@applications.verb()
@changes_credentials
def create(
    name: Name,
    bus: BusUrl = "",
    *,
    project: Annotated[
        list[str] | None,
        option(
            metavar="P",
            help="A project that it may act for; may be repeated. At most 64 characters of [a-z0-9_-].",
        ),
    ] = None,
    admin: Annotated[bool, option("--admin", help="It may act for all projects.")] = False,
    credentials: Credentials = None,
    env_dir: EnvironmentDirectory = None,
    replace_env: ReplaceEnvironment = False,
    password_dir: PasswordDirectory = None,
    rotate: Annotated[bool, option("--rotate", help="Make a new password for its user.")] = False,
    ctl: Ctl = "rabbitmqctl",
    connections_max: Annotated[int, option(min=1, help="How many connections it may open.")] = 10,
    channels_max: Annotated[int, option(min=1, help="How many channels it may open in all.")] = 100,
) -> None:
    """Create an application, or replace the projects of an existing one, which then has to reconnect."""
    deployment, command = _api_broker(bus), ctl_of(ctl)
    with wrong_value():
        application = Application(name, tuple(dict.fromkeys(project or ())), admin)
    known = known_passwords(credentials)
    password_files = files_of_passwords(password_dir, "broker")
    passwords = passwords_of({application.user}, known, [application.user] if rotate else ())
    password = passwords[application.user]
    variables = {
        "MOOR_BUS_URL": password_files.login(deployment.url, application.user, password),
        "MOOR_CELLS": ",".join(command_settings(bus=bus).addresses.cells) if admin else "",
        # Of several it names one with each order.
        "MOOR_PROJECT": application.projects[0] if len(application.projects) == 1 else "",
    }
    files = environment_files(env_dir, {application.user: variables}, replace=replace_env)
    _check_answered(bus)
    write_all(credentials, known, passwords, files=files, password_files=password_files)
    definitions = definitions_of(
        deployment.objects().exchanges,
        (),
        {application.user: password},
        salt=secrets.token_bytes(SALT_BYTES),
        virtual_host=deployment.virtual_host,
        applications=(application,),
        limits={"max-connections": connections_max, "max-channels": channels_max},
    )
    objects = objects_of_application(application, limits=deployment.limits)
    with_connection(deployment.url, partial(_declare, objects))
    rabbitmqctl(command, "import_definitions", stdin=json.dumps(definitions))
    # RabbitMQ caches the rights of an open channel.
    rabbitmqctl(command, "close_all_user_connections", application.user, "its rights have changed")
    with_client(
        bus,
        lambda moor: moor.create_application(name, projects=application.projects, admin=admin),
        operates=True,
    )
    where = f"its password is in {escape(str(credentials))}" if credentials else f"its password is {password}"
    acts_for = "all projects" if admin else ", ".join(application.projects)
    out.print(
        f"[green]{application.user}[/green] may act for {acts_for}; {where}. Its own exchange is "
        f"[green]{application.exchange}[/green]",
        soft_wrap=True,
    )


@applications.verb()
@changes_credentials
def delete(
    name: Name, bus: BusUrl = "", *, credentials: Credentials = None, ctl: Ctl = "rabbitmqctl"
) -> None:
    """Delete an application's user and queues; the broker then closes its connections. Orders that still wait there are
    dropped.
    """
    deployment, command = _api_broker(bus), ctl_of(ctl)
    if not APPLICATION_NAME.fullmatch(name):
        raise click.BadParameter(
            f"NAME is {name!r}: an application's name must match {APPLICATION_NAME.pattern}"
        )
    known = known_passwords(credentials)
    _check_answered(bus)
    user = f"{APPLICATION_USER}{name}"
    was_there = any(each["user"] == user for each in _listed(command, "list_users"))
    if was_there:
        rabbitmqctl(command, "delete_user", user)
    queues = [application_queue(each, name) for each in API_QUEUES]
    for queue, waiting in with_connection(deployment.url, partial(depths_of, queues)).items():
        if waiting is not None:
            rabbitmqctl(command, "delete_queue", queue, "--vhost", deployment.virtual_host)
    if credentials is not None and known.pop(user, None) is not None:
        write_private(credentials, known)
    with_client(bus, lambda moor: moor.delete_application(name), operates=True)
    out.print(f"[green]{user}[/green] is deleted" if was_there else f"there was no user {user}")


def _check_answered(bus: str) -> None:
    """Check that schedulers answer the user of this URL, before anything changes: in the end they must hear of the application."""
    with_client(bus, lambda moor: moor.list_applications(), operates=True)


def _api_broker(bus: str) -> BrokerDeployment:
    """The broker of the API level, where applications have their users."""
    settings = command_settings(bus=bus)
    if urlsplit(settings.bus_url).scheme not in ("amqp", "amqps"):
        raise click.BadParameter(
            f"bus_url is {settings.bus_url!r}: applications need a RabbitMQ broker (amqp:// or amqps://); on the bus of "
            "`moor up` every local user may do everything"
        )
    addresses = msgspec.structs.replace(settings.addresses, bus_url=settings.bus_url)
    return deployments_of(addresses, addresses.cells)[0]


def ctl_of(given: str) -> list[str]:
    """The words of --ctl, checked before anything changes."""
    with wrong_value(f"--ctl is {given!r}: "):
        words = shlex.split(given)
    if not words or shutil.which(words[0]) is None:
        raise click.BadParameter(
            f"--ctl is {given!r}: there is no such command on this machine; name one that runs rabbitmqctl for the broker"
        )
    return words


def rabbitmqctl(ctl: Sequence[str], *arguments: str, stdin: str = "") -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the operator's own command
            [*ctl, *arguments], input=stdin, text=True, errors="replace", capture_output=True, check=False
        )
    except OSError as problem:
        fail(f"{shlex.join(ctl)} cannot be run: {problem}")
    if done.returncode:
        fail(f"{shlex.join(ctl)} {arguments[0]} failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def _listed(ctl: Sequence[str], *arguments: str) -> list[dict[str, Any]]:
    """The rows that a listing of rabbitmqctl has."""
    said = rabbitmqctl(ctl, *arguments, "--silent", "--formatter", "json")
    try:
        return msgspec.json.decode(said, type=list[dict[str, Any]])
    except msgspec.MsgspecError as wrong:
        fail(f"{shlex.join(ctl)} {arguments[0]} has not listed what rabbitmqctl does: {wrong}")
