"""`moor broker`: what must stand on a broker, and who may do what there."""

import json
import os
import secrets
import shlex
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from bus.broker import Connection, NotFound
from bus.definitions import SALT_BYTES, definitions_of, rights_by_user
from bus.topology import ROUTES, Objects, Queue, Site, objects_of
from moor.options import AsJson, BusUrl, Cells, cells_of, fail, out, with_connection

app = typer.Typer(no_args_is_help=True, help="What stands on the broker, and who may do what there.")


@app.command()
def declare(
    bus: BusUrl,
    cells: Cells = "",
    *,
    ironic: Annotated[
        bool, typer.Option("--ironic", help="Create Ironic's exchange too: only where no Ironic will.")
    ] = False,
    users: Annotated[
        bool, typer.Option("--users", help="Create a user for each role and cell, with its rights.")
    ] = False,
    credentials: Annotated[
        Path | None,
        typer.Option(help="Where the users' passwords are: read from there, and new ones are added to it."),
    ] = None,
    ctl: Annotated[
        str,
        typer.Option(
            envvar="MOOR_BROKER_CTL",
            help="How to run rabbitmqctl for that broker, for --users: for instance 'kubectl exec -i rabbit-0 -- rabbitmqctl'.",
        ),
    ] = "rabbitmqctl",
    vhost: Annotated[str, typer.Option(help="The virtual host that the users get their rights on.")] = "/",
) -> None:
    """Declare exchanges and queues; what stands already, alike, stays as it is."""
    objects = objects_of(cells_of(cells), create_foreign=ironic)

    async def work(connection: Connection) -> None:
        await connection.declare(objects)

    with_connection(bus, work)
    out.print(f"[green]declared[/green] {len(objects.exchanges)} exchanges and {len(objects.queues)} queues")
    if users:
        if credentials is None:
            raise typer.BadParameter("--users needs --credentials FILE, where the passwords are kept")
        _create_users(objects, cells_of(cells), credentials, shlex.split(ctl), vhost)


@app.command()
def show(
    bus: BusUrl = "",
    cells: Cells = "one-cell",
    *,
    as_json: AsJson = False,
) -> None:
    """The topology as a table; with --bus, how many parcels wait in each queue."""
    objects = objects_of(cells_of(cells), create_foreign=False)
    depths = _depths(bus, objects.queues) if bus else {}
    if as_json:
        out.print_json(json.dumps(_as_json(objects, depths, cells_of(cells))))
        return
    out.print(_queues_table(objects.queues, depths))
    out.print(_routes_table())
    out.print(_rights_table(objects, cells_of(cells)))


def _create_users(objects: Objects, cells: tuple[str, ...], file: Path, ctl: list[str], vhost: str) -> None:
    names = sorted(rights_by_user(objects.exchanges, cells))
    known = tomllib.loads(file.read_text()) if file.exists() else {}
    passwords = {name: str(known.get(name) or secrets.token_urlsafe(24)) for name in names}
    definitions = definitions_of(
        objects.exchanges, cells, passwords, salt=secrets.token_bytes(SALT_BYTES), virtual_host=vhost
    )
    # First on disk, then on the broker: a password that nobody knows is worth nothing.
    _write_private(file, {**known, **passwords})
    told = subprocess.run(  # noqa: S603 - the operator's own command
        [*ctl, "import_definitions"],
        input=json.dumps(definitions),
        text=True,
        capture_output=True,
        check=False,
    )
    if told.returncode:
        fail(f"{shlex.join(ctl)} import_definitions failed: {(told.stderr or told.stdout).strip()}")
    out.print(f"[green]created[/green] {len(names)} users; their passwords are in {file}")


def _write_private(file: Path, passwords: dict[str, str]) -> None:
    lines = "".join(
        f"{json.dumps(name)} = {json.dumps(password)}\n" for name, password in sorted(passwords.items())
    )
    beside = file.with_name(file.name + ".new")
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
        opened.write(lines)
    beside.replace(file)


def _depths(bus: str, queues: Iterable[Queue]) -> dict[str, int | None]:
    async def work(connection: Connection) -> dict[str, int | None]:
        return {queue.name: await _depth(connection, queue.name) for queue in queues}

    return with_connection(bus, work)


async def _depth(connection: Connection, queue: str) -> int | None:
    try:
        return await connection.depth(queue)
    except NotFound:
        return None


def _queues_table(queues: Iterable[Queue], depths: dict[str, int | None]) -> Table:
    table = Table(title="Queues", title_justify="left")
    for column in ("queue", "kind", "on", "bound to"):
        table.add_column(column)
    if depths:
        table.add_column("waiting", justify="right")
    for queue in queues:
        bindings = "\n".join(f"{binding.exchange} [dim]{binding.pattern}[/dim]" for binding in queue.bindings)
        waiting = depths.get(queue.name)
        cells = [queue.name, queue.kind.value, _where(queue.site), bindings]
        table.add_row(*cells, *([] if not depths else ["not declared" if waiting is None else str(waiting)]))
    return table


def _routes_table() -> Table:
    table = Table(title="Messages", title_justify="left")
    for column in ("type", "is", "goes to"):
        table.add_column(column)
    for kind, route in sorted(ROUTES.items()):
        table.add_row(kind, route.kind.value, route.exchange)
    return table


def _rights_table(objects: Objects, cells: tuple[str, ...]) -> Table:
    table = Table(title="Rights", title_justify="left")
    for column in ("user", "publishes", "consumes"):
        table.add_column(column)
    for user, rights in sorted(rights_by_user(objects.exchanges, cells).items()):
        if not rights.topics:
            table.add_row(user, "everything", "everything")
            continue
        writes = "\n".join(
            f"{topic.exchange} [dim]{_plain(topic.write)}[/dim]"
            for topic in rights.topics
            if topic.write != "^$"
        )
        reads = "\n".join(queue.name for queue in objects.queues if rights.may_read(queue.name))
        table.add_row(user, writes, reads)
    return table


def _as_json(objects: Objects, depths: dict[str, int | None], cells: tuple[str, ...]) -> object:
    return {
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
        "messages": {
            kind: {"is": route.kind.value, "exchange": route.exchange} for kind, route in ROUTES.items()
        },
        "rights": {
            user: {
                "configure": rights.configure,
                "write": rights.write,
                "read": rights.read,
                "topics": {
                    topic.exchange: {"write": topic.write, "read": topic.read} for topic in rights.topics
                },
            }
            for user, rights in rights_by_user(objects.exchanges, cells).items()
        },
    }


def _where(site: Site) -> str:
    return {Site.API: "API", Site.CELL: "cell", Site.BOTH: "every broker"}[site]


def _plain(pattern: str) -> str:
    """A right as a person reads it: without the anchors and escapes of a regular expression."""
    return (
        pattern.removeprefix("^(")
        .removesuffix(")$")
        .replace("\\", "")
        .replace("[^.]+", "*")
        .replace("|", "  ")
    )
