"""`moor flavor`, `moor image` and `moor device-profile`, which are stored under names; and `moor group`."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import click
import msgspec
from msgspec import Struct, structs
from rich.markup import escape

from bus.message import Message
from bus.messages.stored_names import (
    AskDeviceProfiles,
    AskFlavors,
    AskGroups,
    AskImages,
    CreateDeviceProfile,
    CreateFlavor,
    CreateGroup,
    CreateImage,
    DeleteDeviceProfile,
    DeleteFlavor,
    DeleteGroup,
    DeleteImage,
    DeviceProfilesFound,
    FlavorsFound,
    GroupsFound,
    GroupState,
    ImagesFound,
    NamedImage,
    SetImage,
)
from engine.flavors import DeviceGroup, DeviceProfile, Flavor
from moor.asking import asked
from moor.completing import (
    complete_device_profiles,
    complete_flavors,
    complete_groups,
    complete_images,
)
from moor.flags import Commands, Completer, argument, option
from moor.instances.requests import FlavorOptions, pairs_of
from moor.message_commands import command_that_sends
from moor.naming import group_id
from moor.options import ID, BusUrl, Output, command_settings, fail, flag_of, out, put_once
from moor.showing import grid_of, print_one
from moor.tables import Columns


def add_named_commands(
    app: Commands,
    word: str,
    *,
    ask: type[Message],
    delete: type[Message],
    answer: type[Any],
    items: Callable[[Any], Sequence[Any]],
    columns: Columns[Any],
    show: Callable[[Any], None],
    completes: Completer,
) -> None:
    """The commands for things of which one is a `word`. They are asked for and deleted by these messages."""
    missing = missing_text(word)
    app.verb("list")(
        command_that_sends(
            ask,
            fixed=("name",),
            words=f"List all stored {word}s.",
            answer=answer,
            items=items,
            show=columns,
            nothing=f"no {word}s are stored",
        )
    )
    app.verb("show")(
        command_that_sends(
            ask,
            arguments={"name": "NAME"},
            words=f"Show one stored {word}.",
            answer=answer,
            items=items,
            is_about_one=True,
            missing=missing,
            show=show,
            completes=completes,
        )
    )
    app.verb("delete")(
        command_that_sends(
            delete,
            arguments={"name": "NAME"},
            answer=answer,
            items=items,
            is_about_one=True,
            missing=missing,
            show=lambda gone: out.print(f"{word} {escape(gone.name)} is deleted"),
            completes=completes,
            operates=True,
        )
    )


def missing_text(word: str) -> str:
    return f"there is no {word} {{name!r}}, so nothing was done; `moor {word} list` shows all {word}s"


flavor_app = Commands("Flavors that are stored under names: `moor boot --flavor NAME`.")


def _print_flavor(flavor: Flavor) -> None:
    sizes = [name for name in Flavor.__struct_fields__ if name not in ("name", "extra_specs")]
    out.print(
        grid_of(
            ("flavor", escape(flavor.name)),
            *((name, str(amount)) for name in sizes if (amount := getattr(flavor, name))),
            *((escape(key), escape(value)) for key, value in sorted(flavor.extra_specs.items())),
        )
    )


FLAVORS = Columns[Flavor](
    {
        "name": lambda each: each.name,
        "vcpus": lambda each: str(each.vcpus),
        "ram": lambda each: str(each.ram_mb),
        "disk": lambda each: str(each.root_gb),
        "extra specs": lambda each: ", ".join(
            f"{key}={value}" for key, value in sorted(each.extra_specs.items())
        ),
    },
    prose=("extra specs",),
)


@flavor_app.verb("create")
def create_flavor(
    name: Annotated[str, argument(metavar="NAME")],
    bus: BusUrl = "",
    *,
    flavor: FlavorOptions,
    _output: Output = None,
) -> None:
    """Store a flavor under a name. --flavor takes the values of another one. Repeating the command is harmless."""
    written = structs.replace(flavor.read(command_settings(bus=bus)), name=name)
    print_one(asked(bus, CreateFlavor(flavor=written), FlavorsFound).flavors[0], _print_flavor)


add_named_commands(
    flavor_app,
    "flavor",
    ask=AskFlavors,
    delete=DeleteFlavor,
    answer=FlavorsFound,
    items=lambda found: found.flavors,
    columns=FLAVORS,
    show=_print_flavor,
    completes=complete_flavors,
)


image_app = Commands("Images that are stored under names, with properties: `moor boot --image NAME`.")

PLACES = ("source", "checksum", "kernel", "ramdisk")


class PlaceOptions(Struct, frozen=True):
    source: Annotated[
        str | None,
        option(metavar="ID|URL", show_default=False, help="The image's id in the image service, or its URL."),
    ] = None
    checksum: Annotated[
        str | None,
        option(metavar="SUM", show_default=False, help="Its checksum. Ironic requires one for a URL."),
    ] = None
    kernel: Annotated[
        str | None,
        option(metavar="ID|URL", show_default=False, help="The kernel of a partition image."),
    ] = None
    ramdisk: Annotated[
        str | None,
        option(metavar="ID|URL", show_default=False, help="The ramdisk of a partition image."),
    ] = None
    property: Annotated[
        list[str] | None,
        option(
            metavar="KEY=VALUE",
            help="A property: hw_architecture=x86_64, os_type=linux, trait:NAME=required and the like; may be repeated.",
        ),
    ] = None


def _places(given: PlaceOptions) -> dict[str, str]:
    return {field: value for field in PLACES if (value := getattr(given, field)) is not None}


Name = Annotated[str, argument(metavar="NAME", completes=complete_images)]


def _print_image(image: NamedImage) -> None:
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
        "properties": lambda each: ", ".join(
            f"{key}={value}" for key, value in sorted(each.properties.items())
        ),
    },
    prose=("source", "properties"),
)


@image_app.verb("create")
def create_image(
    name: Annotated[str, argument(metavar="NAME")],
    bus: BusUrl = "",
    *,
    given: PlaceOptions,
    _output: Output = None,
) -> None:
    """Store an image under a name. Repeating the command is harmless."""
    if not given.source:
        raise click.BadParameter("--source is not given: it says where the image is, by an id or a URL")
    image = NamedImage(name=name, **_places(given), properties=pairs_of("--property", given.property))
    print_one(asked(bus, CreateImage(image=image), ImagesFound).images[0], _print_image)


@image_app.verb("set")
def set_image(
    name: Name,
    bus: BusUrl = "",
    *,
    given: PlaceOptions,
    unset: Annotated[
        list[str] | None, option(metavar="KEY", help="Remove this property; may be repeated.")
    ] = None,
    _output: Output = None,
) -> None:
    """Change a stored image for later boots. What is not named stays; so do the instances that were built from it."""
    pairs = pairs_of("--property", given.property)
    for key in unset or ():
        if key in pairs:
            raise click.BadParameter(f"--unset is {key!r}, and --property sets it")
    order = SetImage(name=name, **_places(given), properties={**pairs, **dict.fromkeys(unset or ())})
    if order == SetImage(name=name):
        options = ", ".join(map(flag_of, (*PLACES, "property", "unset")))
        raise click.BadParameter(f"nothing is named that changes: give one of {options}")
    found = asked(bus, order, ImagesFound)
    if not found.images:
        fail(missing_text("image").format_map(structs.asdict(order)))
    print_one(found.images[0], _print_image)


add_named_commands(
    image_app,
    "image",
    ask=AskImages,
    delete=DeleteImage,
    answer=ImagesFound,
    items=lambda found: found.images,
    columns=IMAGES,
    show=_print_image,
    completes=complete_images,
)


profile_app = Commands(
    "Device profiles that are stored under names: a flavor names one by `accel:device_profile`."
)

RESOURCES, TRAIT = "resources:", "trait:"
NEEDS = ("required", "forbidden")
FORM = "resources:FPGA=1,trait:CUSTOM_X=required"
Groups = Annotated[
    list[str] | None,
    option(
        "--group",
        metavar="KEY=VALUE,...",
        help=f"Devices that one provider gives, such as {FORM}: an amount of each class, and traits that are required or forbidden. "
        "May be repeated: each group is served by itself.",
    ),
]


def read_group(text: str) -> DeviceGroup:
    """A group as the option writes it. A ValueError names the part that is wrong."""
    resources: dict[str, int] = {}
    traits: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        key, equals, value = part.partition("=")
        if equals and key.startswith(RESOURCES) and value.isdecimal() and value.isascii():
            put_once(resources, key.removeprefix(RESOURCES), int(value), f"--group {text!r}")
        elif equals and key.startswith(TRAIT) and value in NEEDS:
            put_once(traits, key.removeprefix(TRAIT), value, f"--group {text!r}")
        else:
            raise ValueError(
                f"{part!r} is neither {RESOURCES}CLASS=AMOUNT nor {TRAIT}TRAIT=required or =forbidden"
            )
    try:
        of = {need: [trait for trait, value in traits.items() if value == need] for need in NEEDS}
        return msgspec.convert({"resources": resources, **of}, DeviceGroup)
    except msgspec.ValidationError as wrong:
        raise ValueError(f"{text!r}: {wrong}") from None


def _in_words(group: DeviceGroup) -> str:
    return ", ".join(
        (
            *(f"{RESOURCES}{name}={amount}" for name, amount in sorted(group.resources.items())),
            *(f"{TRAIT}{trait}=required" for trait in group.required),
            *(f"{TRAIT}{trait}=forbidden" for trait in group.forbidden),
        )
    )


def _print_profile(profile: DeviceProfile) -> None:
    described = (("description", escape(profile.description)),) if profile.description else ()
    groups = ((f"group {number}", escape(_in_words(group))) for number, group in enumerate(profile.groups))
    out.print(grid_of(("device profile", escape(profile.name)), *described, *groups))


PROFILES = Columns[DeviceProfile](
    {
        "name": lambda each: each.name,
        "groups": lambda each: "; ".join(map(_in_words, each.groups)),
        "description": lambda each: each.description,
    },
    prose=("groups", "description"),
)


@profile_app.verb("create")
def create_profile(
    name: Annotated[str, argument(metavar="NAME")],
    bus: BusUrl = "",
    *,
    group: Groups = None,
    description: Annotated[
        str, option(metavar="TEXT", show_default=False, help="What the devices are for.")
    ] = "",
    _output: Output = None,
) -> None:
    """Store a device profile under a name. Repeating the command is harmless."""
    try:
        groups = tuple([read_group(text) for text in group or ()])
    except ValueError as wrong:
        raise click.BadParameter(f"--group: {wrong}") from None
    if not groups:
        raise click.BadParameter(
            f"--group is not given: it says which devices an instance gets, as in {FORM}"
        )
    order = CreateDeviceProfile(profile=DeviceProfile(name=name, groups=groups, description=description))
    print_one(asked(bus, order, DeviceProfilesFound).profiles[0], _print_profile)


add_named_commands(
    profile_app,
    "device-profile",
    ask=AskDeviceProfiles,
    delete=DeleteDeviceProfile,
    answer=DeviceProfilesFound,
    items=lambda found: found.profiles,
    columns=PROFILES,
    show=_print_profile,
    completes=complete_device_profiles,
)

# `moor group`: server groups, whose members are kept apart or together.

group_app = Commands("Server groups, whose instances are kept apart or together: create, list, show, delete.")


def _print_group(group: GroupState) -> None:
    grid = grid_of(
        ("group", str(group.id)),
        ("name", escape(group.name)),
        ("project", escape(group.project)),
        ("policy", _policy(group)),
        ("members", str(group.size)),
    )
    for member in group.members:
        grid.add_row("", f"{member.consumer} on {escape(member.host)}")
    out.print(grid)


def _policy(group: GroupState) -> str:
    if group.policy != "anti-affinity" or group.max_per_host == 1:
        return group.policy
    return f"{group.policy}, at most {group.max_per_host} on a host"


GROUPS = Columns[GroupState](
    {
        "id": lambda each: str(each.id),
        "name": lambda each: each.name,
        "project": lambda each: each.project,
        "policy": _policy,
        "members": lambda each: str(each.size),
    },
    ids={"id": lambda _: True},
)

_about_groups = partial(
    command_that_sends,
    answer=GroupsFound,
    items=lambda found: found.groups,
    missing="there is no server group {id}, so nothing was done; `moor group list` shows all groups",
)
group_app.verb("create")(
    _about_groups(
        CreateGroup,
        arguments={"name": "NAME"},
        words="Create a group. `moor boot --group NAME` builds members of it.",
        is_about_one=True,
        show=_print_group,
    )
)
group_app.verb("list")(
    _about_groups(
        AskGroups,
        fixed=("id", "id_prefix"),
        words="List all groups, with the number of their members.",
        show=GROUPS,
        nothing="no server groups",
    )
)
group_app.verb("show")(
    _about_groups(
        AskGroups,
        arguments={"id": ID},
        named=group_id,
        completes=complete_groups,
        fixed=("name", "id_prefix"),
        words="Show one group with its members and their hosts.",
        is_about_one=True,
        show=_print_group,
    )
)
group_app.verb("delete")(
    _about_groups(
        DeleteGroup,
        arguments={"id": ID},
        named=group_id,
        completes=complete_groups,
        is_about_one=True,
        show=lambda group: out.print(f"deleted group {group.id}"),
    )
)
