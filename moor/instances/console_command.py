"""`moor console`: what the guest of an instance has written to its serial console."""

import sys
from typing import Annotated

import typer

from bus.messages.cell import CONSOLE_BYTES_MAX, AskConsole
from moor.asking import client
from moor.client.instances import last_of_console, parts_of_console
from moor.completing import complete_instances
from moor.naming import instances_or_requests
from moor.options import ID, BusUrl, Project, command_settings, fail, run


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
