"""`moor flavor`, `moor image` and `moor device-profile`, which are stored under names; and `moor group`."""

from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

import click
import msgspec
from msgspec import Struct, structs

from engine.inventories import INTEGER_MAX, GroupPolicy
from engine.places import PLACE_LEVELS_MAX
from moor.client import Client, DeviceGroup, DeviceProfile, Flavor, NamedImage, PlaceRule
from moor.flags import argument, option
from moor.instances.requests import FlavorOptions
from moor.options import (
    BusUrl,
    Output,
    Project,
    flag_of,
    option_of,
    pairs_of,
    put_once,
    with_client,
    wrong_value,
)
from moor.resource_commands import commands_of, completes, print_thing
from moor.resources import FLAVOR, GROUP, IMAGE, PLACES, PROFILE
from moor.settings import GENERAL

NewName = Annotated[str, argument(metavar="NAME")]

flavor_app = commands_of(FLAVOR, "Flavors that are stored under names: `moor boot --flavor NAME`.")


@flavor_app.verb("create")
def create_flavor(name: NewName, bus: BusUrl = "", *, flavor: FlavorOptions, _output: Output = None) -> None:
    """Store a flavor under a name. --flavor takes the values of another one. Repeating the command is harmless."""
    # Errors in the options are told before anything is asked.
    flavor.changed(Flavor())

    async def work(moor: Client) -> Flavor:
        return await moor.create_flavor(structs.replace(await flavor.read(moor), name=name))

    print_thing(FLAVOR, with_client(bus, work, operates=True))


image_app = commands_of(
    IMAGE, "Images that are stored under names, with properties: `moor boot --image NAME`."
)


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

    def places(self) -> dict[str, str]:
        return {field: value for field in PLACES if (value := getattr(self, field)) is not None}


@image_app.verb("create")
def create_image(name: NewName, bus: BusUrl = "", *, given: PlaceOptions, _output: Output = None) -> None:
    """Store an image under a name. Repeating the command is harmless."""
    if not given.source:
        raise click.BadParameter("--source is not given: it says where the image is, by an id or a URL")
    image = NamedImage(name=name, **given.places(), properties=pairs_of("--property", given.property))
    print_thing(IMAGE, with_client(bus, lambda moor: moor.create_image(image), operates=True))


@image_app.verb("set")
def set_image(
    name: Annotated[str, argument(metavar="NAME", completes=completes(IMAGE))],
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
    places, properties = given.places(), {**pairs, **dict.fromkeys(unset or ())}
    if not (places or properties):
        options = ", ".join(map(flag_of, (*PLACES, "property", "unset")))
        raise click.BadParameter(f"nothing is named that changes: give one of {options}")
    changed = with_client(
        bus, lambda moor: moor.set_image(name, **places, properties=properties), operates=True
    )
    print_thing(IMAGE, changed)


profile_app = commands_of(
    PROFILE, "Device profiles that are stored under names: a flavor names one by `accel:device_profile`."
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


def _groups_in(texts: Sequence[str]) -> tuple[DeviceGroup, ...]:
    if not texts:
        raise click.BadParameter(
            f"--group is not given: it says which devices an instance gets, as in {FORM}"
        )
    with wrong_value("--group: "):
        return tuple([read_group(text) for text in texts])


@profile_app.verb("create")
def create_profile(
    name: NewName,
    bus: BusUrl = "",
    *,
    group: Groups = None,
    description: Annotated[
        str, option(metavar="TEXT", show_default=False, help="What the devices are for.")
    ] = "",
    _output: Output = None,
) -> None:
    """Store a device profile under a name. Repeating the command is harmless."""
    profile = DeviceProfile(name=name, groups=_groups_in(group or ()), description=description)
    print_thing(PROFILE, with_client(bus, lambda moor: moor.create_device_profile(profile), operates=True))


group_app = commands_of(
    GROUP, "Server groups, whose instances are kept apart or together: create, list, show, delete."
)


def _level(flag: str, text: str, names: Sequence[str]) -> int:
    """The level that is named, or that has this number."""
    if text in names:
        return names.index(text) + 1
    if text.isdecimal() and 1 <= int(text) <= PLACE_LEVELS_MAX:
        return int(text)
    raise click.BadParameter(
        f"{flag} names the level {text!r}: it must be {', '.join(names)}, or a number from 1 to {PLACE_LEVELS_MAX}"
    )


@group_app.verb("create")
def create_group(
    name: NewName,
    bus: BusUrl = "",
    *,
    project: Project = "",
    id_: Annotated[
        UUID | None,
        option(
            "--id",
            show_default=False,
            help="A uuid of your choice; the same id with the same content is the same group.",
        ),
    ] = None,
    policy: Annotated[
        GroupPolicy | None,
        option(
            help="affinity: all members on one host, which the first one chooses; anti-affinity: at most --max-per-host members on a "
            "host; the soft ones only prefer hosts. With a rule for domains: soft-anti-affinity if not given.",
            show_default=False,
        ),
    ] = None,
    max_per_host: Annotated[
        int, option(min=1, help="With anti-affinity: how many members one host may have.")
    ] = 1,
    max_per: Annotated[
        list[str] | None,
        option(
            metavar="LEVEL=N",
            help="At most N members in a domain of this level, such as rack=2; may be repeated.",
        ),
    ] = None,
    spread: Annotated[
        list[str] | None,
        option(
            metavar="LEVEL",
            help="Prefer the domains of this level with the fewest members; may be repeated.",
        ),
    ] = None,
    together: Annotated[
        list[str] | None,
        option(metavar="LEVEL", help="All members in one domain of this level; may be repeated."),
    ] = None,
    place_levels: Annotated[
        str, option_of(GENERAL, "place_levels", metavar="NAME,NAME")
    ] = "dc,hall,row,rack",
    _output: Output = None,
) -> None:
    """Create a group. `moor boot --group NAME` builds members of it.

    A LEVEL is a name of --place-levels, or the level's number: 1 is that of the largest domains.
    """
    names = [each.strip() for each in place_levels.split(",")]
    rules: list[PlaceRule] = []
    for text in max_per or ():
        level, _, most = text.partition("=")
        if not most.isdecimal() or not 1 <= int(most) <= INTEGER_MAX:
            raise click.BadParameter(f"--max-per is {text!r}: it must be LEVEL=N, such as rack=2")
        rules.append(
            PlaceRule(level=_level("--max-per", level, names), policy="anti-affinity", max_members=int(most))
        )
    softly: GroupPolicy = "soft-anti-affinity"
    rules += [PlaceRule(level=_level("--spread", each, names), policy=softly) for each in spread or ()]
    rules += [
        PlaceRule(level=_level("--together", each, names), policy="affinity") for each in together or ()
    ]
    if policy is None and not rules:
        raise click.BadParameter("--policy is not given: without a rule for domains a group needs one")
    created = with_client(
        bus,
        lambda moor: moor.create_group(
            policy or softly, name=name, max_per_host=max_per_host, rules=rules, group=id_
        ),
        project=project,
    )
    print_thing(GROUP, created)
