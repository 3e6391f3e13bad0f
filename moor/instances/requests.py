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

from engine.flavors import CONFIG_DRIVE_MAX, ConfigDriveParts, NumaAffinity, text_of
from moor.client import (
    BuildFields,
    Client,
    Flavor,
    FlavorChange,
    Image,
    MoveWait,
    PortRequest,
    VolumeRequest,
    is_image_source,
)
from moor.flags import option
from moor.options import ID, flag_of, pairs_of, put_once, wrong_value
from moor.resource_commands import complete_instances, completes
from moor.resources import AGGREGATE, FLAVOR, GROUP, HOST

GZIP = b"\x1f\x8b"
KEY_NAME = "moor"


def move_wait_of(for_s: int | None, priority: int | None) -> MoveWait | None:
    if for_s is not None:
        return MoveWait(for_s=for_s, priority=priority)
    if priority is not None:
        raise click.BadParameter(
            f"--priority is {priority}, and nothing waits: it orders requests with --wait-for-room"
        )
    return None


def _bounded(drive: str, of: str) -> str:
    if len(drive) > CONFIG_DRIVE_MAX:
        raise click.BadParameter(
            f"the config drive of {of} has {len(drive)} characters, and a message carries at most {CONFIG_DRIVE_MAX}: let the user "
            "data fetch what is large, or give --config-drive a URL"
        )
    return drive


def text_in(flag: str, file: Path) -> str:
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
    with wrong_value(f"--config-drive is {given!r}, which is neither a URL nor a file: ", OSError):
        content = Path(given).read_bytes()
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


class FlavorOptions(Struct, frozen=True):
    flavor: Annotated[
        str,
        option(
            metavar="NAME",
            help="A stored flavor (`moor flavor`); other options override its values.",
            completes=completes(FLAVOR),
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

    def check(self) -> None:
        """Refuse options that name no size at all, before anything is sent."""
        if not self.flavor:
            check_size(self.changed(Flavor()))

    async def read(self, moor: Client, known: Flavor | None = None) -> Flavor:
        """The flavor that --flavor names, or else `known`; the other options replace single values of it."""
        return self.changed(await moor.show_flavor(self.flavor) if self.flavor else known or Flavor())

    def changed(self, base: Flavor) -> Flavor:
        """This flavor, with the values that the options name."""
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
            completes=completes(FLAVOR),
        ),
    ] = None

    async def read(
        self, moor: Client, flavor: FlavorOptions, known: tuple[Flavor, ...] = ()
    ) -> tuple[Flavor, ...]:
        """The flavors that these options name. `known` are those of a request whose flavor no option replaces."""
        if self.else_:
            return tuple([await moor.show_flavor(each) for each in self.else_])
        return () if flavor.flavor else known


class HostOptions(Struct, frozen=True):
    az: Annotated[str, option("--az", help="Only in this availability zone.")] = ""
    place: Annotated[
        str, option(metavar="DOMAIN", help="Only on hosts in this domain, such as dc1/hall2.")
    ] = ""
    host: Annotated[
        list[str] | None,
        option(help="Only on these hosts; may be repeated.", completes=completes(HOST)),
    ] = None
    ignore_host: Annotated[
        list[str] | None,
        option(help="Not on these hosts; may be repeated.", completes=completes(HOST)),
    ] = None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that these options set in a build request."""
        return {
            "availability_zone": self.az,
            "place": self.place,
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
            completes=completes(GROUP),
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
            completes=completes(AGGREGATE),
        ),
    ] = None
    ignore_aggregate: Annotated[
        list[str] | None,
        option(
            metavar=ID,
            help="Not on hosts in this aggregate; may be repeated.",
            completes=completes(AGGREGATE),
        ),
    ] = None

    @property
    def fields(self) -> BuildFields:
        """The fields that these options set in a build request; the client finds what they name."""
        found: BuildFields = {
            "different_host": self.different_host or (),
            "same_host": self.same_host or (),
            "member_of": self.aggregate or (),
            "forbidden_aggregates": self.ignore_aggregate or (),
        }
        if self.group:
            found["group"] = self.group
        return found


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
        """The config drive of a request: as given, or of these parts. A request has one, and it is bounded."""
        if not (self.user_data or self.meta or self.ssh_key):
            return _bounded(config_drive_of(self.config_drive), "--config-drive")
        if self.config_drive:
            raise click.BadParameter(
                "--config-drive is a whole config drive, and --user-data, --meta and --ssh-key make one: give one or the other"
            )
        meta_data: dict[str, object] = {}
        if self.ssh_key:
            meta_data["public_keys"] = {KEY_NAME: text_in("--ssh-key", self.ssh_key).strip()}
        if self.meta:
            meta_data["meta"] = pairs_of("--meta", self.meta)
        user_data = text_in("--user-data", self.user_data) if self.user_data else ""
        parts = ConfigDriveParts(meta_data=meta_data, user_data=user_data)
        return _bounded(text_of(parts), "--user-data, --meta and --ssh-key together")


OrderId = Annotated[
    UUID | None,
    option(
        "--request-id",
        show_default=False,
        help="An id of your choice: repeated with the same content, it is the same request.",
    ),
]
