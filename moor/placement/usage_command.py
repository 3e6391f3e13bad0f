"""`moor usage`: shows how much a project holds of each resource class."""

from typing import Annotated

import typer

from bus.messages.administration import AskUsages, UsagesFound
from moor.client import asked
from moor.options import AsJson, BusUrl, out
from moor.placement.providers_showing import print_usages
from moor.showing import print_one


def usage(
    project: Annotated[str, typer.Argument(metavar="PROJECT", help="The project.")],
    bus: BusUrl = "",
    *,
    user: Annotated[str, typer.Option(help="Only what this user's consumers hold.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show how much a project holds of each class, by the type of consumer."""
    usages = asked(bus, AskUsages(project=project, user=user), UsagesFound).usages
    if usages or as_json:
        print_one(usages, print_usages, as_json=as_json)
    else:
        out.print(f"project {project!r} holds nothing", markup=False, highlight=False)
