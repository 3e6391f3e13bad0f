"""`moor usage`: shows how much a project holds of each resource class."""

from typing import Annotated

import typer

from bus.messages.administration import AskUsages, TypeUsage, UsagesFound
from moor.client import client
from moor.options import AsJson, BusUrl, command_settings, out, run
from moor.providers_showing import usages_table
from moor.showing import plain, print_json
from moor.tables import print_table


def usage(
    project: Annotated[str, typer.Argument(metavar="PROJECT", help="The project.")],
    bus: BusUrl = "",
    *,
    user: Annotated[str, typer.Option(help="Only what this user's consumers hold.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show how much a project holds of each class, by the type of consumer."""

    async def work() -> tuple[TypeUsage, ...]:
        async with client(command_settings(bus=bus), operates=True) as asking:
            found = await asking.ask(AskUsages(project=project, user=user))
        assert isinstance(found, UsagesFound), f"a question for usages was answered by {found!r}"
        return found.usages

    usages = run(work())
    if as_json:
        print_json([plain(each) for each in usages])
    elif usages:
        print_table(usages_table(usages))
    else:
        out.print(f"project {project!r} holds nothing", markup=False)
