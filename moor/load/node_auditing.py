"""The audit of bare metal: Ironic, the daemons, placement and the cells must report the same about nodes and instances."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from bus.message import ProviderId
from bus.messages.build import InstanceId, InstanceState
from bus.messages.placement import ProviderState
from bus.topology import DEAD_QUEUE
from ironic_sync.core.node import Node
from ironic_sync.core.offers import class_of, is_available
from ironic_sync.core.rows import NodeRow
from moor.books.auditing import problems_in_books
from moor.client import providers_of
from moor.clouds.temporary_cloud import TemporaryCloud

# The names of instances on hypervisors start with this.
VIRTUAL_NAME = "web-"


class Reported(Struct, frozen=True, kw_only=True):
    """What all participants report at the end of a run. `instances` are those that were not deleted."""

    wanted: int
    ended: int
    instances: Mapping[InstanceId, InstanceState]
    ironic: Mapping[ProviderId, Node]
    rows: Mapping[ProviderId, NodeRow]
    providers: Mapping[ProviderId, ProviderState]
    alive: Sequence[str]
    books: Sequence[str] = ()
    dead_letters: int = 0


async def reported_by(
    cloud: TemporaryCloud, *, wanted: int, ended: int, instances: Mapping[InstanceId, InstanceState]
) -> Reported:
    owned = await cloud.rows.owners()
    return Reported(
        wanted=wanted,
        ended=ended,
        instances=instances,
        ironic={node.id: node for node in await cloud.nodes()},
        rows=await cloud.rows.read([each.id for each in owned]),
        providers={each.id: each for each in await providers_of(cloud.client)},
        alive=[each.name for each in await cloud.rows.members() if each.is_alive],
        books=await problems_in_books(cloud.client),
        dead_letters=await cloud.connection.depth(DEAD_QUEUE),
    )


def problems_of(reported: Reported) -> Iterator[str]:
    yield from reported.books
    if reported.ended != reported.wanted:
        yield f"{reported.wanted} requests were made, and {reported.ended} ended"
    if reported.dead_letters:
        yield f"{reported.dead_letters} parcels are among the dead letters"
    yield from _of_instances(reported)
    yield from _of_nodes(reported)
    yield from _of_owners(reported)


def _of_instances(reported: Reported) -> Iterator[str]:
    """Each active instance must be where its cell says, and on a node or on a hypervisor as it was requested."""
    for id_, state in sorted(reported.instances.items()):
        if state.state != "active":
            continue
        node = next((each for each in reported.ironic.values() if str(each.id) == state.host), None)
        if (node is None) != state.name.startswith(VIRTUAL_NAME):
            kind = "a hypervisor" if node is None else "a bare-metal node"
            yield f"instance {state.name} is on {state.host}, which is {kind}"
        elif node is not None and (node.instance_uuid != id_ or node.provision_state != "active"):
            yield (
                f"instance {state.name} is active on node {node.name}, but Ironic has instance {node.instance_uuid} there, "
                f"in state {node.provision_state!r}"
            )


def _of_nodes(reported: Reported) -> Iterator[str]:
    """Ironic must have only requested instances, and placement must offer exactly the nodes that are available.

    A node must be in use in placement exactly if it has an active instance.
    """
    for node in reported.ironic.values():
        state = None if node.instance_uuid is None else reported.instances.get(InstanceId(node.instance_uuid))
        if node.instance_uuid is not None and (state is None or state.state != "active"):
            why = "deleted or unknown" if state is None else state.state
            yield f"node {node.name} has instance {node.instance_uuid}, which is {why}"
        provider = reported.providers.get(node.id)
        stock = provider.inventories.get(class_of(node.resource_class)) if provider else None
        if stock is None:
            yield f"node {node.name} has no inventory in placement"
            continue
        if (stock.reserved == 0) != is_available(node):
            yield (
                f"node {node.name} is {node.provision_state!r} in Ironic, but placement has {stock.reserved} of "
                f"{stock.total} reserved"
            )
        if stock.used != int(state is not None and state.state == "active"):
            yield f"node {node.name}: {stock.used} in use in placement, but its instance is {node.instance_uuid}"


def _of_owners(reported: Reported) -> Iterator[str]:
    for id_, node in reported.ironic.items():
        row = reported.rows.get(id_)
        if row is None or row.owner not in reported.alive:
            yield f"node {node.name} is owned by {row.owner or 'nobody' if row else 'nobody'}, which is not alive"
        elif row.read_epoch != row.epoch:
            yield f"node {node.name} was not reported by its owner {row.owner}"
