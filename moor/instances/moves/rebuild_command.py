"""`moor rebuild`: builds an instance anew from another image; it keeps its host, or its bare-metal node."""

from collections.abc import Sequence
from typing import Annotated

import typer

from bus.messages.build import InstanceId, RebuildInstance
from moor.asking import CommandClient
from moor.client.ends import has_ended, why_not_rebuilt
from moor.completing import complete_images, complete_instances
from moor.instances.following import End, Following, follow_order
from moor.instances.request_options import ImageOptions, OrderId, id_of_order
from moor.instances.requests import image_name_in, stored_image
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
    image: Annotated[
        str,
        typer.Option(
            metavar="NAME|ID|URL",
            help="The image to build it from: the name of a stored one, or its own id, a uuid, or its URL.",
            autocompletion=complete_images,
        ),
    ],
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
    given = of_image.read(image)
    if not image:
        raise typer.BadParameter("--image is empty: name the image to build it from")
    request = id_of_order(request_id)

    async def order(asking: CommandClient, instances: Sequence[InstanceId]) -> RebuildInstance:
        (instance,) = instances
        if not given:
            await stored_image(asking, image_name_in(image), project)
        return RebuildInstance(
            request_id=request,
            instance=instance,
            image=given,
            image_name="" if given else image,
            project=project,
            deadline_s=deadline,
        )

    end = End[RebuildInstance]("the rebuild", lambda state, _: has_ended(state), why_not_rebuilt)
    follow_order(following, [named], order, end, request=request, project=project)
