"""`moor rebuild`: builds an instance anew from another image; it keeps its host, or its bare-metal node."""

import asyncio
from typing import Annotated
from uuid import UUID

import typer

from bus.messages.build import (
    InstanceId,
    InstancesFound,
    InstanceState,
    RebuildInstance,
    RequestId,
)
from moor.client import client
from moor.instances.following import Timeout, followed, has_ended, run_order, taken
from moor.instances.request_ids import new_request_ids
from moor.instances.requests import image_of
from moor.options import (
    NOT_DONE,
    NOT_IN_TIME,
    AsJson,
    BusUrl,
    Project,
    command_settings,
    fail,
)
from moor.settings import Settings
from moor.showing import instances_table, print_one
from moor.tables import print_table


def rebuild(
    id_: Annotated[
        UUID, typer.Argument(metavar="ID", help="An instance that is active, or in error on its host.")
    ],
    bus: BusUrl = "",
    *,
    image: Annotated[str, typer.Option(metavar="ID|URL", help="The image to build it from.")],
    image_checksum: Annotated[
        str, typer.Option(metavar="SUM", help="The checksum of an image that is named by its URL.")
    ] = "",
    image_kernel: Annotated[
        str, typer.Option(metavar="ID|URL", help="The kernel of a partition image.")
    ] = "",
    image_ramdisk: Annotated[
        str, typer.Option(metavar="ID|URL", help="The ramdisk of a partition image.")
    ] = "",
    project: Project = "",
    deadline: Annotated[
        int | None,
        typer.Option(
            metavar="S",
            show_default=False,
            help="Seconds until an unfinished rebuild fails. Default: 7200.",
        ),
    ] = None,
    request_id: Annotated[
        UUID | None,
        typer.Option(
            show_default=False,
            help="An id of your choice: repeated with the same image, it is the same rebuild.",
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the rebuild has ended.")] = True,
    timeout: Timeout = 120.0,
    as_json: AsJson = False,
) -> None:
    """Build the instance anew on its host, from another image; what is on its disk is lost."""
    wanted = image_of(image, image_checksum, image_kernel, image_ramdisk)
    if wanted is None:
        raise typer.BadParameter("--image is empty: name the image to build it from")
    order = RebuildInstance(
        request_id=RequestId(request_id) if request_id else new_request_ids(1)[0],
        instance=InstanceId(id_),
        image=wanted,
        project=project,
        deadline_s=deadline,
    )
    how_to_follow = f"`moor show {order.instance}` shows its state"
    run_order(
        _rebuild(
            command_settings(bus=bus),
            order,
            how_to_follow,
            timeout_s=timeout,
            wait=wait,
            for_programs=as_json,
        ),
        order.request_id,
        f"the order stays, and will be done: {how_to_follow}",
    )


async def _rebuild(
    settings: Settings,
    order: RebuildInstance,
    how_to_follow: str,
    *,
    timeout_s: float,
    wait: bool,
    for_programs: bool,
) -> None:
    by_s = asyncio.get_running_loop().time() + timeout_s
    async with client(settings, patience_s=timeout_s) as asking:
        shown = {"request_id": str(order.request_id)} if for_programs else None
        answer = await taken(
            asking, order, InstancesFound, timeout_s=timeout_s, how_to_follow=how_to_follow, shown=shown
        )
        (state,), in_time = await followed(
            asking,
            (order.instance,),
            answer.instances,
            has_ended if wait else None,
            by_s=by_s,
            project=order.project,
            quiet=for_programs,
        )
    print_one(state, lambda shown: print_table(instances_table((shown,))), as_json=for_programs)
    if not in_time:
        fail(f"the rebuild has not ended within {timeout_s:g} s, and goes on: {how_to_follow}", NOT_IN_TIME)
    if wait and (why := _why_not_done(state, order)):
        fail(f"the instance was not rebuilt from {order.image.source}: {why}", NOT_DONE)


def _why_not_done(state: InstanceState, order: RebuildInstance) -> str:
    """Empty if the instance is active with the image of this rebuild."""
    last = state.rebuild
    if last is None or last.request_id != order.request_id:
        return "another rebuild came after this one"
    if last.failure or state.state != "active":
        return last.failure or state.reason or f"the instance is {state.state}"
    return ""
