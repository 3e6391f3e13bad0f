"""Makes the state changes and the deploys of a load run on bare metal, and notes how each of them ended.

A state change switches a node's maintenance on or off. Its latency is the time from when it is due, or from Ironic's notification, handed to
the bus, until placement's event that the node is reserved or free. The latency of a boot is the time from its request until the
event that its instance is active.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from msgspec import Struct

from bus.message import Message, ProviderId
from bus.messages.build import (
    BuildInstance,
    BuildRejected,
    DeleteInstance,
    InstanceActive,
    InstanceDeleted,
    InstanceFailed,
    InstanceState,
    RequestId,
)
from compute_sim.laboratory.ironic import SimulatedIronic
from moor.clouds.bare_metal import flavor_of_nodes
from moor.instances.request_ids import new_request_ids
from moor.laboratory.load.firing import DueOrder, Run
from moor.laboratory.load.metal.watching import NodeStocks
from moor.laboratory.load.sampling import EndedOrder

FLAVOR = flavor_of_nodes("load")
PROJECT = "moor-load"
DEADLINE_S = 600


class ChangeRun(Run):
    """Sets or ends the maintenance of these nodes, `count` times in turn. A change has ended when placement has the node's
    new reserved amount. One that is due while every node has a change under way waits for a node.
    """

    def __init__(
        self,
        stocks: NodeStocks,
        ironic: SimulatedIronic,
        nodes: Iterable[ProviderId],
        count: int,
        *,
        due_s: Sequence[float] = (),
    ) -> None:
        super().__init__(count, due_s=due_s)
        self._stocks = stocks
        self._ironic = ironic
        self._idle = deque(nodes)
        self.changed: list[EndedOrder] = []
        # By node: the reserved amount that placement must report, and when the change was made.
        self._under_way: dict[ProviderId, tuple[int, float]] = {}

    def next_orders(self, count: int) -> Sequence[DueOrder]:
        """Begin changes at the simulated Ironic. There is nothing to send."""
        for _ in range(min(count, len(self._idle))):
            node = self._idle.popleft()
            reserved = 1 - self._stocks.by_node[node].reserved
            self.sent += 1
            due_s = self._take()
            self.late_s.append(self.clock() - due_s)
            self._under_way[node] = (reserved, due_s)
            self._ironic.set_maintenance(str(node), is_on=bool(reserved), reason="moor load")
        return ()

    def hear(self, message: Message) -> None:
        for node in self._stocks.hear(message):
            wanted, due_s = self._under_way.get(node, (-1, 0.0))
            if self._stocks.by_node[node].reserved == wanted:
                del self._under_way[node]
                self._has_ended(due_s)
                self.changed.append(EndedOrder(due_s, self.clock(), is_done=True))
                self._idle.append(node)


class Deploy(Struct):
    """One order of the load: boot an instance on a bare-metal node, and delete it again."""

    sent_s: float
    deleted_at_s: float = 0.0
    state: InstanceState | None = None


class DeployRun(Run):
    """Boots instances, and deletes each at once. A deploy has ended when its instance is deleted and placement offers its
    node again. `free_again_s` are the times from the delete until then.
    """

    def __init__(self, stocks: NodeStocks, count: int) -> None:
        super().__init__(count)
        self.boots: dict[RequestId, Deploy] = {}
        self.free_again_s: list[float] = []
        self._stocks = stocks
        self._deletes: list[Message] = []
        self._open: set[RequestId] = set()
        # By the node that is being cleaned.
        self._cleaning: dict[ProviderId, Deploy] = {}
        self._nodes = {str(node): node for node in stocks.by_node}

    @property
    def booted(self) -> list[EndedOrder]:
        """The boots alone, without the deletes that follow."""
        return [
            EndedOrder(each.sent_s, each.deleted_at_s, each.state.state == "active")
            for each in self.boots.values()
            if each.state is not None
        ]

    @property
    def states(self) -> list[InstanceState]:
        return [boot.state for boot in self.boots.values() if boot.state is not None]

    def next_orders(self, count: int) -> Sequence[DueOrder]:
        """The deletes of the instances that have ended, and the next boots."""
        orders, self._deletes = [DueOrder(self.clock(), each) for each in self._deletes], []
        for id_ in new_request_ids(count):
            self.sent += 1
            self._open.add(id_)
            due_s = self._take()
            self.boots[id_] = Deploy(due_s)
            order = BuildInstance(request_id=id_, flavor=FLAVOR, project=PROJECT, deadline_s=DEADLINE_S)
            orders.append(DueOrder(due_s, order))
        return orders

    def hear(self, message: Message) -> None:
        for node in self._stocks.hear(message):
            self._cleaned(node)
        match message:
            case InstanceActive(instance=state) | InstanceFailed(instance=state):
                self._booted(state)
            case InstanceDeleted(instance=state) if state.request_id in self._open:
                self._open.discard(state.request_id)
                self._wait_for_node(self.boots[state.request_id])
            case BuildRejected() as rejected:
                raise RuntimeError(f"a request was rejected: {rejected}")
            case _:
                pass

    def _booted(self, state: InstanceState) -> None:
        boot = self.boots.get(state.request_id)
        if boot is None or boot.state is not None:
            return
        boot.state, boot.deleted_at_s = state, self.clock()
        if state.state == "active":
            self.latencies_s.append(boot.deleted_at_s - boot.sent_s)
        self._deletes.append(DeleteInstance(instance=state.id))

    def _wait_for_node(self, boot: Deploy) -> None:
        assert boot.state is not None, "an instance is deleted only after its end"
        node = self._nodes.get(boot.state.host)
        if boot.state.state == "active" and node is not None:
            self._cleaning[node] = boot
            self._cleaned(node)
        else:
            self._has_ended()

    def _cleaned(self, node: ProviderId) -> None:
        if node in self._cleaning and self._stocks.by_node[node].is_free:
            self.free_again_s.append(self.clock() - self._cleaning.pop(node).deleted_at_s)
            self._has_ended()
