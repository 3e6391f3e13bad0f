"""The arguments of `select_destinations`, as a request of ours with what each of its instances needs.

Nova's RequestSpec becomes a `BuildInstance`, which the reader of our own requests checks and makes an `InstanceSpec` of. So all rules
about flavors, images and groups are those of our own requests; an error names the field of Nova's message.
"""

import re
from collections.abc import Callable, Mapping
from uuid import UUID

import msgspec
from msgspec import Struct, structs

from bus.messages.build import BuildInstance, BuildRejected, InstanceId
from scheduler_worker.core.requests import COUNT_MAX, InstanceSpec
from scheduler_worker.nova.destinations import AllowedHosts, NovaNames, destination_of
from scheduler_worker.nova.json_fields import Fields, id_in
from scheduler_worker.nova.objects import object_in, read_object
from scheduler_worker.nova.refusals import RefusedError
from scheduler_worker.nova.requested_groups import PortGroups, groups_of, served_keys, subtrees_of
from scheduler_worker.nova.server_demands import DEVICE_KEYS, flavor_of, image_of
from scheduler_worker.nova.server_groups import NovaGroup, group_of

SPEC = "spec_obj"
REBUILD = "rebuild"
CHECK_TYPE = "_nova_check_type"

_ARGS = frozenset({SPEC, "instance_uuids", "return_objects", "return_alternates"})
_SPEC = frozenset(
    {
        *("image", "numa_topology", "pci_requests", "project_id", "user_id", "availability_zone", "flavor"),
        *("ignore_hosts", "force_hosts", "force_nodes", "requested_destination", "retry", "instance_group"),
        *("scheduler_hints", "is_bfv", "requested_resources", "request_level_params"),
        # The count and the ids come beside the spec: in a move, these are still those of the boot.
        *("id", "num_instances", "instance_uuid", "created_at", "updated_at"),
        # No scheduler judges by these: what an earlier choice allowed, firewalls, and networks. What ports need of a host is in
        # requested_resources and pci_requests, and a network's place counts for a guest with NUMA cells only.
        *("limits", "security_groups", "requested_networks", "network_metadata"),
    }
)
_HINTS = frozenset({"group", "same_host", "different_host", CHECK_TYPE})
# Where the fields of our request come from: the first pattern at its beginning counts.
_SOURCES = tuple(
    (re.compile(rf"{ours}(?![a-z_])"), source)
    for ours, source in (
        (r"flavor\.ram_mb", "flavor.memory_mb"),
        (r"flavor\.swap_mb", "flavor.swap"),
        (r"image_properties\.trait:\w*", "image.properties.traits_required"),
        ("image_properties", "image.properties"),
        (r"image\.source", "image.id"),
        (r"port_requests\[(\d+)\]\.id", r"requested_resources[\1].requester_id"),
        (r"port_requests\[(\d+)\]\.(required|forbidden)", r"requested_resources[\1].\2_traits"),
        ("port_requests", "requested_resources"),
        ("project", "project_id"),
        ("user", "user_id"),
        ("hosts", "force_hosts"),
        ("(same_host|different_host)", r"scheduler_hints.\1"),
        ("member_of", "requested_destination.aggregates"),
        ("(forbidden_aggregates)", r"requested_destination.\1"),
    )
)

ReadBuild = Callable[[BuildInstance], InstanceSpec | BuildRejected]


class NovaRequest(Struct, frozen=True):
    """What nova-conductor asks for: a host for each of `instances`, each of which needs `spec`.

    `build` is the same as a request of ours, for one instance and without an id: its `same_host` and `different_host` are
    instances whose hosts are still to be found. With `is_rebuild`, the instance stays where it is, and nothing is claimed: the
    question is whether that host qualifies for the image. With `is_forced`, Nova would ask no filter.
    """

    instances: tuple[InstanceId, ...]
    spec: InstanceSpec
    build: BuildInstance
    group: NovaGroup | None = None
    wants_alternates: bool = False
    is_rebuild: bool = False
    is_forced: bool = False


class NovaRequestReader:
    """`read_build` reads a request of ours, and `image_keys` are the properties of images that it knows filters for."""

    def __init__(self, read_build: ReadBuild, image_keys: frozenset[str]) -> None:
        self._read_build = read_build
        self._image_keys = image_keys

    def read(self, args: Mapping[str, object], known: NovaNames) -> NovaRequest:
        """The request in the arguments of `select_destinations`. Raises `RefusedError`."""
        outer = Fields(args, "")
        outer.refuse_unknown(_ARGS)
        instances = _instances(outer)
        if not outer.flag("return_objects"):
            raise outer.refuse("return_objects", "it must be true: answers are lists of Selection objects")
        spec = read_object(args.get(SPEC), SPEC, "RequestSpec")
        spec.refuse_unknown(_SPEC)
        hints = spec.object("scheduler_hints")
        is_rebuild = _is_rebuild(hints)
        destination, group = destination_of(spec, known), _joined_group(spec, hints)
        ports = groups_of(spec)
        # An instance that stays keeps its cells and its devices.
        served = frozenset(DEVICE_KEYS)
        if not is_rebuild:
            _refuse_cells(spec)
            served = served_keys(spec, ports)
        build = self._build(spec, hints, destination, ports, served)
        subtrees = subtrees_of(spec, ports)
        return NovaRequest(
            instances=instances,
            spec=structs.replace(
                self._needs(build, subtrees),
                count=len(instances),
                cell=destination.cell,
                server_group=None if group is None else group.definition,
            ),
            build=build,
            group=group,
            wants_alternates=outer.flag("return_alternates"),
            is_rebuild=is_rebuild,
            is_forced=destination.is_forced and not is_rebuild,
        )

    def _build(
        self,
        spec: Fields,
        hints: Fields,
        destination: AllowedHosts,
        ports: PortGroups,
        served: frozenset[str],
    ) -> BuildInstance:
        flavor = object_in(spec, "flavor", "Flavor")
        if flavor is None:
            raise spec.refuse("flavor", "an instance has a flavor")
        image, properties = image_of(object_in(spec, "image", "ImageMeta"), self._image_keys)
        plain: dict[str, object] = {
            "type": "build.request",
            "flavor": flavor_of(flavor, on_volume=spec.flag("is_bfv"), served=served),
            "image_properties": properties,
            "project": spec.text("project_id", ""),
            "user": spec.text("user_id", ""),
            "availability_zone": spec.text("availability_zone", ""),
            "hosts": destination.hosts,
            "ignore_hosts": destination.ignore_hosts,
            "member_of": destination.member_of,
            "forbidden_aggregates": destination.forbidden_aggregates,
            "port_requests": ports,
            **{name: [str(id_) for id_ in _hinted(hints, name)] for name in ("same_host", "different_host")},
        }
        if image:
            plain["image"] = {"source": image}
        try:
            return msgspec.convert(plain, BuildInstance)
        except msgspec.ValidationError as wrong:
            reason, _, path = str(wrong).partition(" - at `$.")
            raise RefusedError(_source(path.rstrip("`")), _at(plain, path.rstrip("`")), reason) from None

    def _needs(self, build: BuildInstance, subtrees: tuple[tuple[str, ...], ...]) -> InstanceSpec:
        """The needs of one instance. Each instance of a request has all its groups, so they are read for one."""
        needs = self._read_build(build)
        if isinstance(needs, BuildRejected):
            raise RefusedError(_source(needs.field), needs.value, needs.reason)
        return structs.replace(needs, same_subtree=tuple(sorted({*needs.same_subtree, *subtrees})))


def _instances(args: Fields) -> tuple[InstanceId, ...]:
    found = tuple(
        InstanceId(id_in(each, f"instance_uuids[{number}]"))
        for number, each in enumerate(args.texts("instance_uuids"))
    )
    if not 1 <= len(found) <= COUNT_MAX:
        raise args.refuse("instance_uuids", f"a request is for 1 to {COUNT_MAX} instances")
    if len(set(found)) < len(found):
        raise args.refuse("instance_uuids", "an instance is named twice")
    return found


def _refuse_cells(spec: Fields) -> None:
    if spec.value("numa_topology") is not None:
        reason = "the NUMA cells of Nova's computes are not known here: a guest with cells, pinned CPUs or huge pages gets no host"
        raise spec.refuse("numa_topology", reason)


def _joined_group(spec: Fields, hints: Fields) -> NovaGroup | None:
    hints.refuse_unknown(_HINTS)
    group = group_of(spec)
    if group is None and hints.texts("group"):
        raise hints.refuse("group", "the request has no instance_group that says what this group is")
    return group


def _is_rebuild(hints: Fields) -> bool:
    check = hints.texts(CHECK_TYPE)
    if check and check != (REBUILD,):
        raise hints.refuse(CHECK_TYPE, f"the only check without a choice is {REBUILD}")
    return bool(check)


def _hinted(hints: Fields, name: str) -> tuple[UUID, ...]:
    return tuple(id_in(each, hints.at(name)) for each in hints.texts(name))


def _source(field: str) -> str:
    """The path in Nova's message of a field of our request."""
    for pattern, source in _SOURCES:
        if found := pattern.match(field):
            return f"{SPEC}.{found.expand(source)}{field[found.end() :]}"
    return f"{SPEC}.{field}"


def _at(plain: object, path: str) -> object:
    """The value at this path, as far as it leads."""
    for step in path.split("."):
        if not isinstance(plain, dict) or step not in plain:
            break
        plain = plain[step]
    return plain
