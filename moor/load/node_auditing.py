"""What Ironic, the daemons, placement and the cells say of nodes and instances, compared: it must be the same."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from bus.message import ProviderId
from bus.messages.build import InstanceId, InstanceState
from bus.messages.placement import ProviderState
from ironic_sync.core.node import Node
from ironic_sync.core.offers import class_of, is_available
from ironic_sync.core.rows import NodeRow

# How the instances are called that are built on hypervisors.
VIRTUAL_NAME = "web-"


class Said(Struct, frozen=True, kw_only=True):
    """By everybody, at the end. `instances` are those that were not deleted."""

    wanted: int
    ended: int
    instances: Mapping[InstanceId, InstanceState]
    ironic: Mapping[ProviderId, Node]
    rows: Mapping[ProviderId, NodeRow]
    providers: Mapping[ProviderId, ProviderState]
    alive: Sequence[str]
    books: Sequence[str] = ()
    dead_letters: int = 0


def problems_of(said: Said) -> Iterator[str]:
    yield from said.books
    if said.ended != said.wanted:
        yield f"{said.wanted} requests were made, and {said.ended} ended"
    if said.dead_letters:
        yield f"{said.dead_letters} parcels are among the dead letters"
    yield from _of_instances(said)
    yield from _of_nodes(said)
    yield from _of_owners(said)


def _of_instances(said: Said) -> Iterator[str]:
    """Each active instance is where its cell says, on a node or on a hypervisor as it asked."""
    for id_, state in sorted(said.instances.items()):
        if state.state != "active":
            continue
        node = next((each for each in said.ironic.values() if str(each.id) == state.host), None)
        if (node is None) != state.name.startswith(VIRTUAL_NAME):
            kind = "a hypervisor" if node is None else "a bare-metal node"
            yield f"instance {state.name} is on {state.host}, which is {kind}"
        elif node is not None and (node.instance_uuid != id_ or node.provision_state != "active"):
            yield (
                f"instance {state.name} is active on node {node.name}, and Ironic has instance {node.instance_uuid} there, "
                f"in state {node.provision_state!r}"
            )


def _of_nodes(said: Said) -> Iterator[str]:
    """Ironic has no instance that nobody asked for; placement offers what Ironic has to offer, and nothing is held in vain."""
    for node in said.ironic.values():
        state = None if node.instance_uuid is None else said.instances.get(InstanceId(node.instance_uuid))
        if node.instance_uuid is not None and (state is None or state.state != "active"):
            why = "deleted, or never asked for" if state is None else state.state
            yield f"node {node.name} has instance {node.instance_uuid}, which is {why}"
        provider = said.providers.get(node.id)
        stock = provider.inventories.get(class_of(node.resource_class)) if provider else None
        if stock is None:
            yield f"node {node.name} has no inventory in placement"
            continue
        if (stock.reserved == 0) != is_available(node):
            yield (
                f"node {node.name} is {node.provision_state!r} in Ironic, and placement has {stock.reserved} of "
                f"{stock.total} reserved"
            )
        if stock.used != int(state is not None and state.state == "active"):
            yield f"node {node.name}: {stock.used} are in use, and instance {node.instance_uuid} is on it"


def _of_owners(said: Said) -> Iterator[str]:
    for id_, node in said.ironic.items():
        row = said.rows.get(id_)
        if row is None or row.owner not in said.alive:
            yield f"node {node.name} is owned by {row.owner or 'nobody' if row else 'nobody'}, which is not alive"
        elif row.read_epoch != row.epoch:
            yield f"node {node.name} was not reported by {row.owner}, which owns it"
