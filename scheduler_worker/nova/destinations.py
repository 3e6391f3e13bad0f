"""The hosts that Nova allows an instance: those forced or asked for, without those ruled out or tried before, all by our names.

Nova names a compute service, a compute node, or both: a service of bare metal has many nodes. A request for a host that is not known
here is refused.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from bus.message import CellName
from scheduler_worker.nova.json_fields import Fields, id_in
from scheduler_worker.nova.objects import listed_in, object_in
from scheduler_worker.nova.refusals import RefusedError, UnknownNameError

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
