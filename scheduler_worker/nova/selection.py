"""The answer to `select_destinations`: for each instance the chosen host and its alternates, as Nova's Selection objects.

The allocation request is what nova-conductor puts to placement for an alternate, and where it reads which provider serves which port.
On the chosen host it is claimed already.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec
from msgspec import Struct

from bus.message import ProviderId
from bus.messages.placement import Share
from scheduler_worker.core.requests import InstanceSpec
from scheduler_worker.nova.objects import write_object
from scheduler_worker.nova.requested_groups import PORT

SELECTION, LIMITS = "1.1", "1.0"
# The microversion of placement at which the allocation request is written: the first with a mapping for each group.
MICROVERSION = "1.36"
# The limits by which a compute checks again what it has room for. Placement judged all amounts, so there are none.
_NO_LIMITS = {"numa_topology": None, "vcpu": None, "disk_gb": None, "memory_mb": None}

_encode = msgspec.json.Encoder(order="sorted").encode


class ComputeNode(Struct, frozen=True):
    """A host by Nova's names. `id` is the compute node's, which is also that of its root provider. `zone` is None if the cloud has no
    default zone, and the host is in none.
    """

    id: ProviderId
    service: str
    name: str
    cell: UUID
    zone: str | None = None


class SelectedHost(Struct, frozen=True):
    """A compute node with the share that an instance takes of it. `providers` has that of each granular group, by its suffix."""

    node: ComputeNode
    share: Share
    providers: Mapping[str, ProviderId] = {}


def write_selections(
    chosen: Sequence[Sequence[SelectedHost]], spec: InstanceSpec
) -> list[list[dict[str, object]]]:
    """The result of the call. Each list has the chosen host of an instance, and then its alternates, all of one cell."""
    answer: list[list[dict[str, object]]] = []
    for hosts in chosen:
        cells = {each.node.cell for each in hosts}
        assert len(cells) == 1, (
            f"an instance has a host, and alternates of its cell, not of {len(cells)} cells"
        )
        answer.append([_selection(each, spec) for each in hosts])
    return answer


def write_stay(nodes: Sequence[ComputeNode]) -> list[list[dict[str, object]]]:
    """The result for instances that stay where they are: nothing is to be allocated."""
    return [[_written(node, None, None)] for node in nodes]


def _selection(selected: SelectedHost, spec: InstanceSpec) -> dict[str, object]:
    node = selected.node
    assert node.id == selected.share.host, f"the share is of {selected.share.host}, not of {node.id}"
    return _written(node, _encode(allocation_request(selected, spec)).decode(), MICROVERSION)


def _written(node: ComputeNode, request: str | None, version: str | None) -> dict[str, object]:
    data = {
        "compute_node_uuid": str(node.id),
        "service_host": node.service,
        "nodename": node.name,
        "cell_uuid": str(node.cell),
        "limits": write_object("SchedulerLimits", LIMITS, _NO_LIMITS),
        "allocation_request": request,
        "allocation_request_version": version,
        "availability_zone": node.zone,
    }
    return write_object("Selection", SELECTION, data)


def allocation_request(selected: SelectedHost, spec: InstanceSpec) -> dict[str, object]:
    """The amounts that each provider gives, and the providers that serve each group. The group without a suffix has the rest."""
    allocations: dict[str, dict[str, dict[str, int]]] = {}
    rest: dict[tuple[ProviderId, str], int] = {}
    for amount in selected.share.amounts:
        of_provider = allocations.setdefault(str(amount.provider), {"resources": {}})["resources"]
        of_provider[amount.resource] = of_provider.get(amount.resource, 0) + amount.amount
        key = amount.provider, amount.resource
        rest[key] = rest.get(key, 0) + amount.amount
    mappings: dict[str, list[str]] = {}
    for group in spec.groups:
        provider = selected.providers[group.suffix]
        mappings[group.suffix.removeprefix(PORT)] = [str(provider)]
        for resource, asked in group.amounts:
            rest[provider, resource] = rest.get((provider, resource), 0) - asked
    assert all(left >= 0 for left in rest.values()), (
        f"the groups of {selected.node.name} take more than its share"
    )
    if others := sorted({str(provider) for (provider, _), left in rest.items() if left}):
        mappings[""] = others
    return {"allocations": allocations, "mappings": mappings}
