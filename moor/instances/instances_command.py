"""`moor show`, `list`, `delete` and `console`: commands about instances, sent over the bus."""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from bus.messages.build import AskInstances, DeleteInstance, InstancesFound, InstanceState
from bus.messages.cell import CONSOLE_BYTES_MAX, AskConsole
from engine.hosts import cell_and_name
from moor.asking import FOUND_AT_ONCE_MAX, CommandClient, answers_of, ask_bus, client, hosts_of
from moor.client.instances import last_of_console, parts_of_console
from moor.completing import complete_cells, complete_hosts, complete_instances, complete_states
from moor.instances.following import Following, Timeout, followed
from moor.naming import instances_or_requests
from moor.options import (
    ID,
    NOT_IN_TIME,
    BusUrl,
    Form,
    Output,
    Project,
    command_settings,
    fail,
    form,
    run,
    tell,
    wants_document,
)
from moor.showing import (
    COLOURS,
    INSTANCES,
    as_document,
    check_known,
    last_heard,
    print_all,
    print_instance,
    print_json,
    print_last_heard,
    wide,
)

Names = Annotated[
    list[str],
    typer.Argument(
        metavar=f"{ID}...",
        help="Instances; or ids of requests, for all of their instances.",
        autocompletion=complete_instances,
    ),
]


def show(
    named: Annotated[
        str, typer.Argument(metavar=ID, help="An instance, or a request.", autocompletion=complete_instances)
    ],
    bus: BusUrl = "",
    *,
    project: Project = "",
    _output: Output = None,
) -> None:
    """Show an instance, or all instances of a request."""

    async def work(asking: CommandClient) -> tuple[list[InstanceState], CommandClient]:
        return [*(await instances_or_requests(asking, [named], project)).values()], asking

    states, asked = ask_bus(bus, work, operates=False)
    if wants_document():
        print_json([as_document(each, asked.cells, asked.details) for each in states])
        return
    for state in states:
        print_instance(state, last_heard(state.cell, asked.cells), asked.details.get(state.id))


def list_instances(
    bus: BusUrl = "",
    *,
    state: Annotated[
        str,
        typer.Option(
            help="accepted, waiting, placed, building, active, rebuilding, moving, moved, stopped, shelved, offloaded, error, deleting or deleted.",
            autocompletion=complete_states,
        ),
    ] = "",
    cell: Annotated[
        str, typer.Option(help="Only instances of this cell.", autocompletion=complete_cells)
    ] = "",
    host: Annotated[
        str, typer.Option(help="Only instances on this host.", autocompletion=complete_hosts)
    ] = "",
    project: Project = "",
    name: Annotated[
        str, typer.Option(help="Only instances with this name.", autocompletion=complete_instances)
    ] = "",
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 1000,
    _output: Output = None,
) -> None:
    """List the instances, deleted ones too, ordered by id: each as its cell told it last.

    With -o wide also the size, the flavor and the times of each.
    """
    if state and state not in COLOURS:
        raise typer.BadParameter(f"--state is {state!r}; the states are {', '.join(COLOURS)}")
    of_host, host = cell_and_name(host)
    if of_host and cell not in ("", of_host):
        raise typer.BadParameter(f"--cell is {cell!r}, and --host names a host of cell {of_host!r}")
    cell = of_host or cell
    wanted = {"cell": cell, "host": host, "project": project, "name": name, "state": state}

    async def work(asking: CommandClient) -> tuple[list[InstanceState], CommandClient]:
        found = await _found(asking, wanted, limit)
        if (cell or host) and not found:
            hosts = await hosts_of(asking)
            check_known("--cell", cell, (each.cell for each in hosts))
            check_known("--host", host, (each.name for each in hosts))
        return found, asking

    found, asked = ask_bus(bus, work, operates=False)
    shown = found[:limit]
    if wants_document():
        print_json([as_document(each, asked.cells, asked.details) for each in shown])
    else:
        columns = wide(asked.details) if form() is Form.WIDE else INSTANCES
        print_all(shown, columns, "no instances")
        print_last_heard(shown, asked.cells)
    if len(found) > limit:
        tell(f"there are more than {limit} instances: a higher --limit shows them", "yellow")


async def _found(asking: CommandClient, wanted: Mapping[str, str], limit: int) -> list[InstanceState]:
    """The first instances whose fields are as `wanted`: `limit` of them, and more if there are more."""
    question = AskInstances(
        project=wanted["project"], state=wanted["state"], name=wanted["name"], limit=FOUND_AT_ONCE_MAX
    )
    found: list[InstanceState] = []
    async for page in asking.pages_of_instances(question):
        found += [
            each
            for each in page.instances
            if all(getattr(each, field) == value for field, value in wanted.items() if value)
        ]
        if len(found) > limit:
            break
    return found


def delete(
    named: Names,
    bus: BusUrl = "",
    *,
    project: Project = "",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until they are deleted.")] = False,
    timeout: Timeout = 120.0,
    _output: Output = None,
) -> None:
    """Delete instances in any state. A deleted one stays deleted."""
    run(_delete(Following(bus, wait, timeout), named, project))


async def _delete(following: Following, named: Sequence[str], project: str) -> None:
    by_s = asyncio.get_running_loop().time() + following.timeout
    async with client(following.settings, patience_s=following.timeout) as asking:
        known = await instances_or_requests(asking, named, project)
        deletes = [DeleteInstance(instance=id_, project=project) for id_ in known]
        answers = await answers_of(asking, deletes, InstancesFound)
        states, in_time = await followed(
            asking,
            [*known],
            [*known.values(), *(each for answer in answers for each in answer.instances)],
            lambda each: each.state == "deleted",
            following,
            by_s=by_s,
            project=project,
        )
    print_all(states, INSTANCES)
    if not in_time:
        fail(
            f"not all instances are deleted within {following.timeout:.0f} s; the delete goes on: `moor show` shows its state",
            NOT_IN_TIME,
        )


# `moor console`: what the guest of an instance has written to its serial console.


def console(
    named: Annotated[str, typer.Argument(metavar=ID, help="An instance.", autocompletion=complete_instances)],
    bus: BusUrl = "",
    *,
    project: Project = "",
    last: Annotated[
        int,
        typer.Option("--bytes", min=1, max=CONSOLE_BYTES_MAX, help="How many of the last bytes to show."),
    ] = 4096,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Go on until the instance is deleted, and show what is written."),
    ] = False,
    patience: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How long to wait for each answer.")
    ] = 30.0,
) -> None:
    """Show what the guest of an instance has written to its serial console.

    Its host keeps the console until the instance is destroyed there. A simulated guest writes a line when it starts.
    """
    settings = command_settings(bus=bus)

    async def work() -> None:
        async with client(settings, patience_s=patience) as asking:
            found = await instances_or_requests(asking, [named], project)
            if len(found) != 1:
                fail(f"{named} names {len(found)} instances: name one of them")
            (instance,) = found
            question = AskConsole(instance=instance, project=project, start=-last, limit=last)
            told = ""
            async for part in (parts_of_console if follow else last_of_console)(asking, question):
                if part.none and not follow:
                    fail(part.none)
                if part.none and part.none != told:
                    typer.echo(part.none, err=True)
                told = part.none
                sys.stdout.write(part.text)
                sys.stdout.flush()

    run(work())
