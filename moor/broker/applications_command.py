"""`moor broker user`: applications, each with its own broker user, projects, rights and limits.

A command first creates the user on the broker, then tells the schedulers which projects' feeds to publish. Repeating a
command that broke off completes it.
"""

import json
import secrets
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
import typer
from rich.markup import escape

from bus.broker import Connection
from bus.definitions import SALT_BYTES, definitions_of
from bus.messages.stored_names import (
    ApplicationSet,
    ApplicationsFound,
    AskApplications,
    KnownApplication,
    SetApplication,
)
from bus.queues import API_QUEUES, APPLICATION_NAME, APPLICATION_USER, application_queue
from bus.topology import Application, objects_of_application
from kit.errors import NotFound
from moor.asking import asked
from moor.broker.deployments import BrokerDeployment, deployments_of
from moor.message_commands import command_that_sends
from moor.options import BusUrl, command_settings, fail, out, with_connection, wrong_value
from moor.secret_files import (
    EnvironmentDirectory,
    PasswordDirectory,
    ReplaceEnvironment,
    changes_credentials,
    check_private,
    environment_files,
    files_of_passwords,
    known_passwords,
    passwords_of,
    write_private,
)
from moor.tables import Columns

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Applications: programs with their own broker user, which may act only for their projects.",
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The application's name; its user is called moor-app-NAME.")
]
Ctl = Annotated[
    str,
    typer.Option(
        help="The command that runs rabbitmqctl for the broker, for instance 'kubectl exec -i rabbit-0 -- rabbitmqctl'."
    ),
]
Credentials = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="The file of the users' passwords: known ones are read from it, a new one is added. Without it, a new password "
        "is printed.",
    ),
]


@app.command()
@changes_credentials
def add(
    name: Name,
    bus: BusUrl = "",
    *,
    project: Annotated[
        list[str] | None,
        typer.Option(
            metavar="P",
            help="A project that it may act for; may be repeated. At most 64 characters of [a-z0-9_-].",
        ),
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="It may act for all projects.")] = False,
    credentials: Credentials = None,
    env_dir: EnvironmentDirectory = None,
    replace_env: ReplaceEnvironment = False,
    password_dir: PasswordDirectory = None,
    rotate: Annotated[bool, typer.Option("--rotate", help="Make a new password for its user.")] = False,
    ctl: Ctl = "rabbitmqctl",
    connections_max: Annotated[int, typer.Option(min=1, help="How many connections it may open.")] = 10,
    channels_max: Annotated[int, typer.Option(min=1, help="How many channels it may open in all.")] = 100,
) -> None:
    """Create an application, or replace the projects of an existing one, which then has to reconnect."""
    deployment = _api_broker(bus)
    with wrong_value():
        application = Application(name, tuple(dict.fromkeys(project or ())), admin)
    check_private(credentials)
    password_files = files_of_passwords(password_dir, "broker")
    known = known_passwords(credentials)
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
    if credentials is not None:
        write_private(credentials, {**known, application.user: password})
    for file in files:
        out.print(f"{escape(str(file.path))}: {file.write()}", soft_wrap=True)
    if done := password_files.write(passwords):
        out.print(escape(done), soft_wrap=True)
    definitions = definitions_of(
        deployment.objects().exchanges,
        (),
        {application.user: password},
        salt=secrets.token_bytes(SALT_BYTES),
        virtual_host=deployment.virtual_host,
        applications=(application,),
        limits={"max-connections": connections_max, "max-channels": channels_max},
    )
    command = shlex.split(ctl)
    with_connection(
        deployment.url,
        lambda connection: connection.declare(objects_of_application(application, limits=deployment.limits)),
    )
    rabbitmqctl(command, "import_definitions", stdin=json.dumps(definitions))
    # RabbitMQ caches the rights of an open channel.
    rabbitmqctl(command, "close_all_user_connections", application.user, "its rights have changed")
    asked(bus, SetApplication(name=name, projects=application.projects, admin=admin), ApplicationSet)
    where = f"its password is in {escape(str(credentials))}" if credentials else f"its password is {password}"
    acts_for = "all projects" if admin else ", ".join(application.projects)
    out.print(
        f"[green]{application.user}[/green] may act for {acts_for}; {where}. Its own exchange is "
        f"[green]{application.exchange}[/green]",
        soft_wrap=True,
    )


@app.command()
@changes_credentials
def remove(
    name: Name, bus: BusUrl = "", *, credentials: Credentials = None, ctl: Ctl = "rabbitmqctl"
) -> None:
    """Delete an application's user and queues; the broker then closes its connections. Orders that still wait there are
    dropped.
    """
    deployment = _api_broker(bus)
    if not APPLICATION_NAME.fullmatch(name):
        raise typer.BadParameter(
            f"NAME is {name!r}: an application's name must match {APPLICATION_NAME.pattern}"
        )
    check_private(credentials)
    _check_answered(bus)
    user, command = f"{APPLICATION_USER}{name}", shlex.split(ctl)
    listed = rabbitmqctl(command, "list_users", "--silent", "--formatter", "json")
    was_there = any(each["user"] == user for each in json.loads(listed))
    if was_there:
        rabbitmqctl(command, "delete_user", user)
    queues = [application_queue(each, name) for each in API_QUEUES]
    for queue, waiting in with_connection(deployment.url, partial(depths_of, queues)).items():
        if waiting is not None:
            rabbitmqctl(command, "delete_queue", queue, "--vhost", deployment.virtual_host)
    known = known_passwords(credentials)
    if credentials is not None and known.pop(user, None) is not None:
        write_private(credentials, known)
    asked(bus, SetApplication(name=name, removed=True), ApplicationSet)
    out.print(f"[green]{user}[/green] is removed" if was_there else f"there was no user {user}")


APPLICATIONS = Columns[KnownApplication](
    {
        "application": lambda each: each.name,
        "user": lambda each: f"{APPLICATION_USER}{each.name}",
        "acts for": lambda each: "all projects" if each.admin else ", ".join(each.projects),
    },
    prose=("acts for",),
)


app.command("list")(
    command_that_sends(
        AskApplications,
        words="List the applications that the schedulers know, with their projects.",
        answer=ApplicationsFound,
        items=lambda found: found.applications,
        show=APPLICATIONS,
        nothing="no applications",
        operates=True,
    )
)


def _check_answered(bus: str) -> None:
    """Check that schedulers answer the user of this URL, before anything changes: in the end they must hear of the application."""
    asked(bus, AskApplications(), ApplicationsFound)


def _api_broker(bus: str) -> BrokerDeployment:
    """The broker of the API level, where applications have their users."""
    settings = command_settings(bus=bus)
    if urlsplit(settings.bus_url).scheme not in ("amqp", "amqps"):
        raise typer.BadParameter(
            f"bus_url is {settings.bus_url!r}: applications need a RabbitMQ broker (amqp:// or amqps://); on the bus of "
            "`moor up` every local user may do everything"
        )
    addresses = msgspec.structs.replace(settings.addresses, bus_url=settings.bus_url)
    return deployments_of(addresses, addresses.cells)[0]


async def depths_of(queues: Iterable[str], connection: Connection) -> dict[str, int | None]:
    """How many parcels wait in each of these queues; None if it is not declared."""
    return {queue: await _depth(connection, queue) for queue in queues}


async def _depth(connection: Connection, queue: str) -> int | None:
    try:
        return await connection.depth(queue)
    except NotFound:
        return None


def rabbitmqctl(ctl: Sequence[str], *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(  # noqa: S603 - the operator's own command
        [*ctl, *arguments], input=stdin, text=True, capture_output=True, check=False
    )
    if done.returncode:
        fail(f"{shlex.join(ctl)} {arguments[0]} failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout
