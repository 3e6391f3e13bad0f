"""What Nova's compute API answers, read: services, hypervisors and aggregates.

A field that is missing or wrong is refused by its path (`RefusedError`). Fields that are not read here may be anything.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from uuid import UUID

from msgspec import Struct

from bus.message import AggregateId, ProviderId
from scheduler_worker.nova.cloud.values import (
    CloudAggregate,
    CloudCell,
    ComputeService,
    NovaCloud,
    zoned,
)
from scheduler_worker.nova.json_fields import Fields, texts_in
from scheduler_worker.nova.refusals import RefusedError
from scheduler_worker.nova.selection import ComputeNode

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
