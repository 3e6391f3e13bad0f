"""The conductor's work on nodes: jobs that end when they are due, and the power sync."""

from collections.abc import Callable, Sequence
from functools import partial

from msgspec import structs

from compute_sim.laboratory.ironic.announcing import NotificationAnnouncer
from compute_sim.laboratory.ironic.core import work
from compute_sim.laboratory.ironic.core.node import SimulatedNode
from compute_sim.laboratory.ironic.core.script import (
    BmcSilent,
    NodeLocked,
    Subject,
    happening,
    why_work_fails,
)
from compute_sim.laboratory.ironic.core.work import POWER_FAILURE, Job, Step, WorkRules
from compute_sim.laboratory.ironic.node_table import NodeTable
from compute_sim.laboratory.ironic.timers import Action

# Jobs that need the node's BMC to answer.
_NEEDS_BMC = frozenset({"verify", "power"})


class Conductor:
    """Runs the jobs of nodes and the power sync, as an Ironic conductor does.

    `at` schedules an action for a time. Notifications of the conductor's own work have the request id `periodic`.
    """

    def __init__(
        self,
        table: NodeTable,
        announcer: NotificationAnnouncer,
        rules: WorkRules,
        at: Callable[[float, Action], None],
        periodic: str,
    ) -> None:
        self._table = table
        self._announcer = announcer
        self._rules = rules
        self._at = at
        self.periodic = periodic
        # The current job of each node, and the request that caused it.
        self._jobs: dict[str, tuple[Job, str]] = {}
        self._is_sync_due = False

    def go(self, node: SimulatedNode, step: Step | None, at_s: float, request: str) -> None:
        """Store the node, publish its notifications, and schedule its next job in place of a former one."""
        if step is None:
            return
        self._jobs.pop(node.uuid, None)
        self._table.replace(node, step.node)
        for said in step.said:
            self._announcer.say(said, at_s, request)
        if step.job is not None:
            self._jobs[node.uuid] = planned = (step.job, request)
            self._at(step.job.due_s, partial(self._finish, node.uuid, planned))

    def resume(self, node: SimulatedNode, at_s: float) -> None:
        self.go(node, work.resumed(node, at_s, self._rules), at_s, self.periodic)

    def forget(self, node: SimulatedNode) -> None:
        self._jobs.pop(node.uuid, None)

    def locked(self, node: SimulatedNode, at_s: float) -> SimulatedNode:
        """The node as clients see it: locked, if the fault script locks it now."""
        script = self._announcer.script
        if not script.faults or node.reservation:
            return node
        since_s = self._announcer.since_s(at_s)
        # The script decides again each second whether the node is locked.
        if any(happening(script, NodeLocked, Subject(node.name, node.uuid, since_s, int(since_s)))):
            return structs.replace(node, reservation=self._rules.host)
        return node

    def is_silent(self, node: SimulatedNode, at_s: float) -> bool:
        about = Subject(node.name, node.uuid, self._announcer.since_s(at_s), 0)
        return any(happening(self._announcer.script, BmcSilent, about))

    def watch_power(self, at_s: float) -> None:
        """Schedule the next power sync if it may find a change.

        That is the case if a fault makes BMCs silent, or if a node has a power failure.
        """
        if self._is_sync_due or not self._suspects():
            return
        self._is_sync_due = True
        self._at(at_s + self._rules.delays.power_sync_s, self._sync_power)

    def _suspects(self) -> Sequence[str]:
        if any(isinstance(fault, BmcSilent) for fault in self._announcer.script.faults):
            return [*self._table.nodes]
        return [uuid for uuid, node in self._table.nodes.items() if node.fault == POWER_FAILURE]

    def _sync_power(self, at_s: float) -> None:
        self._is_sync_due = False
        for uuid in self._suspects():
            node = self._table.nodes[uuid]
            step = work.power_synced(node, self.is_silent(node, at_s), at_s)
            if step is not None:
                self._table.replace(node, step.node)
                for said in step.said:
                    self._announcer.say(said, at_s, self.periodic)
        self.watch_power(at_s)

    def _finish(self, uuid: str, planned: tuple[Job, str], at_s: float) -> None:
        node = self._table.nodes.get(uuid)
        if node is None or self._jobs.get(uuid) is not planned:
            return
        job, request = planned
        if job.name in ("clean timeout", "deploy timeout"):
            request = self.periodic
        step = work.finish(node, job, partial(self._why_fails, node, at_s), at_s, self._rules)
        self.go(node, step, at_s, request)

    def _why_fails(self, node: SimulatedNode, at_s: float, kind: str) -> str:
        if kind in _NEEDS_BMC and self.is_silent(node, at_s):
            return f"Failed to get power state for node {node.uuid}: the BMC did not answer."
        script = self._announcer.script
        return (
            why_work_fails(script, kind, self._announcer.about(node.name, node.uuid, at_s))
            if script.faults
            else ""
        )
