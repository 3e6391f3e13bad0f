"""`moor plan`: what would fit where, and why not; nothing is built."""

from pathlib import Path
from typing import Annotated

import typer
from msgspec import structs

from bus.codec import CODEC
from bus.message import Envelope
from bus.messages.build import BuildInstance
from bus.messages.planning import AskDrain, AskPlan, AskReasons, DrainFound, PlanFound, ReasonsFound
from bus.unreadable import Unreadable
from moor.asking import CommandClient, answer_of, ask_bus, asked, asked_for_all
from moor.completing import complete_images
from moor.instances.plan_showing import VERDICTS, print_drain, print_plan
from moor.instances.request_options import ElseOptions, FlavorOptions, HostOptions, check_size
from moor.nearest_names import hints_for
from moor.option_structs import with_options
from moor.options import BusUrl, Output, Project, check_alone, command_settings, flag_of, tell, wrong_value
from moor.showing import print_all, print_one

VERDICTS_PAGE = 200


@with_options
def plan(
    bus: BusUrl = "",
    *,
    flavor: FlavorOptions,
    alternatives: ElseOptions,
    where: HostOptions,
    image: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="A stored image (`moor image`): its properties count.",
            autocompletion=complete_images,
        ),
    ] = "",
    request: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="The whole request: a build.request as JSON. Other options override its fields.",
        ),
    ] = None,
    project: Project = "",
    hosts: Annotated[
        bool, typer.Option("--hosts", help="Show the verdict on each host: the first step that removes it.")
    ] = False,
    step: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="With --hosts: only hosts that this step removes. `qualify`: only hosts that no step removes.",
        ),
    ] = "",
    drain: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            help="Instead: would the instances of this host fit on other hosts, all together?",
        ),
    ] = "",
    _output: Output = None,
) -> None:
    """Show how many instances would fit, on which hosts, and why not on the others. Nothing is built."""
    if drain:
        needs = {
            **structs.asdict(flavor),
            "else": alternatives.else_,
            "image": image,
            **structs.asdict(where),
        }
        others = {
            **{flag_of(field): given for field, given in needs.items()},
            "--request": request and str(request),
            "--hosts": hosts,
            "--step": step,
        }
        check_alone("--drain", "that asks about the instances that the host has", others)
        drained = asked(bus, AskDrain(host=drain), DrainFound, operates=False)
        print_one(drained, print_drain)
        return
    if step and not hosts:
        raise typer.BadParameter(f"--step is {step!r}, but --hosts is not given: it selects hosts")
    known = _request_in(request) if request else BuildInstance()
    changed = {**where.fields, "image_name": image, "project": project}
    settings = command_settings(bus=bus)
    size = flavor.read(settings, known.flavor, project=project)
    if request is None:
        check_size(size)
    build = structs.replace(
        known,
        flavor=size,
        alternatives=alternatives.read(flavor, settings, known.alternatives, project=project),
        **{field: given for field, given in changed.items() if given},
    )
    if hosts:
        reasons = AskReasons(request=build, step=step, limit=VERDICTS_PAGE)
        verdicts = asked_for_all(bus, reasons, ReasonsFound, lambda page: page.hosts, operates=False)
        print_all(verdicts, VERDICTS, "no hosts")
        return

    async def work(asking: CommandClient) -> tuple[PlanFound, list[str]]:
        planned = await answer_of(asking, AskPlan(request=build, project=project), PlanFound)
        return planned, [] if planned.fit else await hints_for(asking, build)

    planned, hints = ask_bus(bus, work, operates=False)
    print_one(planned, print_plan)
    for hint in hints:
        tell(hint, "yellow")


def _request_in(file: Path) -> BuildInstance:
    with wrong_value(f"--request is {str(file)!r}: "):
        try:
            content = file.read_bytes()
        except OSError as problem:
            raise ValueError(problem) from None
        # As a scheduler reads it: an unknown key is an error.
        read = CODEC.decode(b'{"message": %b}' % content)
        if isinstance(read, Envelope) and isinstance(read.message, BuildInstance):
            return read.message
        raise ValueError(read.reason if isinstance(read, Unreadable) else "the file has no build.request")
