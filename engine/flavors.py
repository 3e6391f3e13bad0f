"""What a request for instances says: flavors, image, ports, volumes, groups, and how long to wait."""

import re
from collections.abc import Iterable
from hashlib import sha1
from typing import Annotated, Any, Literal, NewType
from uuid import UUID

import msgspec
from msgspec import Meta, Struct, convert, structs

from engine.inventories import (
    AggregateId,
    ConsumerId,
    GroupId,
    GroupPolicy,
    Integer,
    Label,
    Positive,
    Project,
    ResourceClass,
    Trait,
    Value,
)
from engine.places import Place
from engine.refusals import NoValidHost

RequestId = NewType("RequestId", UUID)

# In placement an instance is a consumer, from its first claim to its end.
InstanceId = ConsumerId


def keys_of(ids: Iterable[UUID]) -> set[int]:
    """How these ids begin: derived ids of instances begin as that of their request."""
    return {each.int >> 80 for each in ids}


_LAST_80_BITS = (1 << 80) - 1
# The bits among these that say which kind of UUID it is, and their values in a uuid5.
_KIND = 0b1111 << 76 | 0b11 << 62
_UUID5 = 5 << 76 | 0b10 << 62


def instance_id_of(request: RequestId, index: int) -> InstanceId:
    """The id of a request's instance with this index. A client can compute it, and each delivery of the request gives
    the same id.

    Its first 48 bits are those of the request's id. If they are a time, as in a uuid7, then rows that are written
    together lie together in every index of the database.
    """
    # The end of uuid5(request, str(index)), whose other half would be made in vain: that takes twice as long.
    digest = sha1(request.bytes + str(index).encode(), usedforsecurity=False).digest()
    own = int.from_bytes(digest[6:16]) & ~_KIND | _UUID5
    # Half as dear as UUID(int=...).
    return InstanceId(convert((request.int & ~_LAST_80_BITS | own).to_bytes(16), UUID))


class Flavor(Value, frozen=True):
    """The size of an instance and its demands on the host.

    The decoder accepts any amounts. The scheduler checks them, so that it can answer with the wrong field and its
    value.
    """

    name: Label = ""
    vcpus: Integer = 0
    ram_mb: Integer = 0
    root_gb: Integer = 0
    ephemeral_gb: Integer = 0
    swap_mb: Integer = 0
    extra_specs: dict[str, str] = {}


# Of an instance: by a request, or else by this extra spec of its flavor.
PRIORITY = "moor:priority"
INSTANCE_PRIORITY_MAX = 1_000
_PRIORITY = re.compile(r"-?[0-9]{1,4}", re.ASCII)


def is_priority(priority: int) -> bool:
    return -INSTANCE_PRIORITY_MAX <= priority <= INSTANCE_PRIORITY_MAX


def priority_in(flavor: Flavor | None) -> int | None:
    """The priority that a flavor gives its instances, 0 if it names none; None if what it names is no priority."""
    named = "0" if flavor is None else flavor.extra_specs.get(PRIORITY, "0")
    return int(named) if _PRIORITY.fullmatch(named) and is_priority(int(named)) else None


# Where to fetch a file: an id in a service, or a URL.
Reference = Annotated[str, Meta(max_length=2048)]


class Image(Value, frozen=True):
    """The image of an instance. `source` is an id in the image service, or a URL. On bare metal, Ironic needs a `checksum`
    for a URL. A partition image also needs a `kernel` and a `ramdisk`.
    """

    source: Reference
    checksum: Label = ""
    kernel: Reference = ""
    ramdisk: Reference = ""


# A URL; or, as Ironic allows, the base64 of a gzipped ISO image: a few KiB, unless the user data is large; or the JSON of the
# drive's parts (`ConfigDriveParts`).
CONFIG_DRIVE_MAX = 64 * 1024

ConfigDrive = Annotated[str, Meta(max_length=CONFIG_DRIVE_MAX)]

# Ids of network ports to attach to the instance.
Ports = Annotated[tuple[Label, ...], Meta(max_length=32)]

# Ids of instances whose hosts matter.
Neighbours = Annotated[tuple[InstanceId, ...], Meta(max_length=100)]


class JoinedGroup(Value, frozen=True):
    """The server group that the instances of a request join. It must exist already (`group.create`).

    If `policy` or `max_per_host` are given, they must be equal to those of the group.
    """

    id: GroupId
    policy: GroupPolicy | None = None
    max_per_host: Positive | None = None


NumaAffinity = Literal["", "legacy", "required", "preferred", "socket"]


class PortRequest(Value, frozen=True):
    """The resources that one network port needs of a host. A single provider must have all of them.

    `physical_network` and `vnic_type` name traits of that provider: `CUSTOM_PHYSNET_...` and `CUSTOM_VNIC_TYPE_...`,
    in capitals. A port of a device (a virtual function) has a `numa_affinity_policy`: how near the device is to the
    guest's NUMA cells. Empty: as near as the flavor and the image say.
    """

    id: Label
    resources: Annotated[dict[ResourceClass, Positive], Meta(max_length=20)]
    physical_network: Label = ""
    vnic_type: Label = ""
    numa_affinity_policy: NumaAffinity = ""
    required: Annotated[tuple[Trait, ...], Meta(max_length=20)] = ()
    forbidden: Annotated[tuple[Trait, ...], Meta(max_length=20)] = ()


class VolumeRequest(Value, frozen=True):
    """The resources that one volume needs of a host, or of a pool that shares with the host.

    One provider must have all of them.
    """

    id: Label
    resources: Annotated[dict[ResourceClass, Positive], Meta(max_length=20)]
    required: Annotated[tuple[Trait, ...], Meta(max_length=20)] = ()
    forbidden: Annotated[tuple[Trait, ...], Meta(max_length=20)] = ()


# Of each list the host must be in one aggregate.
AnyOfAggregates = Annotated[
    tuple[Annotated[tuple[AggregateId, ...], Meta(min_length=1, max_length=100)], ...], Meta(max_length=20)
]


class Wait(Value, frozen=True):
    """How an instance waits while no host has room for it: at most `for_s` seconds from its acceptance. Room that
    becomes free goes to the highest `priority` first, then to the oldest request. Without one, the priority of the instance
    counts if it is positive, at most 100.
    """

    for_s: Integer
    priority: Integer = 0


class InstanceRequest(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A request for `count` equal instances. The message `build.request` is one, and says what each field means to its sender."""

    request_id: RequestId | None = None
    flavor: Flavor | None = None
    count: Integer = 1
    instance_ids: tuple[InstanceId, ...] = ()
    name: Label = ""
    project: Project = ""
    user: Label = ""
    image_properties: dict[str, str] = {}
    availability_zone: Label = ""
    group: JoinedGroup | None = None
    # Empty: any suitable host.
    hosts: tuple[Label, ...] = ()
    ignore_hosts: tuple[Label, ...] = ()
    # Instances of the same project: none of their hosts, and one of their hosts, as they are when the request is read.
    different_host: Neighbours = ()
    same_host: Neighbours = ()
    # The limit from acceptance to the end, active or error; with `wait`, from the choice of a host. None: the scheduler's
    # default for this kind of host.
    deadline_s: Integer | None = None
    image: Image | None = None
    config_drive: ConfigDrive = ""
    ports: Ports = ()
    # Only hosts in one aggregate of each list, and in none that is forbidden.
    member_of: AnyOfAggregates = ()
    forbidden_aggregates: Annotated[tuple[AggregateId, ...], Meta(max_length=100)] = ()
    port_requests: Annotated[tuple[PortRequest, ...], Meta(max_length=16)] = ()
    volume_requests: Annotated[tuple[VolumeRequest, ...], Meta(max_length=16)] = ()
    # All instances get a host at once, or all of them end in error.
    all_or_nothing: bool = False
    # None: an instance that no host has room for ends in error at once.
    wait: Wait | None = None
    # From -1000 to 1000: those with a higher one are moved first when hosts are emptied. 0: that of the flavor.
    priority: Integer = 0
    alternatives: tuple[Flavor, ...] = ()
    # Names of stored flavors, the best first, in place of `flavor` and `alternatives`.
    flavor_names: Annotated[tuple[Label, ...], Meta(max_length=100)] = ()
    # The name of a stored image, in place of `image`.
    image_name: Label = ""
    # Only hosts in this domain.
    place: Place = ""


class RequestProblem(Struct, frozen=True):
    """Why a request is refused: the field that is wrong, its value, and what is allowed."""

    field: str
    value: object
    reason: str


class FlavorPassedOver(Value, frozen=True):
    """A flavor that its request prefers to the one that the instance got, and why the instance did not get it."""

    flavor: Label
    reason: str
    no_valid_host: NoValidHost | None = None


class DeviceGroup(Value, frozen=True):
    """Devices that one provider gives: amounts by class, and the traits that the provider has, or has not."""

    resources: Annotated[dict[ResourceClass, Positive], Meta(max_length=20)]
    required: Annotated[tuple[Trait, ...], Meta(max_length=20)] = ()
    forbidden: Annotated[tuple[Trait, ...], Meta(max_length=20)] = ()


class DeviceProfile(Value, frozen=True):
    """What an instance gets beside its flavor's sizes, if the flavor names the profile by `accel:device_profile`. Each group is
    a granular group of the request.
    """

    name: Label = ""
    groups: Annotated[tuple[DeviceGroup, ...], Meta(max_length=16)] = ()
    description: Label = ""


# A config drive as its parts, from which Ironic or a compute makes the drive. It travels as JSON in the field `config_drive`.


HOST_NAME_MAX = 63


class ConfigDriveParts(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The files of a config drive. `meta_data` and `network_data` are objects as OpenStack's metadata service gives them;
    `user_data` is the text that cloud-init, for example, runs.
    """

    meta_data: dict[str, Any] = {}
    user_data: str = ""
    network_data: dict[str, Any] = {}


def parts_of(config_drive: str) -> ConfigDriveParts | None:
    """The parts of this config drive; None if it is a URL or an image. Raises ValueError if it begins like JSON and has not the
    form of parts.
    """
    if not config_drive.startswith("{"):
        return None
    try:
        return msgspec.json.decode(config_drive, type=ConfigDriveParts)
    except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
        raise ValueError(
            f"it begins with '{{', but is no JSON object of meta_data, user_data and network_data: {problem}"
        ) from None


def with_names(parts: ConfigDriveParts, instance: InstanceId, name: str) -> ConfigDriveParts:
    """The parts with the id and names of the instance, unless they are given: a request for several instances cannot name each."""
    name = name or str(instance)
    usual = {"uuid": str(instance), "name": name, "hostname": _host_name(name)}
    return structs.replace(parts, meta_data=usual | parts.meta_data)


def _host_name(name: str) -> str:
    """The name with only those characters that a host's name may have."""
    return re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:HOST_NAME_MAX].rstrip("-") or "instance"


def text_of(parts: ConfigDriveParts) -> str:
    return msgspec.json.encode(parts).decode()
