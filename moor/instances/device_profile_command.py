"""`moor device-profile`: device profiles that are stored under names, for flavors to name."""

from typing import Annotated

import msgspec
import typer
from rich.markup import escape

from bus.messages.device_profiles import (
    AskDeviceProfiles,
    CreateDeviceProfile,
    DeleteDeviceProfile,
    DeviceGroup,
    DeviceProfile,
    DeviceProfilesFound,
)
from moor.asking import answer_of, ask_bus
from moor.completing import complete_device_profiles
from moor.instances.named_commands import add_named_commands
from moor.options import BusUrl, Output, out, put_once
from moor.showing import grid_of, print_one
from moor.tables import Columns

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Device profiles that are stored under names: a flavor names one by `accel:device_profile`.",
)

RESOURCES, TRAIT = "resources:", "trait:"
NEEDS = ("required", "forbidden")
FORM = "resources:FPGA=1,trait:CUSTOM_X=required"
Groups = Annotated[
    list[str] | None,
    typer.Option(
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


def _print(profile: DeviceProfile) -> None:
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


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    bus: BusUrl = "",
    *,
    group: Groups = None,
    description: Annotated[
        str, typer.Option(metavar="TEXT", show_default=False, help="What the devices are for.")
    ] = "",
    _output: Output = None,
) -> None:
    """Store a device profile under a name. Repeating the command is harmless."""
    try:
        groups = tuple([read_group(text) for text in group or ()])
    except ValueError as wrong:
        raise typer.BadParameter(f"--group: {wrong}") from None
    if not groups:
        raise typer.BadParameter(
            f"--group is not given: it says which devices an instance gets, as in {FORM}"
        )
    order = CreateDeviceProfile(profile=DeviceProfile(name=name, groups=groups, description=description))
    found = ask_bus(bus, lambda asking: answer_of(asking, order, DeviceProfilesFound))
    print_one(found.profiles[0], _print)


add_named_commands(
    app,
    "device-profile",
    ask=AskDeviceProfiles,
    delete=DeleteDeviceProfile,
    answer=DeviceProfilesFound,
    items=lambda found: found.profiles,
    columns=PROFILES,
    show=_print,
    completes=complete_device_profiles,
)
