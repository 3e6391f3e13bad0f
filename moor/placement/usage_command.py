"""`moor usage`: shows how much a project holds of each resource class."""

from typing import Annotated

import typer

from bus.messages.administration import AskUsages, UsagesFound
from moor.client import answer_of, ask_bus
from moor.options import AsJson, BusUrl
from moor.placement.providers_showing import usages_table
from moor.showing import print_all


def usage(
    project: Annotated[str, typer.Argument(metavar="PROJECT", help="The project.")],
    bus: BusUrl = "",
    *,
    user: Annotated[str, typer.Option(help="Only what this user's consumers hold.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show how much a project holds of each class, by the type of consumer."""
    question = AskUsages(project=project, user=user)
    usages = ask_bus(bus, lambda asking: answer_of(asking, question, UsagesFound)).usages
    print_all(usages, usages_table, f"project {project!r} holds nothing", as_json=as_json)
