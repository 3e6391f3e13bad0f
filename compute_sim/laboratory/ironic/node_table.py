"""The current nodes and allocations, indexed by uuid, name and instance."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal

from msgspec import Struct

from compute_sim.laboratory.ironic.core.allocations import Allocation
from compute_sim.laboratory.ironic.core.changes import ValuesInUse
from compute_sim.laboratory.ironic.core.node import SimulatedNode


class TableChange(Struct, frozen=True, array_like=True):
    """A changed node or allocation. If both fields are None, the one with this uuid was deleted.

    A line of the file of nodes is one change. Lines that an older release wrote are only about nodes, and have no
    fields after `node`.
    """

    uuid: str
    node: SimulatedNode | None = None
    kind: Literal["node", "allocation"] = "node"
    allocation: Allocation | None = None


# Called for each change. Changes in one call must be stored together or not at all.
Keep = Callable[[Sequence[TableChange]], None]


class NodeTable:
    """The present nodes and allocations of the simulated Ironic. `keep` stores each change of them.

    A new table has no nodes, and the allocations that its creator gives it.
    """

    def __init__(
        self, conductor_groups: Collection[str], keep: Keep, allocations: Iterable[Allocation] = ()
    ) -> None:
        # In the order in which they were created.
        self.nodes: dict[str, SimulatedNode] = {}
        self.allocations: dict[str, Allocation] = {each.uuid: each for each in allocations}
        self._conductor_groups = conductor_groups
        self._keep = keep
        self._names: dict[str, str] = {}
        self._instances: dict[str, str] = {}

    def find(self, ident: str) -> SimulatedNode | None:
        return self.nodes.get(self._names.get(ident, ident))

    def find_allocation(self, ident: str) -> Allocation | None:
        found = self.allocations.get(ident)
        return found or next((each for each in self.allocations.values() if each.name == ident), None)

    @property
    def names_in_use(self) -> ValuesInUse:
        return ValuesInUse(
            self.nodes.keys(), self._names.keys(), self._instances.keys(), self._conductor_groups
        )

    def add(self, node: SimulatedNode) -> None:
        if node.uuid in self.nodes:
            raise ValueError(f"two nodes have the uuid {node.uuid}")
        self.nodes[node.uuid] = node
        self._index(node)
        self._keep((TableChange(node.uuid, node),))

    def replace(self, old: SimulatedNode, new: SimulatedNode, allocation: Allocation | None = None) -> None:
        """Replace a node, together with the `allocation` that takes it. An allocation that the node no longer has is
        deleted.
        """
        if old.name != new.name or old.instance_uuid != new.instance_uuid:
            self._unindex(old)
            self._index(new)
        self.nodes[new.uuid] = new
        changes: list[TableChange] = [TableChange(new.uuid, new)]
        if allocation is not None:
            self.allocations[allocation.uuid] = allocation
            changes.append(TableChange(allocation.uuid, kind="allocation", allocation=allocation))
        if old.allocation_uuid is not None and new.allocation_uuid is None:
            changes += self._without_allocation(old.allocation_uuid)
        self._keep(changes)

    def remove(self, node: SimulatedNode) -> None:
        self._unindex(node)
        del self.nodes[node.uuid]
        gone = () if node.allocation_uuid is None else self._without_allocation(node.allocation_uuid)
        self._keep((TableChange(node.uuid), *gone))

    def write_allocation(self, allocation: Allocation) -> None:
        self.allocations[allocation.uuid] = allocation
        self._keep((TableChange(allocation.uuid, kind="allocation", allocation=allocation),))

    def remove_allocation(self, uuid: str) -> None:
        self._keep(self._without_allocation(uuid))

    def _without_allocation(self, uuid: str) -> Sequence[TableChange]:
        gone = self.allocations.pop(uuid, None)
        return () if gone is None else (TableChange(uuid, kind="allocation"),)

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
