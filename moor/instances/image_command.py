"""`moor image`: images with their properties, stored under names for all."""

from typing import Annotated

import typer
from msgspec import Struct, structs
from rich.markup import escape

from bus.messages.images import AskImages, CreateImage, DeleteImage, ImagesFound, NamedImage, SetImage
from moor.asking import answer_of, ask_bus
from moor.completing import complete_images
from moor.instances.named_commands import add_named_commands, missing_text
from moor.instances.requests import pairs_of
from moor.option_structs import with_options
from moor.options import BusUrl, Output, fail, flag_of, out
from moor.showing import grid_of, print_one
from moor.tables import Columns

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Images that are stored under names, with properties: `moor boot --image NAME`.",
)

PLACES = ("source", "checksum", "kernel", "ramdisk")


class PlaceOptions(Struct, frozen=True):
    source: Annotated[
        str | None,
        typer.Option(
            metavar="ID|URL", show_default=False, help="The image's id in the image service, or its URL."
        ),
    ] = None
    checksum: Annotated[
        str | None,
        typer.Option(metavar="SUM", show_default=False, help="Its checksum. Ironic requires one for a URL."),
    ] = None
    kernel: Annotated[
        str | None,
        typer.Option(metavar="ID|URL", show_default=False, help="The kernel of a partition image."),
    ] = None
    ramdisk: Annotated[
        str | None,
        typer.Option(metavar="ID|URL", show_default=False, help="The ramdisk of a partition image."),
    ] = None
    property: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A property: hw_architecture=x86_64, os_type=linux, trait:NAME=required and the like; may be repeated.",
        ),
    ] = None


def _places(given: PlaceOptions) -> dict[str, str]:
    return {field: value for field in PLACES if (value := getattr(given, field)) is not None}


Name = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_images)]


def _properties(image: NamedImage) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(image.properties.items()))


def _print(image: NamedImage) -> None:
    out.print(
        grid_of(
            ("image", escape(image.name)),
            *((field, escape(value)) for field in PLACES if (value := getattr(image, field))),
            *((escape(key), escape(value)) for key, value in sorted(image.properties.items())),
        )
    )


IMAGES = Columns[NamedImage](
    {
        "name": lambda each: each.name,
        "source": lambda each: each.source,
        "properties": _properties,
    },
    prose=("source", "properties"),
)


@app.command("create")
@with_options
def create(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    bus: BusUrl = "",
    *,
    given: PlaceOptions,
    _output: Output = None,
) -> None:
    """Store an image under a name. Repeating the command is harmless."""
    if not given.source:
        raise typer.BadParameter("--source is not given: it says where the image is, by an id or a URL")
    image = NamedImage(name=name, **_places(given), properties=pairs_of("--property", given.property))
    found = ask_bus(bus, lambda asking: answer_of(asking, CreateImage(image=image), ImagesFound))
    print_one(found.images[0], _print)


@app.command("set")
@with_options
def set_image(
    name: Name,
    bus: BusUrl = "",
    *,
    given: PlaceOptions,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Remove this property; may be repeated.")
    ] = None,
    _output: Output = None,
) -> None:
    """Change a stored image for later boots. What is not named stays; so do the instances that were built from it."""
    pairs = pairs_of("--property", given.property)
    for key in unset or ():
        if key in pairs:
            raise typer.BadParameter(f"--unset is {key!r}, and --property sets it")
    order = SetImage(name=name, **_places(given), properties={**pairs, **dict.fromkeys(unset or ())})
    if order == SetImage(name=name):
        options = ", ".join(map(flag_of, (*PLACES, "property", "unset")))
        raise typer.BadParameter(f"nothing is named that changes: give one of {options}")
    found = ask_bus(bus, lambda asking: answer_of(asking, order, ImagesFound))
    if not found.images:
        fail(missing_text("image").format_map(structs.asdict(order)))
    print_one(found.images[0], _print)


add_named_commands(
    app,
    "image",
    ask=AskImages,
    delete=DeleteImage,
    answer=ImagesFound,
    items=lambda found: found.images,
    columns=IMAGES,
    show=_print,
    completes=complete_images,
)
