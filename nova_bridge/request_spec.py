"""The arguments of `select_destinations`, as a request of ours with what each of its instances needs.

Nova's RequestSpec becomes a `BuildInstance`, which the reader of our own requests checks and makes an `InstanceSpec` of. So all rules
about flavors, images and groups are those of our own requests; an error names the field of Nova's message.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

import msgspec
from msgspec import Struct, structs

from bus.messages.build import BuildInstance, BuildRejected
from engine.flavors import InstanceId
from engine.inventories import CellName, GroupId, GroupPolicy, ServerGroup
from engine.requests import COUNT_MAX, InstanceSpec
from nova_bridge.demands import (
    DEVICE_KEYS,
    PortGroups,
    flavor_of,
    groups_of,
    image_of,
    served_keys,
    subtrees_of,
)
from nova_bridge.envelope import (
    Fields,
    RefusedError,
    UnknownNameError,
    id_in,
    listed_in,
    object_in,
    read_object,
)

# The hosts that Nova allows an instance: those forced or asked for, without those ruled out or tried before, all by our names.
#
# Nova names a compute service, a compute node, or both: a service of bare metal has many nodes. A request for a host that is not known
# here is refused.


_DESTINATION = frozenset(
    {"host", "node", "cell", "aggregates", "forbidden_aggregates", "allow_cross_cell_move"}
)
_RETRY = frozenset({"num_attempts", "hosts"})


class NovaNames(Struct, frozen=True):
    """Our names of Nova's hosts, and of its cells by their uuids. Nova's names of services and nodes are in lower case here."""

    by_service: Mapping[str, tuple[str, ...]] = {}
    by_node: Mapping[str, tuple[str, ...]] = {}
    cells: Mapping[str, CellName] = {}

    def hosts(self, service: str, node: str) -> frozenset[str]:
        """Our names of the hosts of this service and this node, either of which may be empty."""
        of_service = frozenset(self.by_service.get(service.lower(), ()))
        of_node = frozenset(self.by_node.get(node.lower(), ()))
        if not node:
            return of_service
        return of_node & of_service if service else of_node


class AllowedHosts(Struct, frozen=True):
    """Where the instance may be. With `is_forced`, an operator named the host: Nova then asks no filter.

    `hosts` are all that qualify; empty: any. `member_of` and `forbidden_aggregates` are ids, and `cell` is ours; empty: any.
    """

    hosts: tuple[str, ...] = ()
    ignore_hosts: tuple[str, ...] = ()
    is_forced: bool = False
    cell: str = ""
    member_of: tuple[tuple[str, ...], ...] = ()
    forbidden_aggregates: tuple[str, ...] = ()


def destination_of(spec: Fields, known: NovaNames) -> AllowedHosts:
    services, nodes = spec.texts("force_hosts"), spec.texts("force_nodes")
    wishes = _forced(spec, services, nodes, known)
    wanted = object_in(spec, "requested_destination", "Destination") or Fields(
        {}, spec.at("requested_destination")
    )
    wanted.refuse_unknown(_DESTINATION)
    if wanted.flag("allow_cross_cell_move"):
        raise wanted.refuse("allow_cross_cell_move", "an instance moves only within its cell")
    if wish := _asked(wanted, known):
        wishes.append(wish)
    hosts = frozenset.intersection(*wishes) if wishes else frozenset()
    if wishes and not hosts:
        raise RefusedError(
            spec.at("force_hosts"), list(services), "no host is both forced and the requested destination"
        )
    return AllowedHosts(
        hosts=tuple(sorted(hosts)),
        ignore_hosts=tuple(sorted(_ruled_out(spec, known))),
        is_forced=bool(services or nodes),
        cell=_cell(wanted, known),
        member_of=tuple(_any_of(wanted)),
        forbidden_aggregates=tuple(sorted(set(_ids(wanted, "forbidden_aggregates")))),
    )


def _forced(
    spec: Fields, services: tuple[str, ...], nodes: tuple[str, ...], known: NovaNames
) -> list[frozenset[str]]:
    """One set for the services, and one for the nodes, as far as any are named."""
    wishes: list[frozenset[str]] = []
    for field, names, hosts_of in (
        ("force_hosts", services, lambda name: known.hosts(name, "")),
        ("force_nodes", nodes, lambda name: known.hosts("", name)),
    ):
        if names:
            found: frozenset[str] = frozenset().union(*map(hosts_of, names))
            if not found:
                raise UnknownNameError(spec.at(field), ", ".join(names), "no such host is known")
            wishes.append(found)
    return wishes


def _asked(wanted: Fields, known: NovaNames) -> frozenset[str]:
    service, node = wanted.text("host", ""), wanted.text("node", "")
    if not service and not node:
        return frozenset()
    found = known.hosts(service, node)
    if not found:
        field = "host" if service else "node"
        reason = f"no such host is known with node {node!r}" if service and node else "no such host is known"
        raise UnknownNameError(wanted.at(field), wanted.value(field), reason)
    return found


def _ruled_out(spec: Fields, known: NovaNames) -> Iterable[str]:
    """The hosts that are to be ignored, and those that were tried. One that is not known yet may be before the choice is made: most
    hosts are called as their services are.
    """
    found: set[str] = set()
    for name in spec.texts("ignore_hosts"):
        found |= known.hosts(name, "") or {name.lower()} - {""}
    retry = object_in(spec, "retry", "SchedulerRetries")
    if retry is not None:
        retry.refuse_unknown(_RETRY)
        for tried in listed_in(retry, "hosts", "ComputeNodeList", "ComputeNode"):
            service, node = tried.text("host", ""), tried.text("hypervisor_hostname", "")
            found |= known.hosts(service, node) or {node.lower()} - {""}
    return found


def _cell(wanted: Fields, known: NovaNames) -> str:
    cell = object_in(wanted, "cell", "CellMapping")
    if cell is None:
        return ""
    name = known.cells.get(str(cell.id("uuid")))
    if name is None:
        raise UnknownNameError(cell.at("uuid"), cell.value("uuid"), "no such cell is known")
    return name


def _any_of(wanted: Fields) -> Iterable[tuple[str, ...]]:
    """For each item, the aggregates of which a host must be in one. Nova writes them with commas between them."""
    for number, item in enumerate(wanted.texts("aggregates")):
        at = f"{wanted.at('aggregates')}[{number}]"
        yield tuple(sorted({str(id_in(each, at)) for each in item.split(",")}))


def _ids(wanted: Fields, field: str) -> Iterable[str]:
    return (str(id_in(each, wanted.at(field))) for each in wanted.texts(field))


# The server group that an instance joins, with what Nova knows of its members.


_GROUP = frozenset(
    {
        *("uuid", "policy", "policies", "members", "hosts", "_rules"),
        # Of no meaning for a choice.
        *("id", "user_id", "project_id", "name", "created_at", "updated_at", "deleted_at", "deleted"),
    }
)
POLICIES: dict[str, GroupPolicy] = {
    "affinity": "affinity",
    "anti-affinity": "anti-affinity",
    "soft-affinity": "soft-affinity",
    "soft-anti-affinity": "soft-anti-affinity",
}
MAX_PER_HOST = "max_server_per_host"
PER_HOST_MAX = 1_000_000


class NovaGroup(Struct, frozen=True):
    """`members` are instances, and `hosts` are Nova's names of the compute services that have one of them."""

    definition: ServerGroup
    members: tuple[UUID, ...] = ()
    hosts: tuple[str, ...] = ()


def group_of(spec: Fields) -> NovaGroup | None:
    group = object_in(spec, "instance_group", "InstanceGroup")
    if group is None:
        return None
    group.refuse_unknown(_GROUP)
    members = group.texts("members")
    return NovaGroup(
        definition=ServerGroup(
            id=GroupId(group.id("uuid")),
            policy=_policy(group),
            max_per_host=_max_per_host_of(group.object("_rules")),
        ),
        members=tuple(id_in(each, group.at("members")) for each in members),
        hosts=group.texts("hosts"),
    )


def _policy(group: Fields) -> GroupPolicy:
    """Releases of Nova before Rocky have a list of one policy."""
    older = group.texts("policies")
    field, name = (
        ("policies", older[0])
        if older and group.value("policy") is None
        else ("policy", group.text("policy"))
    )
    policy = POLICIES.get(name)
    if policy is None:
        raise group.refuse(field, f"a policy is one of {', '.join(POLICIES)}")
    return policy


def _max_per_host_of(rules: Fields) -> int:
    """The limit of anti-affinity, which is a text in Nova's messages."""
    rules.refuse_unknown({MAX_PER_HOST})
    text = rules.text(MAX_PER_HOST, "1")
    if not (text.isascii() and text.isdigit() and len(text) < 8 and 1 <= int(text) <= PER_HOST_MAX):  # noqa: PLR2004
        raise rules.refuse(MAX_PER_HOST, f"it must be a whole number from 1 to {PER_HOST_MAX}")
    return int(text)


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
