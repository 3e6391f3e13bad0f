"""Ironic's own allocations: the API creates them, and the conductor finds a node a moment later."""

from collections.abc import Callable
from functools import partial

from msgspec import structs

from compute_sim.laboratory.ironic.announcing import NotificationAnnouncer
from compute_sim.laboratory.ironic.core.allocations import (
    ALLOCATING,
    Allocation,
    AllocationWritten,
    allocate,
    check_deletable,
)
from compute_sim.laboratory.ironic.core.json_patch import operations_of, patched
from compute_sim.laboratory.ironic.core.node import second
from compute_sim.laboratory.ironic.core.refusals import BAD_REQUEST, CONFLICT, NOT_FOUND, RequestRefused
from compute_sim.laboratory.ironic.node_table import NodeTable
from compute_sim.laboratory.ironic.timers import Action


class Allocator:
    def __init__(
        self,
        table: NodeTable,
        announcer: NotificationAnnouncer,
        at: Callable[[float, Action], None],
        allocation_s: float,
    ) -> None:
        self._table = table
        self._announcer = announcer
        self._at = at
        self._allocation_s = allocation_s

    def create(self, allocation: Allocation, now_s: float, request: str) -> Allocation:
        if allocation.uuid in self._table.allocations:
            raise RequestRefused(CONFLICT, f"There is an allocation with UUID {allocation.uuid} already.")
        if allocation.name is not None and self._table.find_allocation(allocation.name) is not None:
            raise RequestRefused(CONFLICT, f"There is an allocation with name {allocation.name} already.")
        self._announcer.say(AllocationWritten(allocation, "create", "start"), now_s, request)
        created = structs.replace(allocation, state=ALLOCATING, created_at=second(now_s))
        self._table.write_allocation(created)
        self._announcer.say(AllocationWritten(created, "create", "end"), now_s, request)
        self._plan(created, now_s)
        return created

    def resume(self, now_s: float) -> None:
        """Resume allocations that had no node when their process was killed."""
        for allocation in self._table.allocations.values():
            if allocation.state == ALLOCATING:
                self._plan(allocation, now_s)

    def patch(self, ident: str, operations: object, now_s: float, request: str) -> Allocation:
        """Change the allocation. The notification lacks the node, as Ironic's does."""
        allocation = self._found(ident)
        changed = _patched(allocation, operations)
        start = structs.replace(changed, node_uuid=None)
        self._announcer.say(AllocationWritten(start, "update", "start"), now_s, request)
        changed = structs.replace(changed, updated_at=second(now_s))
        self._table.write_allocation(changed)
        end = structs.replace(start, updated_at=second(now_s))
        self._announcer.say(AllocationWritten(end, "update", "end"), now_s, request)
        return changed

    def delete(self, ident: str, now_s: float, request: str) -> None:
        allocation = self._found(ident)
        self._announcer.say(AllocationWritten(allocation, "delete", "start"), now_s, request)
        node = self._table.nodes.get(allocation.node_uuid or "")
        try:
            if node is not None:
                check_deletable(allocation, node)
        except RequestRefused:
            self._announcer.say(AllocationWritten(allocation, "delete", "error"), now_s, request)
            raise
        if node is None:
            self._table.remove_allocation(allocation.uuid)
        else:
            free = structs.replace(node, instance_uuid=None, allocation_uuid=None, updated_at=second(now_s))
            self._table.replace(node, free)
        self._announcer.say(AllocationWritten(allocation, "delete", "end"), now_s, request)

    def _found(self, ident: str) -> Allocation:
        allocation = self._table.find_allocation(ident)
        if allocation is None:
            raise RequestRefused(NOT_FOUND, f"Allocation {ident} does not exist.")
        return allocation

    def _plan(self, allocation: Allocation, now_s: float) -> None:
        self._at(now_s + self._allocation_s, partial(self._pick, allocation.uuid))

    def _pick(self, uuid: str, at_s: float) -> None:
        allocation = self._table.allocations.get(uuid)
        if allocation is None:
            return
        nodes = self._table.nodes
        allocation, node = allocate(allocation, nodes.values(), at_s)
        if node is None:
            self._table.write_allocation(allocation)
        else:
            self._table.replace(nodes[node.uuid], node, allocation)


def _patched(allocation: Allocation, document: object) -> Allocation:
    for operation in operations_of(document):
        field, *inside = operation.keys
        if field not in ("name", "extra"):
            raise RequestRefused(
                BAD_REQUEST, f"Cannot patch {operation.path}. Only these can be: name, extra."
            )
        new = patched(getattr(allocation, field), inside, operation)
        allocation = structs.replace(allocation, **{field: {} if field == "extra" and new is None else new})
    return allocation
