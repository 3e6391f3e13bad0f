"""Options that commands about instances share: what an instance needs, where, its image and config drive, what is attached to it,
and the id of the order. Each makes fields of a request.
"""

import base64
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args
from uuid import UUID

import click
from msgspec import Struct, structs

from bus.messages.build import FlavorChange
from bus.messages.moves import MoveWait
from bus.messages.stored_names import (
    AskFlavors,
    AskImages,
    FlavorsFound,
    ImagesFound,
    NamedImage,
    is_image_source,
)
from engine.flavors import (
    CONFIG_DRIVE_MAX,
    ConfigDriveParts,
    Flavor,
    Image,
    JoinedGroup,
    NumaAffinity,
    PortRequest,
    VolumeRequest,
    Wait,
    text_of,
)
from moor.asking import PAGE, Asks, CommandClient, answer_of, client, items_of
from moor.completing import (
    complete_aggregates,
    complete_flavors,
    complete_groups,
    complete_hosts,
    complete_instances,
)
from moor.flags import option
from moor.naming import aggregate_ids, group_id, instance_ids, near_texts
from moor.options import ID, fail, flag_of, put_once, run_with
from moor.settings import Settings

GZIP = b"\x1f\x8b"
KEY_NAME = "moor"


def pairs_of(flag: str, texts: Sequence[str] | None, default: str | None = None) -> dict[str, str]:
    """Parse KEY=VALUE of a repeatable flag. A text without `=` gets the default value, if there is one."""
    pairs: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not key or (not equals and default is None):
            raise click.BadParameter(f"{flag} is {text!r}, must be KEY=VALUE")
        put_once(pairs, key, value if equals else default or "", flag)
    return pairs


def wait_of(for_s: int | None, priority: int | None) -> Wait | None:
    if for_s is not None:
        return Wait(for_s=for_s, priority=priority or 0)
    if priority is not None:
        raise click.BadParameter(
            f"--priority is {priority}, and nothing waits: it orders requests with --wait-for-room"
        )
    return None


def move_wait_of(for_s: int | None, priority: int | None) -> MoveWait | None:
    wait = wait_of(for_s, priority)
    return None if wait is None else MoveWait(for_s=wait.for_s, priority=priority)


def drive_of(
    config_drive: str,
    user_data: Path | None,
    meta: Sequence[str] | None,
    ssh_key: Path | None,
) -> str:
    """The config drive of a request: as given, or of these parts. A request has one, and it is bounded."""
    if not (user_data or meta or ssh_key):
        return _bounded(config_drive_of(config_drive), "--config-drive")
    if config_drive:
        raise click.BadParameter(
            "--config-drive is a whole config drive, and --user-data, --meta and --ssh-key make one: give one or the other"
        )
    meta_data: dict[str, object] = {}
    if ssh_key:
        meta_data["public_keys"] = {KEY_NAME: _text_in("--ssh-key", ssh_key).strip()}
    if meta:
        meta_data["meta"] = pairs_of("--meta", meta)
    parts = ConfigDriveParts(
        meta_data=meta_data, user_data=_text_in("--user-data", user_data) if user_data else ""
    )
    return _bounded(text_of(parts), "--user-data, --meta and --ssh-key together")


def _bounded(drive: str, of: str) -> str:
    if len(drive) > CONFIG_DRIVE_MAX:
        raise click.BadParameter(
            f"the config drive of {of} has {len(drive)} characters, and a message carries at most {CONFIG_DRIVE_MAX}: let the user "
            "data fetch what is large, or give --config-drive a URL"
        )
    return drive


def _text_in(flag: str, file: Path) -> str:
    try:
        text = file.read_bytes().decode()
    except OSError as problem:
        raise click.BadParameter(f"{flag} is '{file}': {problem}") from None
    except UnicodeDecodeError as problem:
        raise click.BadParameter(f"{flag} is '{file}', which is no text: {problem}") from None
    if "\0" in text:
        raise click.BadParameter(f"{flag} is '{file}', which is no text: it contains the character NUL")
    return text


def config_drive_of(given: str) -> str:
    """The config drive as Ironic accepts it: a URL, or the base64 of a gzipped image, read from the given file."""
    if not given or "://" in given:
        return given
    try:
        content = Path(given).read_bytes()
    except OSError as problem:
        raise click.BadParameter(
            f"--config-drive is {given!r}, which is neither a URL nor a file: {problem}"
        ) from None
    if content.startswith(GZIP):
        return base64.b64encode(content).decode()
    try:
        base64.b64decode(text := content.decode("ascii").strip(), validate=True)
    except ValueError:
        raise click.BadParameter(
            f"--config-drive is {given!r}: the file is neither a gzipped image nor the base64 of one"
        ) from None
    return text


def image_name_in(image: str) -> str:
    """The text as the name of a stored image; empty for an image's own id or URL, which is looked up nowhere."""
    return "" if is_image_source(image) else image


async def stored_image(asking: Asks, name: str, project: str) -> NamedImage:
    """The stored image of this name. If there is none, the command ends, and names those near it."""
    found = (await answer_of(asking, AskImages(name=name, project=project), ImagesFound)).images
    if not found:
        every = AskImages(project=project, limit=PAGE)
        known = await items_of(asking, every, ImagesFound, lambda page: page.images)
        near = near_texts(name, [each.name for each in known])
        fail(
            f"--image is {name!r}, and no image of this name is stored{near}; `moor image list` shows all, and an image that is not "
            "stored is named by its id, a uuid, or its URL"
        )
    return found[0]


_CLASS = re.compile(r"[A-Z0-9_]+")
# By the word on the command line: the field of a port request.
PORT_WORDS = {"network": "physical_network", "type": "vnic_type", "numa": "numa_affinity_policy"}
NUMA_WORDS = tuple(each for each in get_args(NumaAffinity) if each)


class AttachedOptions(Struct, frozen=True):
    port: Annotated[
        list[str] | None,
        option(
            metavar="'ID [WORD...]'",
            help="A network port; may be repeated. With an id alone it is attached to a bare-metal node. With words, its host must "
            "give it: CLASS=N (amount); TRAIT (required); no:TRAIT (forbidden); network=NAME; type=NAME (its kind, such as "
            "normal or direct); numa=POLICY (how near its device is to the guest's NUMA cells: legacy, required, preferred).",
        ),
    ] = None
    volume: Annotated[
        list[str] | None,
        option(
            metavar="'ID CLASS=N [WORD...]'",
            help="A volume that its host, or a pool of the host, must give: an id, amounts, and traits as of a port; may be repeated.",
        ),
    ] = None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that these options set in a build request."""
        ports, volumes = _words("--port", self.port or ()), _words("--volume", self.volume or ())
        return {
            "ports": tuple(id_ for id_, *words in ports if not words),
            "port_requests": tuple(
                PortRequest(id=id_, **_needs("--port", words, PORT_WORDS)) for id_, *words in ports if words
            ),
            "volume_requests": tuple(
                VolumeRequest(id=id_, **_needs("--volume", words, {})) for id_, *words in volumes
            ),
        }


def _words(flag: str, texts: Sequence[str]) -> list[list[str]]:
    given: dict[str, str] = {}
    for text in texts:
        if not text.strip():
            raise click.BadParameter(f"{flag} is {text!r}, and names no id")
        put_once(given, text.split()[0], text, flag)
    return [text.split() for text in given.values()]


def _needs(flag: str, words: Sequence[str], named: dict[str, str]) -> dict[str, Any]:
    """The fields that these words set in the request for a port or a volume."""
    needs: dict[str, Any] = {"resources": {}, "required": (), "forbidden": ()}
    pairs: dict[str, str] = {}
    for word in words:
        key, is_pair, value = word.partition("=")
        if key == "numa" and key in named and value not in NUMA_WORDS:
            raise click.BadParameter(
                f"{flag} has the word {word!r}: must be numa={', numa='.join(NUMA_WORDS)}"
            )
        if is_pair and key in named:
            put_once(pairs, key, value, flag)
            needs[named[key]] = value
        elif is_pair and _CLASS.fullmatch(key) and value.isdecimal() and int(value):
            put_once(needs["resources"], key, int(value), flag)
        elif is_pair:
            known = "".join(f", or {each}=NAME" for each in named)
            raise click.BadParameter(
                f"{flag} has the word {word!r}: must be CLASS=N, with a whole number above 0{known}"
            )
        elif word.startswith("no:"):
            needs["forbidden"] += (word.removeprefix("no:"),)
        else:
            needs["required"] += (word,)
    return needs


# Options that several commands about instances share: what an instance needs, where, its image, and the id of the order.


def flavor_named(name: str, settings: Settings, flag: str = "--flavor", *, project: str = "") -> Flavor:
    """The flavor that is stored under this name."""
    question = AskFlavors(name=name, project=project)
    found = run_with(client(settings), lambda asking: answer_of(asking, question, FlavorsFound))
    if not found.flavors:
        raise click.BadParameter(f"{flag} is {name!r}: no flavor of this name is stored (`moor flavor list`)")
    return found.flavors[0]


class FlavorOptions(Struct, frozen=True):
    flavor: Annotated[
        str,
        option(
            metavar="NAME",
            help="A stored flavor (`moor flavor`); other options override its values.",
            completes=complete_flavors,
        ),
    ] = ""
    vcpus: Annotated[int | None, option(show_default=False, help="Processors of each instance.")] = None
    ram: Annotated[int | None, option(metavar="MB", show_default=False, help="Its memory.")] = None
    disk: Annotated[int | None, option(metavar="GB", show_default=False, help="Its disk.")] = None
    ephemeral: Annotated[
        int | None, option(metavar="GB", show_default=False, help="A further disk of it.")
    ] = None
    swap: Annotated[int | None, option(metavar="MB", show_default=False, help="Its swap.")] = None
    resources: Annotated[
        list[str] | None,
        option(
            metavar="CLASS=N",
            help="An amount of any resource class, or preferred, or preferred:WEIGHT; may be repeated.",
        ),
    ] = None
    trait: Annotated[
        list[str] | None,
        option(
            metavar="TRAIT[=required|forbidden|preferred[:WEIGHT]]",
            help="A trait that the host must have, or must not have, or had better have; may be repeated.",
        ),
    ] = None
    extra_spec: Annotated[
        list[str] | None,
        option(
            metavar="KEY=VALUE",
            help="Any extra spec of the flavor, such as resources1:VGPU=1 or group_policy=isolate; may be repeated.",
        ),
    ] = None

    def read(self, settings: Settings, known: Flavor | None = None, *, project: str = "") -> Flavor:
        """The flavor that --flavor names, or else `known`; the other options replace single values of it."""
        base = known or Flavor()
        if self.flavor:
            base = flavor_named(self.flavor, settings, project=project)
        return structs.replace(base, **self._sizes, extra_specs={**base.extra_specs, **self._extra_specs})

    def change(self, unset: Sequence[str]) -> FlavorChange:
        """What the options change of a flavor that is not named here. The extra specs in `unset` are removed."""
        for key in unset:
            if key in self._extra_specs:
                raise click.BadParameter(f"--unset is {key!r}, and another option sets that extra spec")
        return FlavorChange(**self._sizes, extra_specs={**self._extra_specs, **dict.fromkeys(unset)})

    @property
    def _sizes(self) -> dict[str, Any]:
        sizes = {
            "vcpus": self.vcpus,
            "ram_mb": self.ram,
            "root_gb": self.disk,
            "ephemeral_gb": self.ephemeral,
            "swap_mb": self.swap,
        }
        return {field: size for field, size in sizes.items() if size is not None}

    @property
    def _extra_specs(self) -> dict[str, str]:
        amounts, traits = pairs_of("--resources", self.resources), pairs_of("--trait", self.trait, "")
        specs = {f"resources:{key}": value for key, value in amounts.items()}
        specs |= {f"trait:{key}": value or "required" for key, value in traits.items()}
        for key, value in pairs_of("--extra-spec", self.extra_spec).items():
            put_once(specs, key, value, "the command line")
        return specs


def check_size(flavor: Flavor) -> None:
    """Refuse a flavor that asks for nothing, before it is sent."""
    sizes = (flavor.vcpus, flavor.ram_mb, flavor.root_gb, flavor.ephemeral_gb, flavor.swap_mb)
    if not any(sizes) and not any(key.startswith("resources") for key in flavor.extra_specs):
        named = (
            f"--flavor is {flavor.name!r}, which asks for no resources" if flavor.name else "no size is named"
        )
        raise click.BadParameter(
            f"{named}: give --flavor NAME, or --vcpus, --ram, --disk or --resources CLASS=N"
        )


class ElseOptions(Struct, frozen=True):
    else_: Annotated[
        list[str] | None,
        option(
            "--else",
            metavar="NAME",
            help="Another flavor, as --flavor names one, that will do if no host has room for the ones before it; may be repeated.",
            completes=complete_flavors,
        ),
    ] = None

    def read(
        self, flavor: FlavorOptions, settings: Settings, known: tuple[Flavor, ...] = (), *, project: str = ""
    ) -> tuple[Flavor, ...]:
        """The flavors that these options name. `known` are those of a request whose flavor no option replaces."""
        if self.else_:
            return tuple([flavor_named(each, settings, "--else", project=project) for each in self.else_])
        return () if flavor.flavor else known


class HostOptions(Struct, frozen=True):
    az: Annotated[str, option("--az", help="Only in this availability zone.")] = ""
    host: Annotated[
        list[str] | None,
        option(help="Only on these hosts; may be repeated.", completes=complete_hosts),
    ] = None
    ignore_host: Annotated[
        list[str] | None,
        option(help="Not on these hosts; may be repeated.", completes=complete_hosts),
    ] = None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that these options set in a build request."""
        return {
            "availability_zone": self.az,
            "hosts": tuple(self.host or ()),
            "ignore_hosts": tuple(self.ignore_host or ()),
        }


class NeighbourOptions(Struct, frozen=True):
    group: Annotated[
        str,
        option(
            metavar=ID,
            show_default=False,
            help="The server group to join (`moor group`).",
            completes=complete_groups,
        ),
    ] = ""
    different_host: Annotated[
        list[str] | None,
        option(
            metavar=ID,
            help="Not on the host of this instance; may be repeated.",
            completes=complete_instances,
        ),
    ] = None
    same_host: Annotated[
        list[str] | None,
        option(
            metavar=ID,
            help="Only on the host of this instance, or of another such; may be repeated.",
            completes=complete_instances,
        ),
    ] = None
    aggregate: Annotated[
        list[str] | None,
        option(
            metavar=ID,
            help="Only on hosts in this aggregate; repeated, in each of them.",
            completes=complete_aggregates,
        ),
    ] = None
    ignore_aggregate: Annotated[
        list[str] | None,
        option(
            metavar=ID,
            help="Not on hosts in this aggregate; may be repeated.",
            completes=complete_aggregates,
        ),
    ] = None

    async def find(self, asking: CommandClient, project: str) -> dict[str, Any]:
        """The fields that these options set in a build request, with the ids of what they name."""
        apart, together = self.different_host or (), self.same_host or ()
        inside, outside = self.aggregate or (), self.ignore_aggregate or ()
        return {
            "group": JoinedGroup(id=await group_id(asking, self.group, project)) if self.group else None,
            "different_host": tuple(await instance_ids(asking, apart, project)),
            "same_host": tuple(await instance_ids(asking, together, project)),
            "member_of": tuple((each,) for each in await aggregate_ids(asking, inside)),
            "forbidden_aggregates": tuple(await aggregate_ids(asking, outside)),
        }


class ImageOptions(Struct, frozen=True):
    image_checksum: Annotated[
        str, option(metavar="SUM", help="The checksum of an image that is named by its URL.")
    ] = ""
    image_kernel: Annotated[str, option(metavar="ID|URL", help="The kernel of a partition image.")] = ""
    image_ramdisk: Annotated[str, option(metavar="ID|URL", help="The ramdisk of a partition image.")] = ""

    def read(self, image: str) -> Image | None:
        """The image that is named by its own id or URL; None if none is, or if a stored one is named."""
        name = image_name_in(image)
        if image and not name:
            return Image(
                source=image,
                checksum=self.image_checksum,
                kernel=self.image_kernel,
                ramdisk=self.image_ramdisk,
            )
        reason = "--image is not given: it describes an image"
        if name:
            reason = f"--image is {name!r}, the name of a stored image, which has its own"
        for field, value in structs.asdict(self).items():
            if value:
                raise click.BadParameter(f"{flag_of(field)} is {value!r}, but {reason}")
        return None


class DriveOptions(Struct, frozen=True):
    config_drive: Annotated[
        str,
        option(metavar="URL|FILE", help="A whole config drive: a URL, or a file with a gzipped ISO image."),
    ] = ""
    user_data: Annotated[
        Path | None,
        option(
            metavar="FILE",
            show_default=False,
            help="Make a config drive with this user data: a text, such as a script or a cloud-config.",
        ),
    ] = None
    meta: Annotated[
        list[str] | None,
        option(metavar="KEY=VALUE", help="Make a config drive with this metadata; may be repeated."),
    ] = None
    ssh_key: Annotated[
        Path | None,
        option(metavar="FILE", show_default=False, help="Make a config drive with this public SSH key."),
    ] = None

    def read(self) -> str:
        return drive_of(self.config_drive, self.user_data, self.meta, self.ssh_key)


OrderId = Annotated[
    UUID | None,
    option(
        "--request-id",
        show_default=False,
        help="An id of your choice: repeated with the same content, it is the same request.",
    ),
]
