"""Options of commands that describe a build request: `moor boot` sends it, `moor plan` only asks about it."""

from typing import Annotated

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
