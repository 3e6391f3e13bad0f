"""`moor rebuild`: builds an instance anew from another image; it keeps its host, or its bare-metal node."""

from collections.abc import Sequence
from typing import Annotated

import typer

from bus.messages.build import InstanceId, InstanceState, RebuildInstance
from moor.asking import Client
from moor.completing import complete_instances
from moor.instances.following import End, Following, follow_order, has_ended
from moor.instances.request_options import ImageOptions, OrderId, id_of_order
from moor.option_structs import with_options
from moor.options import ID, Project


@with_options
def rebuild(
    named: Annotated[
        str,
        typer.Argument(
            metavar=ID,
            help="An instance that is active, or in error on its host.",
            autocompletion=complete_instances,
        ),
    ],
    *,
    image: Annotated[str, typer.Option(metavar="ID|URL", help="The image to build it from.")],
    of_image: ImageOptions,
    project: Project = "",
    deadline: Annotated[
        int | None,
        typer.Option(
            metavar="S",
            show_default=False,
            help="Seconds until an unfinished rebuild fails. Default: 7200.",
        ),
    ] = None,
    request_id: OrderId = None,
    following: Following,
) -> None:
    """Build the instance anew on its host, from another image; what is on its disk is lost."""
    wanted = of_image.read(image)
    if wanted is None:
        raise typer.BadParameter("--image is empty: name the image to build it from")
    request = id_of_order(request_id)

    async def order(_: Client, instances: Sequence[InstanceId]) -> RebuildInstance:
        (instance,) = instances
        return RebuildInstance(
            request_id=request, instance=instance, image=wanted, project=project, deadline_s=deadline
        )

    end = End[RebuildInstance]("the rebuild", lambda state, _: has_ended(state), _why_not_done)
    follow_order(following, [named], order, end, request=request, project=project)


def _why_not_done(state: InstanceState, order: RebuildInstance) -> str:
    """Why the instance was not rebuilt; empty if it is active with the image of this rebuild."""
    last = state.rebuild
    if last is None or last.request_id != order.request_id:
        why = "another rebuild came after this one"
    elif last.failure or state.state != "active":
        why = last.failure or state.reason or f"the instance is {state.state}"
    else:
        return ""
    return f"the instance was not rebuilt from {order.image.source}: {why}"
