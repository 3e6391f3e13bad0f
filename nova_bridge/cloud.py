"""What Nova knows of its cloud: compute nodes, services, aggregates and cells. Pure values; how they are read from answers and
notifications, and how they change.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from uuid import UUID

import msgspec
from msgspec import Struct, structs

from bus.topology import CELL0, CELL_NAME
from engine.inventories import AggregateId, CellName, ProviderId
from kit.errors import UNREADABLE
from nova_bridge.envelope import Fields, RefusedError, read_object, texts_in
from nova_bridge.request_spec import NovaNames
from nova_bridge.selection import ComputeNode

# A Nova as its API, its API database and its notifications tell of it. Frozen: a change makes another value.
#
# Nova's names of services and nodes are kept as Nova writes them; they are looked up in lower case.


ZONE = "availability_zone"
# Nova's default for `default_availability_zone`.
DEFAULT_ZONE = "nova"


class ComputeService(Struct, frozen=True, kw_only=True):
    """A nova-compute. Nova builds nothing on one that is disabled, or not up. `is_forced_down`: an operator says that it is down."""

    id: UUID
    host: str
    is_up: bool
    is_disabled: bool = False
    disabled_reason: str = ""
    is_forced_down: bool = False

    @property
    def unusable_because(self) -> str:
        """Why nothing may be built there, in words; empty if it may."""
        if self.is_disabled:
            return f"its service is disabled{f': {self.disabled_reason}' if self.disabled_reason else ''}"
        if self.is_forced_down:
            return "its service is forced down"
        return "" if self.is_up else "its service is down"


class CloudAggregate(Struct, frozen=True, kw_only=True):
    """An aggregate of hosts, which are services by their names."""

    id: AggregateId
    name: str = ""
    hosts: tuple[str, ...] = ()
    metadata: Mapping[str, str] = {}

    @property
    def zone(self) -> str:
        return self.metadata.get(ZONE, "")


class CloudCell(Struct, frozen=True):
    """A cell by Nova's mapping. `is_silent`: Nova says that the cell does not answer, so what it has is not known."""

    id: UUID
    name: str = ""
    is_silent: bool = False


class NovaCloud(Struct, frozen=True, kw_only=True):
    """A whole Nova. By their ids: a node's is also that of its root provider.

    A node is here only if its service is known, and the cell of that. `unplaced` has the names of services whose cell is not known: Nova
    has not discovered them.
    """

    nodes: Mapping[ProviderId, ComputeNode] = {}
    services: Mapping[UUID, ComputeService] = {}
    aggregates: Mapping[AggregateId, CloudAggregate] = {}
    cells: Mapping[UUID, CloudCell] = {}
    unplaced: tuple[str, ...] = ()
    # The zone of a host that is in no aggregate with a zone.
    default_zone: str | None = DEFAULT_ZONE

    @property
    def silent_cells(self) -> tuple[CloudCell, ...]:
        return tuple(each for _, each in sorted(self.cells.items()) if each.is_silent)


def services_by_host(cloud: NovaCloud) -> Mapping[str, ComputeService]:
    """The services by their names in lower case."""
    return {each.host.lower(): each for _, each in sorted(cloud.services.items())}


def aggregates_by_host(cloud: NovaCloud) -> Mapping[str, tuple[CloudAggregate, ...]]:
    """The aggregates of each service, by its name in lower case, in the order of their ids."""
    found: dict[str, list[CloudAggregate]] = {}
    for _, aggregate in sorted(cloud.aggregates.items()):
        for host in aggregate.hosts:
            found.setdefault(host.lower(), []).append(aggregate)
    return {host: tuple(some) for host, some in found.items()}


def zoned(cloud: NovaCloud) -> NovaCloud:
    """The same cloud, with each node in the zone of its service: that of an aggregate, or else the default."""
    zones = {
        host: zone
        for host, some in aggregates_by_host(cloud).items()
        if (zone := next((each.zone for each in some if each.zone), ""))
    }
    nodes: dict[ProviderId, ComputeNode] = {}
    for id_, node in cloud.nodes.items():
        of_host = zones.get(node.service.lower(), cloud.default_zone)
        nodes[id_] = node if node.zone == of_host else structs.replace(node, zone=of_host)
    return structs.replace(cloud, nodes=nodes)


def cell_names(cells: Iterable[CloudCell]) -> Mapping[UUID, CellName]:
    """Our names of Nova's cells: Nova's own where a cell of ours may be called so and no other cell of Nova is, otherwise the id."""
    ordered = sorted(cells, key=lambda each: each.id)
    names = Counter(each.name for each in ordered)
    return {each.id: each.name if _may_be_ours(each.name, names) else str(each.id) for each in ordered}


def _may_be_ours(name: str, names: Mapping[str, int]) -> bool:
    return CELL_NAME.fullmatch(name) is not None and name != CELL0 and names[name] == 1


def names_of(cloud: NovaCloud) -> NovaNames:
    """Our names of hosts and cells. A host is called as its compute node is: this is also the name of its root provider."""
    by_service: dict[str, list[str]] = {}
    by_node: dict[str, list[str]] = {}
    for node in cloud.nodes.values():
        by_service.setdefault(node.service.lower(), []).append(node.name)
        by_node.setdefault(node.name.lower(), []).append(node.name)
    return NovaNames(
        by_service={name: tuple(sorted(some)) for name, some in by_service.items()},
        by_node={name: tuple(sorted(some)) for name, some in by_node.items()},
        cells={str(id_): name for id_, name in cell_names(cloud.cells.values()).items()},
    )


# What Nova's compute API answers, read: services, hypervisors and aggregates.
#
# A field that is missing or wrong is refused by its path (`RefusedError`). Fields that are not read here may be anything.


COMPUTE = "nova-compute"
# The API says this, and not much else, about a service or a server whose cell does not answer.
UNKNOWN = "UNKNOWN"


class ComputeNodeRead(Struct, frozen=True):
    """A compute node, and its service."""

    id: ProviderId
    name: str
    host: str


class ServicesRead(Struct, frozen=True):
    """The compute services, and the hosts whose cells do not answer."""

    services: tuple[ComputeService, ...] = ()
    silent: tuple[str, ...] = ()


class ServerSeen(Struct, frozen=True):
    """An instance, and the error that it ended with; empty if it has none. `fault_at` is when that was."""

    fault: str = ""
    fault_at: datetime | None = None


class CellsRead(Struct, frozen=True):
    """The cells, and the cell of each service, by its name in lower case."""

    cells: tuple[CloudCell, ...] = ()
    of_hosts: Mapping[str, UUID] = {}


def _items(body: object, key: str) -> Iterable[Fields]:
    """The objects in a list of the answer. The answer's size is bounded already, so the number of them is not."""
    listed = Fields(body, "").value(key)
    if not isinstance(listed, list):
        raise RefusedError(key, listed, "it must be a list")
    return [Fields(each, f"{key}[{number}]") for number, each in enumerate(listed)]


def services_in(body: object) -> ServicesRead:
    services: list[ComputeService] = []
    silent: list[str] = []
    for each in _items(body, "services"):
        if each.text("binary") != COMPUTE:
            continue
        if each.value("id") is None and each.text("status") == UNKNOWN:
            silent.append(each.text("host"))
            continue
        services.append(
            ComputeService(
                id=each.id("id"),
                host=each.text("host"),
                is_up=each.text("state") == "up",
                is_disabled=each.text("status") == "disabled",
                disabled_reason=each.text("disabled_reason", ""),
                is_forced_down=each.flag("forced_down"),
            )
        )
    return ServicesRead(tuple(services), tuple(silent))


def hypervisors_in(body: object) -> tuple[ComputeNodeRead, ...]:
    return tuple(
        ComputeNodeRead(
            ProviderId(each.id("id")), each.text("hypervisor_hostname"), each.object("service").text("host")
        )
        for each in _items(body, "hypervisors")
    )


def aggregates_in(body: object) -> tuple[CloudAggregate, ...]:
    return tuple(
        CloudAggregate(
            id=AggregateId(each.id("uuid")),
            name=each.text("name", ""),
            hosts=hosts_in(each),
            metadata=each.object("metadata").text_values(),
        )
        for each in _items(body, "aggregates")
    )


def hosts_in(fields: Fields) -> tuple[str, ...]:
    """The hosts of an aggregate: they may be all those of a large cloud."""
    listed = fields.value("hosts")
    if not isinstance(listed, list | None):
        raise fields.refuse("hosts", "it must be a list")
    return texts_in(listed or (), fields.at("hosts"))


def ids_in(body: object, key: str, id_field: str) -> tuple[tuple[UUID, ...], bool]:
    """The ids of servers or migrations, and whether the API has only a part of one of them, since its cell does not answer."""
    items = [*_items(body, key)]
    is_partial = any(each.value("status") == UNKNOWN and each.value("name") is None for each in items)
    return tuple(each.id(id_field) for each in items), key == "servers" and is_partial


def next_of(body: object, key: str) -> str:
    """The link to the next page of this list; empty if the answer has none."""
    fields = Fields(body, "")
    if fields.value(f"{key}_links") is None:
        return ""
    return next(
        (each.text("href") for each in _items(body, f"{key}_links") if each.text("rel", "") == "next"), ""
    )


def server_in(body: object) -> ServerSeen:
    """The API shows the fault of an instance that is in error, and no other."""
    server = Fields(body, "").object("server")
    if server.value("fault") is None:
        return ServerSeen()
    fault = server.object("fault")
    created = fault.text("created", "")
    try:
        at = datetime.fromisoformat(created) if created else None
    except ValueError:
        raise fault.refuse("created", "it must be a time, such as 2026-11-25T10:00:00Z") from None
    if at is not None and at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return ServerSeen(fault.text("message"), at)


def cloud_of(
    services: ServicesRead,
    hypervisors: Iterable[ComputeNodeRead],
    aggregates: Iterable[CloudAggregate],
    cells: CellsRead,
    *,
    default_zone: str | None,
) -> NovaCloud:
    """All that was read, put together. The services of a silent cell are unknown, and so are its nodes."""
    nodes: dict[ProviderId, ComputeNode] = {}
    unplaced: set[str] = set()
    for each in hypervisors:
        cell = cells.of_hosts.get(each.host.lower())
        if cell is None:
            unplaced.add(each.host)
        else:
            nodes[each.id] = ComputeNode(id=each.id, service=each.host, name=each.name, cell=cell)
    silent = {cells.of_hosts.get(host.lower()) for host in services.silent}
    return zoned(
        NovaCloud(
            nodes=nodes,
            services={each.id: each for each in services.services},
            aggregates={each.id: each for each in aggregates},
            cells={
                each.id: CloudCell(each.id, each.name, is_silent=each.id in silent) for each in cells.cells
            },
            unplaced=tuple(sorted(unplaced)),
            default_zone=default_zone,
        )
    )


# Nova's versioned notifications, read: of services and aggregates. Others are counted and ignored.
#
# The body is oslo.messaging's envelope, with the notification as a JSON text inside. Whatever the bytes are, the answer is a value.


BODY_MAX = 4 * 1024 * 1024
_EVENT_SHOWN_MAX = 100


class ServiceHeard(Struct, frozen=True, kw_only=True):
    """A compute service, as it was at `at`. Nova tells when it was disabled or forced down, and not when it falls silent: whether it
    is up is read from the API.
    """

    at: datetime
    service: ComputeService
    is_deleted: bool = False


class AggregateHeard(Struct, frozen=True, kw_only=True):
    at: datetime
    aggregate: CloudAggregate
    is_deleted: bool = False


Heard = ServiceHeard | AggregateHeard


class NotHeard(Struct, frozen=True):
    """A notification that changes nothing known here: of another kind, or unreadable for the reason."""

    event: str
    reason: str = ""


# The end of what an administrator does to an aggregate. Its beginning says nothing that is so yet.
_AGGREGATE_ENDS = frozenset(
    f"aggregate.{action}.end"
    for action in ("create", "add_host", "remove_host", "update_metadata", "update_prop")
)


def read_notification(body: bytes) -> Heard | NotHeard:
    try:
        fields = Fields(msgspec.json.decode(_unwrapped(body)), "")
        event = fields.text("event_type")
    except UNREADABLE as problem:
        return NotHeard("", f"this is no notification: {problem}")
    except RefusedError as refused:
        return NotHeard("", str(refused))
    try:
        return _heard(fields, event)
    except RefusedError as refused:
        return NotHeard(event[:_EVENT_SHOWN_MAX], str(refused))


def _unwrapped(body: bytes) -> bytes | str:
    if len(body) > BODY_MAX:
        raise RefusedError("", len(body), f"a notification has at most {BODY_MAX} bytes")
    outer = msgspec.json.decode(body)
    if isinstance(outer, dict) and isinstance(inner := outer.get("oslo.message"), str):
        return inner
    return body


def _heard(fields: Fields, event: str) -> Heard | NotHeard:
    if event in ("service.create", "service.update", "service.delete"):
        payload = read_object(fields.value("payload"), "payload", "ServiceStatusPayload")
        if payload.text("binary", "") != COMPUTE:
            return NotHeard(event)
        return _service(payload, _moment(fields, "timestamp"), is_deleted=event == "service.delete")
    if event in _AGGREGATE_ENDS or event == "aggregate.delete.end":
        payload = read_object(fields.value("payload"), "payload", "AggregatePayload")
        aggregate = CloudAggregate(
            id=AggregateId(payload.id("uuid")),
            name=payload.text("name", ""),
            hosts=hosts_in(payload),
            metadata=payload.object("metadata").text_values(),
        )
        return AggregateHeard(
            at=_moment(fields, "timestamp"),
            aggregate=aggregate,
            is_deleted=event == "aggregate.delete.end",
        )
    return NotHeard(event[:_EVENT_SHOWN_MAX])


def _service(payload: Fields, at: datetime, *, is_deleted: bool) -> ServiceHeard:
    service = ComputeService(
        id=payload.id("uuid"),
        host=payload.text("host"),
        is_up=payload.value("last_seen_up") is not None,
        is_disabled=payload.flag("disabled"),
        disabled_reason=payload.text("disabled_reason", ""),
        is_forced_down=payload.flag("forced_down"),
    )
    return ServiceHeard(at=at, service=service, is_deleted=is_deleted)


def _moment(fields: Fields, name: str) -> datetime:
    """A time as Nova writes it: UTC, with or without saying so."""
    try:
        at = datetime.fromisoformat(fields.text(name))
    except ValueError:
        raise fields.refuse(name, "it must be a time") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def id_heard(heard: Heard) -> UUID:
    match heard:
        case ServiceHeard():
            return heard.service.id
        case AggregateHeard():
            return heard.aggregate.id


# What Nova's notifications change in what is known of it. Pure.
#
# Notifications come from several processes of Nova, so an older one may come later: of each thing the newest counts, by the time that Nova
# gave it. A lost notification is made good by the next reading of the API.


class HeardCloud(Struct, frozen=True):
    """A Nova as it was read, with what was heard since then. `heard_at` has the times of what was heard, by ids.

    `doubt` says why all of it should be read again soon; empty if there is no reason.
    """

    cloud: NovaCloud
    heard_at: Mapping[UUID, datetime] = {}
    doubt: str = ""


def hear(known: HeardCloud, heard: Heard) -> HeardCloud:
    """The cloud after this notification; the same if something newer is known, or nothing changed."""
    id_ = id_heard(heard)
    last = known.heard_at.get(id_)
    if last is not None and heard.at <= last:
        return known
    changed = structs.replace(known, heard_at={**known.heard_at, id_: heard.at})
    match heard:
        case ServiceHeard():
            return _hear_service(changed, heard)
        case AggregateHeard():
            return structs.replace(changed, cloud=_hear_aggregate(known.cloud, heard))


def after_read(read: NovaCloud, since: Iterable[Heard]) -> HeardCloud:
    """The cloud as it was read, after the notifications that came since the reading began: it may have missed their changes."""
    known = HeardCloud(read)
    for heard in since:
        known = hear(known, heard)
    return known


def with_services(known: HeardCloud, read: ServicesRead, since: Iterable[Heard]) -> HeardCloud:
    """The cloud after the services alone were read. A service or a node more or less makes it doubtful."""
    cloud = known.cloud
    services = {each.id: each for each in read.services}
    cells = _cells(cloud, {host.lower() for host in read.silent})
    # Of silent cells nothing is told but their names: what they had stays, and is not up.
    hosts = {host.lower() for host in read.silent}
    for id_, service in cloud.services.items():
        if id_ not in services and service.host.lower() in hosts:
            services[id_] = structs.replace(service, is_up=False)
    doubt = known.doubt or (
        "" if services.keys() == cloud.services.keys() else "there are other services than before"
    )
    if services != cloud.services or cells != cloud.cells:
        cloud = structs.replace(cloud, services=services, cells=cells)
    known = structs.replace(known, cloud=cloud, doubt=doubt)
    for heard in since:
        if isinstance(heard, ServiceHeard):
            known = _hear_service(known, heard)
    return known


def _cells(cloud: NovaCloud, silent_hosts: set[str]) -> Mapping[UUID, CloudCell]:
    silent = {node.cell for node in cloud.nodes.values() if node.service.lower() in silent_hosts}
    return {id_: structs.replace(cell, is_silent=id_ in silent) for id_, cell in cloud.cells.items()}


def _hear_service(known: HeardCloud, heard: ServiceHeard) -> HeardCloud:
    cloud, service = known.cloud, heard.service
    before = cloud.services.get(service.id)
    if heard.is_deleted:
        host = service.host.lower()
        left = {id_: each for id_, each in cloud.services.items() if id_ != service.id}
        nodes = {id_: each for id_, each in cloud.nodes.items() if each.service.lower() != host}
        if len(left) == len(cloud.services):
            return known
        return structs.replace(known, cloud=structs.replace(cloud, services=left, nodes=nodes))
    if before is None:
        cloud = structs.replace(cloud, services={**cloud.services, service.id: service})
        return structs.replace(
            known, cloud=cloud, doubt=f"service {service.host} is new, and its nodes are not known"
        )
    now = structs.replace(service, is_up=before.is_up)
    if now == before:
        return known
    return structs.replace(known, cloud=structs.replace(cloud, services={**cloud.services, service.id: now}))


def _hear_aggregate(cloud: NovaCloud, heard: AggregateHeard) -> NovaCloud:
    aggregate = heard.aggregate
    if heard.is_deleted:
        left = {id_: each for id_, each in cloud.aggregates.items() if id_ != aggregate.id}
        if len(left) == len(cloud.aggregates):
            return cloud
        return zoned(structs.replace(cloud, aggregates=left))
    if cloud.aggregates.get(aggregate.id) == aggregate:
        return cloud
    return zoned(structs.replace(cloud, aggregates={**cloud.aggregates, aggregate.id: aggregate}))
