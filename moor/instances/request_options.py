"""Options that several commands about instances share: what an instance needs, its image, and the id of the order."""

from typing import Annotated
from uuid import UUID

import typer

FlavorName = Annotated[
    str, typer.Option(metavar="NAME", help="A flavor of the file; other options override its values.")
]
Vcpus = Annotated[int | None, typer.Option(show_default=False, help="Processors of each instance.")]
Ram = Annotated[int | None, typer.Option(metavar="MB", show_default=False, help="Its memory.")]
Disk = Annotated[int | None, typer.Option(metavar="GB", show_default=False, help="Its disk.")]
Resources = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CLASS=N",
        help="An amount of any resource class, or preferred, or preferred:WEIGHT; may be repeated.",
    ),
]
Traits = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TRAIT[=required|forbidden|preferred[:WEIGHT]]",
        help="A trait that the host must have, or must not have, or had better have; may be repeated.",
    ),
]
ExtraSpecs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Any extra spec of the flavor, such as resources1:VGPU=1 or group_policy=isolate; may be repeated.",
    ),
]
Zone = Annotated[str, typer.Option("--az", help="Only in this availability zone.")]
HostOptions = Annotated[list[str] | None, typer.Option(help="Only on these hosts; may be repeated.")]
IgnoredHosts = Annotated[list[str] | None, typer.Option(help="Not on these hosts; may be repeated.")]
ImageChecksum = Annotated[
    str, typer.Option(metavar="SUM", help="The checksum of an image that is named by its URL.")
]
ImageKernel = Annotated[str, typer.Option(metavar="ID|URL", help="The kernel of a partition image.")]
ImageRamdisk = Annotated[str, typer.Option(metavar="ID|URL", help="The ramdisk of a partition image.")]
OrderId = Annotated[
    UUID | None,
    typer.Option(
        "--request-id",
        show_default=False,
        help="An id of your choice: repeated with the same content, it is the same request.",
    ),
]
