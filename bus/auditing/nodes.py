"""Does Ironic have instances on bare-metal nodes where the books have them? Pure.

Nobody else tells of an instance that Ironic has and no book knows: it runs on, and its node is never offered again. Ironic may
have forgotten the node for longer than its row is kept, while the instance was deleted.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from bus.auditing.judging import LOST, is_in_flight, own_entry, whereabouts
from bus.auditing.views import Fault, InstanceView, Places, Sight
from bus.message import ConsumerId, ProviderId
from bus.messages.hosts import NODE

STRAY_ON_NODE = "stray on node"
# At rest on its node.
_THERE = ("active", "stopped")


class NodeInIronic(Struct, frozen=True):
    """A node as Ironic lists it. While `is_busy`, Ironic works on it, and its instance may be on the way."""

    id: ProviderId
    name: str
    state: str
    instance: ConsumerId | None = None
    is_busy: bool = False

    @property
    def words(self) -> str:
        return f"node {self.name or self.id} ({self.state})"


NodesInIronic = Mapping[ProviderId, NodeInIronic]


def nodes_of(view: InstanceView) -> set[ProviderId]:
    """The hosts, nodes among them, that may have something of an instance by the rows of its cells."""
    return {each.host for entry in view.in_cells for each in entry.on_hosts}


def faults_on_nodes(
    suspects: Sequence[ConsumerId],
    views: Mapping[ConsumerId, InstanceView],
    nodes: NodesInIronic,
    sight: Sight,
    places: Places,
) -> Iterator[Fault]:
    """The faults of these instances, as both Ironic and the books have them now."""
    named = {*suspects}
    for node in nodes.values():
        if node.instance in named and node.instance is not None:
            yield from _stray(node, node.instance, views.get(node.instance), sight, places)
    for view in views.values():
        yield from lost_from_node(view, nodes, sight, places)


def _stray(
    node: NodeInIronic, instance: ConsumerId, view: InstanceView | None, sight: Sight, places: Places
) -> Iterator[Fault]:
    provider = places.providers.get(node.id)
    is_foreign = provider is not None and not provider.cell
    if node.is_busy or is_foreign:
        return
    if view is None:
        silent = sight.known - sight.cells
        # Its row may be in a cell that has not answered.
        if silent and (provider is None or provider.cell in silent):
            return
    elif node.id in nodes_of(view) or is_in_flight(view, sight):
        return
    known = "no cell and no row of the API level knows it"
    where = known if view is None else whereabouts(view, own_entry(view), places)
    yield Fault(
        STRAY_ON_NODE,
        instance,
        f"instance {instance}: Ironic has it on {node.words}, and {where}",
        advice=f"`moor node undeploy {node.id}` takes it off; what another program put there is to stay",
        version=(view and view.version,),
    )


def lost_from_node(view: InstanceView, nodes: NodesInIronic, sight: Sight, places: Places) -> Iterator[Fault]:
    """The fault of an instance that is at rest on a node by its cell, and not by Ironic. Nodes of another Ironic are not judged."""
    entry = own_entry(view)
    if entry is None or entry.kind != NODE or entry.host is None or entry.instance.state not in _THERE:
        return
    node = nodes.get(entry.host)
    if node is None or node.is_busy or node.instance == view.id or is_in_flight(view, sight):
        return
    yield Fault(
        LOST,
        view.id,
        f"instance {view.id}: it is {entry.instance.state} on {places.name(entry.host)} in cell {entry.instance.cell}, and "
        f"Ironic has {f'instance {node.instance}' if node.instance else 'no instance'} on {node.words}",
        advice="look what became of it in Ironic, or `moor delete` it",
        version=(view.version, node.instance),
    )
