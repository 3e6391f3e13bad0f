"""`moor explain`: how the hosts of a request were chosen, or why there was none."""

from typing import Annotated

import typer

from bus.messages.planning import AskExplanation, ExplanationsFound
from engine.flavors import InstanceId, RequestId
from moor.asking import CommandClient, ask_bus, pages_of
from moor.completing import complete_instances
from moor.instances.plan_showing import print_explanation, print_plan
from moor.naming import fail_unknown, id_in, instance_or_request_id
from moor.options import ID, BusUrl, Output, Project, out, wants_document
from moor.showing import print_json

PAGE = 100


def explain(
    named: Annotated[
        str, typer.Argument(metavar=ID, help="A request, or an instance.", autocompletion=complete_instances)
    ],
    bus: BusUrl = "",
    *,
    now: Annotated[bool, typer.Option("--now", help="Also plan the same needs as of now.")] = False,
    boot: Annotated[
        bool, typer.Option("--boot", help="Show the choice for the boot, not that of the last move.")
    ] = False,
    project: Project = "",
    _output: Output = None,
) -> None:
    """Show how the host of each instance was chosen, what was refused, or why no host qualified.

    After a move it is the choice for that move; --boot shows the first one.
    """
    pages = ask_bus(bus, lambda asking: _pages(asking, named, project, plan_now=now), operates=False)
    explanations = [each for page in pages for each in page.explanations]
    if not explanations:
        fail_unknown("instance and no request", (named,), "`moor list` shows all instances")
    plan = pages[0].plan
    if wants_document():
        print_json({"explanations": explanations, **({"plan": plan} if now else {})})
        return
    for each in explanations:
        print_explanation(each, of_boot=boot)
    if plan is not None:
        out.print("\nnow:")
        print_plan(plan)
    elif now:
        out.print("\nnow: not known, since the request came before schedulers kept its needs")


async def _pages(
    asking: CommandClient, named: str, project: str, *, plan_now: bool
) -> list[ExplanationsFound]:
    """Ask about the instance that is named; if there is none, about the request. Return the pages of the answer."""
    id_ = id_in(named) or await instance_or_request_id(asking, named, project)
    about = AskExplanation(instance=InstanceId(id_), project=project, plan_now=plan_now, limit=PAGE)
    pages = [page async for page in pages_of(asking, about, ExplanationsFound)]
    if pages[0].explanations:
        return pages
    about = AskExplanation(request_id=RequestId(id_), project=project, plan_now=plan_now, limit=PAGE)
    return [page async for page in pages_of(asking, about, ExplanationsFound)]
