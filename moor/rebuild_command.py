"""`moor rebuild`: writes another image onto the bare-metal node of an instance; the instance keeps its node."""

import asyncio
from typing import Annotated
from uuid import UUID

import typer

from bus.asking import NoAnswer
from bus.messages.build import (
    BuildRejected,
    InstanceId,
    InstancesFound,
    InstanceState,
    RebuildInstance,
    RequestId,
)
from moor.client import InstanceFollower, client
from moor.instances_command import ENDED, Timeout, followed_until, image_of, print_request_id
from moor.options import (
    INTERRUPTED,
    NOT_DONE,
    NOT_IN_TIME,
    AsJson,
    BusUrl,
    Project,
    command_settings,
    fail,
    run,
)
from moor.request_ids import new_request_ids
from moor.settings import Settings
from moor.showing import instances_table, plain, print_json
from moor.tables import print_table


def rebuild(
    id_: Annotated[
        UUID, typer.Argument(metavar="ID", help="An instance that is active on a bare-metal node.")
    ],
    bus: BusUrl = "",
    *,
    image: Annotated[str, typer.Option(metavar="ID|URL", help="The image to write onto its node.")],
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
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the rebuild has ended.")] = False,
    timeout: Timeout = 120.0,
    as_json: AsJson = False,
) -> None:
    """Write another image onto the instance's node; what is on the node is overwritten."""
    wanted = image_of(image, image_checksum, image_kernel, image_ramdisk)
    if wanted is None:
        raise typer.BadParameter("--image is empty: name the image to write onto the node")
    order = RebuildInstance(
        request_id=RequestId(request_id) if request_id else new_request_ids(1)[0],
        instance=InstanceId(id_),
        image=wanted,
        project=project,
        deadline_s=deadline,
    )
    settings = command_settings(bus=bus)
    print_request_id(order.request_id)
    try:
        run(_rebuild(settings, order, timeout_s=timeout, wait=wait, for_programs=as_json))
    except KeyboardInterrupt:
        fail(f"the order stays, and will be done: {_how_to_follow(order)}", INTERRUPTED)


async def _rebuild(
    settings: Settings,
    order: RebuildInstance,
    *,
    timeout_s: float,
    wait: bool,
    for_programs: bool,
) -> None:
    by_s = asyncio.get_running_loop().time() + timeout_s
    async with client(settings, patience_s=timeout_s) as asking:
        try:
            answer = await asking.ask(order)
        except NoAnswer:
            if for_programs:
                print_json({"request_id": str(order.request_id)})
            fail(
                f"no scheduler has taken the order within {timeout_s:g} s. It stays on the bus, and is done when a scheduler "
                f"takes it: {_how_to_follow(order)}",
                NOT_IN_TIME,
            )
        if isinstance(answer, BuildRejected):
            if for_programs:
                print_json({"request_id": str(order.request_id), "rejected": plain(answer)})
            fail(f"rejected: {answer.field} is {answer.value!r}: {answer.reason}")
        assert isinstance(answer, InstancesFound), f"a rebuild was answered by {answer!r}"
        following = InstanceFollower(asking, (order.instance,), by_s, order.project)
        following.take(answer.instances)
        in_time = not wait or await followed_until(
            following, lambda each: each.state in ENDED, quiet=for_programs
        )
    state = following.states[order.instance]
    if for_programs:
        print_json(plain(state))
    else:
        print_table(instances_table((state,)))
    if not in_time:
        fail(
            f"the rebuild has not ended within {timeout_s:g} s, and goes on: {_how_to_follow(order)}",
            NOT_IN_TIME,
        )
    if wait and (why := _why_not_done(state, order)):
        fail(f"{order.image.source} is not on the node: {why}", NOT_DONE)


def _how_to_follow(order: RebuildInstance) -> str:
    return f"`moor show {order.instance}` shows its state"


def _why_not_done(state: InstanceState, order: RebuildInstance) -> str:
    """Empty if the instance is active with the image of this rebuild."""
    last = state.rebuild
    if last is None or last.request_id != order.request_id:
        return "another rebuild came after this one"
    if last.failure or state.state != "active":
        return last.failure or state.reason or f"the instance is {state.state}"
    return ""
