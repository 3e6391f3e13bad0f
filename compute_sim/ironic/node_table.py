"""The nodes and allocations as they are now, found by uuid, by name and by instance."""

from collections.abc import Callable, Collection

from compute_sim.ironic.core.allocations import Allocation
from compute_sim.ironic.core.changes import Others
from compute_sim.ironic.core.node import Node

Keep = Callable[[str, Node | None], None]


class NodeTable:
    """`keep` is told of each change: the uuid, and the node as it is now, None if it is gone."""

    def __init__(self, conductor_groups: Collection[str], keep: Keep) -> None:
        # In the order in which they were created.
        self.nodes: dict[str, Node] = {}
        self.allocations: dict[str, Allocation] = {}
        self._conductor_groups = conductor_groups
        self._keep = keep
        self._names: dict[str, str] = {}
        self._instances: dict[str, str] = {}

    def find(self, ident: str) -> Node | None:
        return self.nodes.get(self._names.get(ident, ident))

    def find_allocation(self, ident: str) -> Allocation | None:
        found = self.allocations.get(ident)
        return found or next((each for each in self.allocations.values() if each.name == ident), None)

    @property
    def others(self) -> Others:
        return Others(self.nodes.keys(), self._names.keys(), self._instances.keys(), self._conductor_groups)

    def add(self, node: Node) -> None:
        if node.uuid in self.nodes:
            raise ValueError(f"two nodes have the uuid {node.uuid}")
        self.nodes[node.uuid] = node
        self._index(node)
        self._keep(node.uuid, node)

    def replace(self, old: Node, new: Node) -> None:
        """An allocation that the node no longer has is gone."""
        if old.name != new.name or old.instance_uuid != new.instance_uuid:
            self._unindex(old)
            self._index(new)
        if old.allocation_uuid is not None and new.allocation_uuid is None:
            self.allocations.pop(old.allocation_uuid, None)
        self.nodes[new.uuid] = new
        self._keep(new.uuid, new)

    def remove(self, node: Node) -> None:
        self._unindex(node)
        del self.nodes[node.uuid]
        self._keep(node.uuid, None)
        if node.allocation_uuid is not None:
            self.allocations.pop(node.allocation_uuid, None)

    def _index(self, node: Node) -> None:
        if node.name is not None:
            self._names[node.name] = node.uuid
        if node.instance_uuid is not None:
            self._instances[node.instance_uuid] = node.uuid

    def _unindex(self, node: Node) -> None:
        if node.name is not None:
            self._names.pop(node.name, None)
        if node.instance_uuid is not None:
            self._instances.pop(node.instance_uuid, None)
