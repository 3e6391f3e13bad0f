"""A simulated Ironic on the simulated clock. Its notifications go over the simulated broker; each daemon calls its REST
API in memory through a `FaultyIronicApi`. The plan's changes of nodes are applied here.
"""

import asyncio
import random
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar
from uuid import NAMESPACE_OID, UUID, uuid5

import msgspec
from msgspec import UNSET, structs

from bus.broker import Connection
from bus.memory import MemoryBroker
from engine.inventories import ProviderId
from ironic_sync import rest
from ironic_sync.core import node as known
from ironic_sync.core.node import NodeData, node_of
from ironic_sync.rest import changed_at
from ironic_sync.settings import DaemonRules
from kit.errors import Locked, TookTooLong, Unavailable
from laboratory.ironic import (
    IronicScript,
    IronicSimSettings,
    NotificationSender,
    RequestRefused,
    SimulatedIronic,
    SimulatedNode,
    WorkDurations,
)
from laboratory.ironic.node import CONFLICT, NodeTable
from laboratory.ironic.script import BmcSilent, Loses
from laboratory.ironic.work import IronicOrder
from tests.ironic_clients.allocations import Allocation, Allocations
from tests.ironic_clients.nodes import create, delete, set_traits
from tests.planted.replacing import around, replaced
from tests.simulation.findings import Findings
from tests.simulation.loop import until_s
from tests.simulation.nodes_checker import NodesChecker, id_of
from tests.simulation.plan import GROUPS_OF_NODES, Flip, Plan
from tests.simulation.process import EPOCH, SimProcess

T = TypeVar("T")

SETTINGS = IronicSimSettings(
    delays=WorkDurations(
        verify_s=0.1,
        clean_s=0.4,
        deploy_s=0.8,
        tear_down_s=0.3,
        power_s=0.1,
        agent_call_s=0.3,
        power_sync_s=3.0,
    )
)
PAGE = 10
TRIES_MAX = 3
# How long Ironic's API takes to answer; mostly no time.
ANSWER_TIMES_S = (0.0, 0.0, 0.0, 0.01, 0.05, 0.3, 1.0)
FIELDS = NodeData.__struct_fields__
CLASSES = ("metal-a", "metal-b")
_OTHER_GROUPS = dict(zip(GROUPS_OF_NODES, reversed(GROUPS_OF_NODES), strict=True))


def foreign_instance(node: str) -> str:
    """The id of an instance that another program deploys on a node."""
    return str(uuid5(NAMESPACE_OID, f"of another program: {node}"))


class IronicWorld:
    """Ironic, and the operators and programs that change its nodes without Moorage."""

    def __init__(self, plan: Plan, findings: Findings, memory: MemoryBroker, nodes: NodesChecker) -> None:
        self._plan = plan
        self._findings = findings
        self._nodes = nodes
        loop = asyncio.get_running_loop()
        self._clock_s = lambda: EPOCH.timestamp() + loop.time()
        self._sender = NotificationSender(_IronicBroker(memory), SETTINGS)
        self.ironic = SimulatedIronic(
            plan.nodes,
            self._clock_s,
            self._sender.publish,
            SETTINGS,
            script=plan.ironic,
            chance=random.Random(f"{plan.seed} ironic"),
        )
        self.allocations = Allocations(self.ironic)
        self.nodes = nodes
        # The names of nodes that were deleted with an instance of this cloud; they do not come back.
        self._vanished: set[str] = set()
        # Daemons take only a few off by themselves.
        self._late_left = DaemonRules().undeploys_unasked
        # All changes of the plan were made.
        self.has_played = False
        nodes.created(self.ironic.nodes.values())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.ironic.run())
            tasks.create_task(self._sender.run())
            tasks.create_task(self._play())

    def stop_faults(self) -> None:
        """All BMCs answer, the API is up, and no notification is lost but those that Ironic never sends."""
        never_sent = [
            each for each in self._plan.ironic.faults if isinstance(each, Loses) and each.probability == 1
        ]
        self.ironic.script = IronicScript(faults=tuple(never_sent))
        self.ironic.come_back()

    def has_lost(self, node: ProviderId) -> bool:
        return str(node) not in self.ironic.nodes

    def mend(self) -> None:
        """An operator has repaired what kept nodes from being cleaned."""
        for node in [*self.ironic.nodes.values()]:
            if node.provision_state == "clean failed":
                if node.maintenance:
                    self.ironic.set_maintenance(node.uuid, is_on=False)
                self.ironic.provision(node.uuid, "manage")

    async def _play(self) -> None:
        for flip in self._plan.flips:
            await until_s(flip.at_s)
            if self._findings.broken is None:
                self._flip(flip)
        self.has_played = True

    def _flip(self, flip: Flip) -> None:
        name = flip.node
        node = self.ironic.node(name)
        how = "done"
        try:
            if node is not None:
                getattr(self, f"_{flip.action}")(node, flip.seed)
            elif flip.action == "delete" and name not in self._vanished:
                self._enrol(name)
        except RequestRefused:
            how = "refused"
        self._findings.count("flip", f"{flip.action} {how}")

    # Changes of a node; each undoes itself the second time

    def _maintain(self, node: SimulatedNode, seed: int) -> SimulatedNode:
        is_on = not node.maintenance
        if seed % 4 == 0:
            return self._patched(node, "replace", "maintenance", is_on)
        return self.ironic.set_maintenance(node.uuid, is_on=is_on, reason="maintenance" if is_on else None)

    def _provision(self, node: SimulatedNode, _lot: int) -> SimulatedNode | None:
        if node.instance_uuid:
            return None
        target = {
            "available": "manage",
            "manageable": "provide",
            "enroll": "manage",
            "clean failed": "manage",
        }
        return self.ironic.provision(node.uuid, target.get(node.provision_state, "abort"))

    def _heal(self, node: SimulatedNode, seed: int) -> SimulatedNode | None:
        """Take one step towards a node that may be claimed."""
        if node.instance_uuid == foreign_instance(node.uuid):
            return self._occupy(node, seed)
        if node.maintenance:
            return self._maintain(node, seed)
        if node.retired:
            return self._retire(node, seed)
        if node.resource_class is None:
            return self._class(node, 0)
        return None if node.provision_state == "available" else self._provision(node, seed)

    def _retire(self, node: SimulatedNode, _lot: int) -> SimulatedNode:
        return self._patched(node, "replace", "retired", not node.retired)

    def _power(self, node: SimulatedNode, seed: int) -> SimulatedNode:
        return self.ironic.set_power(node.uuid, "power on" if seed % 2 else "power off")

    def _bmc(self, node: SimulatedNode, seed: int) -> None:
        script, silence = self.ironic.script, BmcSilent(nodes=(node.uuid,))
        others = tuple(each for each in script.faults if each != silence)
        faults = others if seed % 2 else (*others, silence)
        self.ironic.script = structs.replace(script, faults=faults)

    def _traits(self, node: SimulatedNode, seed: int) -> SimulatedNode:
        names = [
            name for bit, name in enumerate(("CUSTOM_A", "CUSTOM_B", "HW_CPU_X86_VMX")) if seed >> bit & 1
        ]
        return set_traits(self.ironic, node.uuid, names)

    def _class(self, node: SimulatedNode, seed: int) -> SimulatedNode:
        value = (*CLASSES, *CLASSES, None)[seed % 5]
        return self._patched(node, "replace", "resource_class", value)

    def _move(self, node: SimulatedNode, _lot: int) -> SimulatedNode:
        """Move the node to the conductor group of another cell."""
        return self._patched(node, "replace", "conductor_group", _OTHER_GROUPS[node.conductor_group])

    def _occupy(self, node: SimulatedNode, _lot: int) -> SimulatedNode | None:
        """Another program deploys on the node, or leaves it."""
        foreign = foreign_instance(node.uuid)
        if node.instance_uuid == foreign:
            return self._patched(node, "remove", "instance_uuid", None)
        return self._patched(node, "add", "instance_uuid", foreign) if node.instance_uuid is None else None

    def _allocate(self, node: SimulatedNode, seed: int) -> None:
        uuid = str(uuid5(NAMESPACE_OID, f"allocation {node.uuid}"))
        if uuid in self.allocations.present:
            self.allocations.delete(uuid)
            return
        wanted = (node.uuid,) if seed % 2 else ()
        self.allocations.create(
            Allocation(uuid=uuid, resource_class=node.resource_class or CLASSES[0], candidate_nodes=wanted)
        )

    def _delete(self, node: SimulatedNode, _lot: int) -> SimulatedNode | None:
        return None if node.instance_uuid else delete(self.ironic, node.uuid)

    def _vanish(self, node: SimulatedNode, _lot: int) -> SimulatedNode:
        """An operator deletes the node although an instance of this cloud is active on it."""
        if node.provision_state != "active" or node.instance_uuid not in self._plan.instance_ids:
            raise RequestRefused(CONFLICT, f"node {node.uuid} has no active instance of this cloud")
        if not node.maintenance:
            self.ironic.set_maintenance(node.uuid, is_on=True, reason="it is taken away")
        gone = delete(self.ironic, node.uuid)
        self._vanished.add(str(node.name))
        return gone

    def _arrive(self, node: SimulatedNode, seed: int) -> SimulatedNode:
        """A request of a deploy that was given up arrives late: an instance is on the node once more whose attempt is over."""
        here = {each.instance_uuid for each in self.ironic.nodes.values()}
        were = [each for each in self._nodes.built_on(id_of(node)) if str(each) not in here]
        if not were or not self._late_left or node.instance_uuid or node.provision_state != "available":
            raise RequestRefused(CONFLICT, f"node {node.uuid} had no instance of this cloud, or is not free")
        self._late_left -= 1
        return self._patched(node, "add", "instance_uuid", str(were[seed % len(were)]))

    def _enrol(self, name: str) -> SimulatedNode:
        first = next(node for node in self._plan.nodes if node.name == name)
        fields = {
            "uuid": first.uuid,
            "name": name,
            "driver": first.driver,
            "resource_class": first.resource_class,
            "conductor_group": first.conductor_group,
        }
        create(self.ironic, fields)
        return self.ironic.provision(first.uuid, "manage")

    def _patched(self, node: SimulatedNode, op: str, field: str, value: object) -> SimulatedNode:
        operation = {"op": op, "path": f"/{field}"} | ({} if op == "remove" else {"value": value})
        return self.ironic.patch(node.uuid, [operation])


class FaultyIronicApi(rest.HttpIronicApi):
    """Ironic's REST API as one daemon reaches it, without HTTP."""

    def __init__(self, world: IronicWorld, process: SimProcess, instances: frozenset[str]) -> None:
        self._ironic = world.ironic
        self._allocations = world.allocations
        self._checker = world.nodes
        self._process = process
        self._loop = asyncio.get_running_loop()
        # The instances that this cloud may deploy on nodes.
        self._instances = instances
        self._asked = 0
        self._may_act_on: Callable[[ProviderId], bool] = lambda _: True

    async def pages(self) -> AsyncGenerator[rest.NodesRead, None]:
        after = 0
        while True:
            asked_s = await self._reach_api()
            self._ironic.advance()
            some = [*self._ironic.nodes.values()][after : after + PAGE]
            read = [as_api_answer(node) for node in some]
            self._checker.api_answered(self._process, read, asked_s)
            await self._return_answer()
            if read:
                yield rest.NodesRead(tuple(read))
            if len(read) < PAGE:
                return
            after += PAGE

    async def changed_since(
        self, since: datetime, by: rest.ChangeTime = "updated_at"
    ) -> AsyncGenerator[tuple[rest.Changed, ...], None]:
        asked_s = await self._reach_api()
        self._ironic.advance()
        written = [
            (changed_at({"updated_at": each.updated_at, "created_at": each.created_at}, by), each)
            for each in self._ironic.nodes.values()
        ]
        changed = [
            rest.Changed(as_api_answer(node), at) for at, node in written if at is not None and at >= since
        ]
        changed.sort(key=lambda each: each.at, reverse=True)
        self._checker.api_answered(self._process, [each.node for each in changed], asked_s)
        await self._return_answer()
        yield tuple(changed)

    async def node(self, node: ProviderId) -> known.Node | None:
        asked_s = await self._reach_api()
        found = self._ironic.node(str(node))
        read = None if found is None else as_api_answer(found)
        if read is None:
            self._checker.was_read(self._process, node, asked_s)
        else:
            self._checker.api_answered(self._process, [read], asked_s)
        await self._return_answer()
        return read

    async def node_of_allocation(self, allocation: UUID) -> ProviderId | None:
        await self._reach_api()
        found = self._allocations.find(str(allocation))
        await self._return_answer()
        return ProviderId(UUID(found.node_uuid)) if found is not None and found.node_uuid else None

    async def vifs(self, node: ProviderId) -> tuple[str, ...] | rest.IronicRefused:
        await self._reach_api()
        found = self._ironic.node(str(node))
        await self._return_answer()
        return rest.IronicRefused(404, f"Node {node} does not exist.") if found is None else found.vifs

    async def validate(self, node: ProviderId) -> Mapping[str, known.InterfaceCheck] | rest.IronicRefused:
        await self._reach_api()
        reasons = _asked(self._ironic.why_not_deployable, str(node))
        await self._return_answer()
        if isinstance(reasons, RequestRefused):
            return rest.IronicRefused(reasons.status, reasons.text)
        return {name: known.InterfaceCheck(not why, why) for name, why in reasons.items()}

    def order_only_if(self, may_act_on: Callable[[ProviderId], bool]) -> None:
        self._may_act_on = may_act_on

    async def patch(
        self, node: ProviderId, changes: Sequence[rest.PatchOperation]
    ) -> rest.IronicRefused | None:
        operations = [
            {"op": each.op, "path": each.path} | ({} if each.value is UNSET else {"value": each.value})
            for each in changes
        ]
        return await self._ordered(node, "patch", lambda uuid: self._ironic.patch(uuid, operations))

    async def set_provision_state(
        self,
        node: ProviderId,
        target: str,
        *,
        configdrive: Mapping[str, Any] | str | None = None,
        **_others: object,
    ) -> rest.IronicRefused | None:
        order = IronicOrder(target=target, configdrive=configdrive)
        return await self._ordered(node, target, lambda uuid: self._ironic.provision(uuid, order))

    async def attach_vif(self, node: ProviderId, vif: str) -> rest.IronicRefused | None:
        return await self._ordered(node, "attach", lambda uuid: self._ironic.attach_vif(uuid, vif))

    async def detach_vif(self, node: ProviderId, vif: str) -> rest.IronicRefused | None:
        return await self._ordered(node, "detach", lambda uuid: self._ironic.detach_vif(uuid, vif))

    async def _ordered(
        self, node: ProviderId, what: str, order: Callable[[str], SimulatedNode]
    ) -> rest.IronicRefused | None:
        """Give Ironic an order about a node. While the node is locked, try again a few times, as HttpIronicApi does it."""
        locked = ""
        for _ in range(TRIES_MAX):
            await self._process.point("before_commit")
            if not self._may_act_on(node):
                raise rest.NoLongerOurs(f"node {node} is no longer this daemon's")
            self._checker.ordered(self._process, node, what)
            asked_s = await self._reach_api()
            before = self._checker.instance_on(node)
            done = _asked(order, str(node))
            if before is not None and before not in self._instances and not isinstance(done, RequestRefused):
                self._checker.changed_foreign(self._process, node, what, before, asked_s)
            if what == "attach" and not isinstance(done, RequestRefused):
                self._checker.accepted_port(node)
            await self._process.point("after_commit")
            if self._process.take_armed("lost_answer"):
                self._process.fired("lost_answer", what)
                raise TookTooLong(f"Ironic did not answer {what} of {node}")
            await self._return_answer()
            if not isinstance(done, RequestRefused):
                return None
            if "locked" not in done.text:
                return rest.IronicRefused(done.status, done.text)
            locked = done.text
            await asyncio.sleep(0.2)
        raise Locked(f"Ironic: node {node} is locked: {locked}")

    async def _reach_api(self) -> float:
        """Wait until the request has reached the API. Returns when it was sent."""
        asked_s = self._loop.time()
        await self._wait()
        if self._ironic.away:
            raise Unavailable("Ironic is away")
        return asked_s

    async def _return_answer(self) -> None:
        await self._wait()
        if self._process.is_dead:
            await asyncio.Event().wait()

    async def _wait(self) -> None:
        await self._process.until_awake()
        self._asked += 1
        seed = zlib.crc32(f"{self._process.full_name} {self._loop.time():.6f} {self._asked}".encode())
        if takes_s := ANSWER_TIMES_S[seed % len(ANSWER_TIMES_S)]:
            await asyncio.sleep(takes_s)
        await self._process.until_awake()


class _IronicBroker:
    """The broker as Ironic's own notification sender reaches it: a `Broker`."""

    user = ""

    def __init__(self, memory: MemoryBroker) -> None:
        self._memory = memory

    async def connect(self) -> Connection:
        return self._memory.connect(self.user)


def as_api_answer(node: SimulatedNode) -> known.Node:
    return node_of(msgspec.convert({field: getattr(node, field) for field in FIELDS}, NodeData))


@contextmanager
def watched_nodes(nodes: NodesChecker) -> Iterator[None]:
    """Report each change of a node at Ironic to the checker."""

    def change(real: Any, table: NodeTable, node: SimulatedNode, *others: SimulatedNode) -> None:
        real(table, node, *others)
        nodes.changed(id_of(node), table.nodes.get(node.uuid))

    with (
        replaced(NodeTable, "add", around(change)),
        replaced(NodeTable, "replace", around(change)),
        replaced(NodeTable, "remove", around(change)),
    ):
        yield


def _asked(ask: Callable[[str], T], node: str) -> T | RequestRefused:
    """Ironic's answer, or its refusal as a value and not raised, since it may still be lost on its way to the daemon."""
    try:
        return ask(node)
    except RequestRefused as refused:
        return refused
