"""`moor boot`: sends a build request over the bus, and follows its instances."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import structs

from bus.messages.build import BuildAccepted, BuildInstance, InstanceState
from moor.asking import client
from moor.client.following import has_ended, why_not_built
from moor.completing import complete_images
from moor.instances.following import Following, Timeout, followed, run_order, taken
from moor.instances.requests import (
    AttachedOptions,
    DriveOptions,
    ElseOptions,
    FlavorOptions,
    HostOptions,
    ImageOptions,
    NeighbourOptions,
    OrderId,
    check_size,
    id_of_order,
    image_name_in,
    pairs_of,
    stored_image,
    wait_of,
)
from moor.message_commands import with_options
from moor.naming import hints_for
from moor.options import NOT_DONE, NOT_IN_TIME, BusUrl, Output, Project, fail, tell, wants_document
from moor.showing import INSTANCES, plain, print_json, print_no_valid_host, print_passed_over
from moor.tables import print_table

if TYPE_CHECKING:
    from engine.refusals import NoValidHost


@with_options
def boot(
    bus: BusUrl = "",
    *,
    flavor: FlavorOptions,
    alternatives: ElseOptions,
    image_property: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A property of the image: trait:NAME=required, hw_cpu_policy=dedicated and the like; may be repeated.",
        ),
    ] = None,
    image: Annotated[
        str,
        typer.Option(
            metavar="NAME|ID|URL",
            help="The image of the instance: the name of a stored one (`moor image`), or its own id, a uuid, or its URL. "
            "The options from here to --ssh-key matter for bare-metal nodes only.",
            autocompletion=complete_images,
        ),
    ] = "",
    of_image: ImageOptions,
    drive: DriveOptions,
    attached: AttachedOptions,
    where: HostOptions,
    neighbours: NeighbourOptions,
    count: Annotated[int, typer.Option(help="How many equal instances.")] = 1,
    all_or_nothing: Annotated[
        bool,
        typer.Option("--all-or-nothing", help="Build all of them or none, and say how many would fit."),
    ] = False,
    name: Annotated[str, typer.Option(help="The instance's name; several instances are numbered.")] = "",
    project: Project = "",
    deadline: Annotated[
        int | None,
        typer.Option(
            metavar="S",
            show_default=False,
            help="Seconds until an unfinished build ends in error. Default: 600, or 7200 if the instance may get a bare-metal "
            "node.",
        ),
    ] = None,
    wait_for_room: Annotated[
        int | None,
        typer.Option(
            metavar="S",
            show_default=False,
            help="If no host has room, wait for it, at most so many seconds (2592000). Without it, the instance ends in error at "
            "once.",
        ),
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(
            show_default=False,
            help="With --wait-for-room: room that becomes free goes to the highest priority first (0 to 100; 0 if not given).",
        ),
    ] = None,
    request_id: OrderId = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the instances have ended.")
    ] = True,
    timeout: Timeout = 120.0,
    _output: Output = None,
) -> None:
    """Build an instance, or several equal ones, and follow them until they run."""
    following = Following(bus, wait, timeout)
    size = flavor.read(following.settings, project=project)
    check_size(size)
    request = BuildInstance(
        request_id=id_of_order(request_id),
        flavor=size,
        alternatives=alternatives.read(flavor, following.settings, project=project),
        count=count,
        all_or_nothing=all_or_nothing,
        name=name,
        project=project,
        image_properties=pairs_of("--image-property", image_property),
        image=of_image.read(image),
        image_name=image_name_in(image),
        config_drive=drive.read(),
        **attached.fields,
        **where.fields,
        deadline_s=deadline,
        wait=wait_of(wait_for_room, priority),
    )
    how_to_follow = (
        f"`moor show {request.request_id}` shows its state, `moor delete {request.request_id}` deletes it"
    )
    run_order(
        _boot(following, request, neighbours, how_to_follow),
        request.request_id,
        f"the request stays, and will be built: {how_to_follow}",
    )


async def _boot(
    following: Following, request: BuildInstance, neighbours: NeighbourOptions, how_to_follow: str
) -> None:
    by_s = asyncio.get_running_loop().time() + following.timeout
    async with client(following.settings, patience_s=following.timeout) as asking:
        if request.image_name:
            # A name that is not stored ends the command before anything is built.
            await stored_image(asking, request.image_name, request.project)
        request = structs.replace(request, **await neighbours.find(asking, request.project))
        ids = (await taken(asking, request, BuildAccepted, following, how_to_follow)).instances
        known = await asking.instances(ids, request.project)
        states, in_time = await followed(
            asking, ids, known, has_ended, following, by_s=by_s, project=request.project
        )
        refused = any(each.no_valid_host is not None for each in states)
        hints = await hints_for(asking, request) if refused else []
    if wants_document():
        print_json({"request_id": str(request.request_id), "instances": plain(states)})
    else:
        _print(states)
    for hint in hints:
        tell(hint, "yellow")
    if not in_time:
        unfinished = sum(not has_ended(each) for each in states)
        fail(
            f"{unfinished} of {len(states)} instances have not ended within {following.timeout:g} s, and go on: {how_to_follow}",
            NOT_IN_TIME,
        )
    if following.wait and any(why_not_built(each) for each in states):
        raise typer.Exit(NOT_DONE)


def _print(states: Sequence[InstanceState]) -> None:
    """Print the states, and each distinct `no_valid_host` once."""
    print_table(states, INSTANCES)
    printed: list[NoValidHost] = []
    for state in states:
        if state.no_valid_host is not None and state.no_valid_host not in printed:
            printed.append(state.no_valid_host)
            print_passed_over(state)
            print_no_valid_host(state.name or str(state.id), state.no_valid_host)
