"""`moor broker user`: the applications, each with a user of its own on the broker, its projects, rights and limits.

A user is made on the broker first, and then the schedulers are told whose feed they are to say; each command may be
repeated, and then does what is left.
"""

import json
import secrets
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
import typer

from bus.definitions import SALT_BYTES, UserLimits, definitions_of_application
from bus.messages.applications import (
    ApplicationSet,
    ApplicationsFound,
    AskApplications,
    KnownApplication,
    SetApplication,
)
from bus.topology import APPLICATION_NAME, APPLICATION_USER, Application
from moor.client import client
from moor.credentials import check_private, known_passwords, write_private
from moor.options import AsJson, BusUrl, fail, out, run, settled
from moor.settings import Settings
from moor.showing import print_json
from moor.standing import Standing, standings_of
from moor.tables import print_table, table_of

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Applications: programs with a user of their own on the broker, who speak for their projects alone.",
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Of the application; its user is called moor-app-NAME.")
]
Ctl = Annotated[
    str,
    typer.Option(
        envvar="MOOR_BROKER_CTL",
        help="How to run rabbitmqctl for that broker: for instance 'kubectl exec -i rabbit-0 -- rabbitmqctl'.",
    ),
]
Credentials = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="Where the users' passwords are: read from there, and a new one is added to it. Else a new one is printed.",
    ),
]


@app.command()
def add(
    name: Name,
    bus: BusUrl = "",
    *,
    project: Annotated[
        list[str] | None,
        typer.Option(
            metavar="P", help="A project that it speaks for; may be repeated. [a-z0-9_-], at most 64."
        ),
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="It speaks for all projects.")] = False,
    credentials: Credentials = None,
    ctl: Ctl = "rabbitmqctl",
    connections_max: Annotated[int, typer.Option(min=1, help="How many connections it may have.")] = 10,
    channels_max: Annotated[int, typer.Option(min=1, help="How many channels in all.")] = 100,
) -> None:
    """Make an application, or give one that is there these projects and no others; then it must connect anew."""
    settings, standing = _place(bus)
    application = _application(name, project or (), admin=admin)
    check_private(credentials)
    known = known_passwords(credentials)
    password = known.get(application.user) or secrets.token_urlsafe(24)
    if credentials is not None:
        write_private(credentials, {**known, application.user: password})
    definitions = definitions_of_application(
        application,
        standing.objects().exchanges,
        password,
        salt=secrets.token_bytes(SALT_BYTES),
        virtual_host=standing.virtual_host,
        limits=UserLimits(connections_max, channels_max),
    )
    command = shlex.split(ctl)
    _told(command, "import_definitions", told=json.dumps(definitions))
    # RabbitMQ keeps in mind what an open channel was allowed.
    _told(command, "close_all_user_connections", application.user, "its rights have changed")
    order = SetApplication(name=name, projects=application.projects, admin=admin)
    run(_set(settings, order))
    where = f"its password is in {credentials}" if credentials else f"its password is {password}"
    speaks_for = "all projects" if admin else ", ".join(application.projects)
    out.print(
        f"[green]{application.user}[/green] speaks for {speaks_for}; {where}", highlight=False, soft_wrap=True
    )


@app.command()
def remove(
    name: Name, bus: BusUrl = "", *, credentials: Credentials = None, ctl: Ctl = "rabbitmqctl"
) -> None:
    """Delete an application's user; the broker then closes its connections."""
    settings, _ = _place(bus)
    if not APPLICATION_NAME.fullmatch(name):
        raise typer.BadParameter(f"an application's name is {APPLICATION_NAME.pattern}, not {name!r}")
    check_private(credentials)
    user, command = f"{APPLICATION_USER}{name}", shlex.split(ctl)
    listed = _told(command, "list_users", "--silent", "--formatter", "json")
    was_there = any(each["user"] == user for each in json.loads(listed))
    if was_there:
        _told(command, "delete_user", user)
    known = known_passwords(credentials)
    if credentials is not None and known.pop(user, None) is not None:
        write_private(credentials, known)
    run(_set(settings, SetApplication(name=name, removed=True)))
    out.print(f"[green]{user}[/green] is removed" if was_there else f"there was no user {user}")


@app.command("list")
def list_applications(bus: BusUrl = "", *, as_json: AsJson = False) -> None:
    """The applications that the schedulers know, with their projects."""
    found = run(_ask(settled(bus=bus)))
    if as_json:
        print_json([msgspec.to_builtins(each) for each in found])
        return
    table = table_of("application", "user", "speaks for", prose=("speaks for",))
    for each in found:
        projects = "all projects" if each.admin else ", ".join(each.projects)
        table.add_row(each.name, f"{APPLICATION_USER}{each.name}", projects)
    if found:
        print_table(table)
    else:
        out.print("no applications")


def _place(bus: str) -> tuple[Settings, Standing]:
    """The broker of the API level, where applications have their users."""
    settings = settled(bus=bus)
    scheme = urlsplit(settings.bus_url).scheme
    if scheme not in ("amqp", "amqps"):
        raise typer.BadParameter(
            f"applications are users of RabbitMQ, and bus_url is {settings.bus_url!r}: on the bus of `moor up` a user of "
            "this machine may do everything"
        )
    places = msgspec.structs.replace(settings.places, bus_url=settings.bus_url)
    return settings, standings_of(places, places.cells)[0]


def _application(name: str, projects: Sequence[str], *, admin: bool) -> Application:
    try:
        return Application(name, tuple(dict.fromkeys(projects)), admin)
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from None


async def _set(settings: Settings, order: SetApplication) -> None:
    async with client(settings, operates=True) as asking:
        answer = await asking.ask(order)
    assert isinstance(answer, ApplicationSet), f"an order about an application was answered by {answer!r}"


async def _ask(settings: Settings) -> Sequence[KnownApplication]:
    async with client(settings, operates=True) as asking:
        answer = await asking.ask(AskApplications())
    assert isinstance(answer, ApplicationsFound), f"a question for applications was answered by {answer!r}"
    return answer.applications


def _told(ctl: Sequence[str], *arguments: str, told: str = "") -> str:
    done = subprocess.run(  # noqa: S603 - the operator's own command
        [*ctl, *arguments], input=told, text=True, capture_output=True, check=False
    )
    if done.returncode:
        fail(f"{shlex.join(ctl)} {arguments[0]} failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout
