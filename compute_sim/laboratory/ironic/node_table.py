"""The current nodes, indexed by uuid, name and instance."""

from collections.abc import Callable, Collection

from msgspec import Struct

from compute_sim.laboratory.ironic.core.changes import ValuesInUse
from compute_sim.laboratory.ironic.core.node import SimulatedNode


class NodeChange(Struct, frozen=True, array_like=True):
    """A changed node; None if it was deleted. The file of nodes has a line for each change."""

    uuid: str
    node: SimulatedNode | None = None


# Called for each change.
Keep = Callable[[NodeChange], None]


class NodeTable:
    """The present nodes of the simulated Ironic; a new table has none. `keep` stores each change of them."""

    def __init__(self, conductor_groups: Collection[str], keep: Keep) -> None:
        # In the order in which they were created.
        self.nodes: dict[str, SimulatedNode] = {}
        self._conductor_groups = conductor_groups
        self._keep = keep
        self._names: dict[str, str] = {}
        self._instances: dict[str, str] = {}

    def find(self, ident: str) -> SimulatedNode | None:
        return self.nodes.get(self._names.get(ident, ident))

    @property
    def in_use(self) -> ValuesInUse:
        return ValuesInUse(self._names.keys(), self._instances.keys(), self._conductor_groups)

    def add(self, node: SimulatedNode) -> None:
        if node.uuid in self.nodes:
            raise ValueError(f"two nodes have the uuid {node.uuid}")
        self.nodes[node.uuid] = node
        self._index(node)
        self._keep(NodeChange(node.uuid, node))

    def replace(self, old: SimulatedNode, new: SimulatedNode) -> None:
        if old.name != new.name or old.instance_uuid != new.instance_uuid:
            self._unindex(old)
            self._index(new)
        self.nodes[new.uuid] = new
        self._keep(NodeChange(new.uuid, new))

    def remove(self, node: SimulatedNode) -> None:
        self._unindex(node)
        del self.nodes[node.uuid]
        self._keep(NodeChange(node.uuid))

    def _index(self, node: SimulatedNode) -> None:
        if node.name is not None:
            self._names[node.name] = node.uuid
        if node.instance_uuid is not None:
            self._instances[node.instance_uuid] = node.uuid

    def _unindex(self, node: SimulatedNode) -> None:
        if node.name is not None:
            self._names.pop(node.name, None)
        if node.instance_uuid is not None:
            self._instances.pop(node.instance_uuid, None)
