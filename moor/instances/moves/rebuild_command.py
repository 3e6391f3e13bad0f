"""`moor rebuild`: builds an instance anew from another image; it keeps its host, or its bare-metal node."""

from typing import Annotated
from uuid import UUID

import typer

from bus.messages.build import InstanceId, RebuildInstance
from moor.client.ends import has_ended, why_not_rebuilt
from moor.instances.following import End, Following, follow_order
from moor.instances.request_options import ImageOptions, OrderId, id_of_order
from moor.option_structs import with_options
from moor.options import Project, read_uuid


@with_options
def rebuild(
    id_: Annotated[
        UUID,
        typer.Argument(
            parser=read_uuid, metavar="ID", help="An instance that is active, or in error on its host."
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
    order = RebuildInstance(
        request_id=id_of_order(request_id),
        instance=InstanceId(id_),
        image=wanted,
        project=project,
        deadline_s=deadline,
    )

    follow_order(following, order, End("the rebuild", lambda state, _: has_ended(state), why_not_rebuilt))
