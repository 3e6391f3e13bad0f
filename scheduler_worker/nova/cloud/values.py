"""A Nova as its API, its API database and its notifications tell of it. Frozen: a change makes another value.

Nova's names of services and nodes are kept as Nova writes them; they are looked up in lower case.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from uuid import UUID

from msgspec import Struct, structs

from bus.message import AggregateId, CellName, ProviderId
from bus.topology import CELL0, CELL_NAME
from scheduler_worker.nova.destinations import NovaNames
from scheduler_worker.nova.selection import ComputeNode

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
