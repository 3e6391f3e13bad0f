"""Changes the states of nodes, builds on them and deletes again: a bounded number at a time, or a number per second.

A state change switches a node's maintenance on or off. Its latency is the time from Ironic's notification, handed to the
bus, until placement's event that the node is reserved or free. The latency of a boot is the time from its request until the
event that its instance is active.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

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
from bus.workers.publisher import Outgoing
from bus.workers.station import Station
from compute_sim.laboratory.ironic import SimulatedIronic
from moor.clouds.bare_metal import flavor_of_nodes
from moor.instances.request_ids import new_request_ids
from moor.laboratory.load.metal.watching import NodeWatch

FLAVOR = flavor_of_nodes("load")
PROJECT = "moor-load"
DEADLINE_S = 600

Tell = Callable[[int], None]


class Timings(Struct):
    """When a phase of the run began and ended, and the latency of each operation."""

    began_s: float
    ended_s: float = 0.0
    latencies_s: list[float] = []


async def fire_changes(
    watch: NodeWatch, ironic: SimulatedIronic, count: int, *, in_flight: int, rate: float, tell: Tell
) -> Timings:
    """Set or end the maintenance of nodes, `count` times, and time each until placement has the new reserved amount.

    At most `in_flight` changes are under way. With a rate, that many are started per second.
    """
    fired = Timings(time.perf_counter())
    idle = deque(sorted(watch.nodes))
    # By node: the reserved amount that placement must report, and when the change was made.
    under_way: dict[ProviderId, tuple[int, float]] = {}

    def settle(node: ProviderId) -> None:
        wanted, since_s = under_way.get(node, (-1, 0.0))
        if watch.stocks[node].reserved == wanted:
            del under_way[node]
            fired.ended_s = time.perf_counter()
            fired.latencies_s.append(fired.ended_s - since_s)
            idle.append(node)
            tell(len(fired.latencies_s))

    watch.on_stock = settle
    for number in range(count):
        if rate:
            await asyncio.sleep(fired.began_s + number / rate - time.perf_counter())
        await watch.until(lambda: idle and len(under_way) < in_flight, "state changes are under way")
        node = idle.popleft()
        reserved = 1 - watch.stocks[node].reserved
        under_way[node] = (reserved, time.perf_counter())
        ironic.set_maintenance(str(node), is_on=bool(reserved), reason="moor load")
    await watch.until(lambda: not under_way, "state changes are under way")
    return fired


async def end_maintenance(watch: NodeWatch, ironic: SimulatedIronic) -> None:
    """End the maintenance of all nodes, and wait until all are free.

    Nodes whose number of state changes is odd are still in maintenance.
    """
    watch.on_stock = lambda _: None
    for node in [*ironic.nodes.values()]:
        if node.maintenance:
            ironic.set_maintenance(node.uuid, is_on=False)
    await watch.until(lambda: all(each.is_free for each in watch.stocks.values()), "nodes leave maintenance")


class Deploy(Struct):
    """One order of the load: boot an instance on a bare-metal node, and delete it again."""

    sent_s: float
    deleted_at_s: float = 0.0
    state: InstanceState | None = None


class DeployRun:
    """Fires deploys. A deploy is over when its instance is deleted and placement offers its node again. `free_again_s` are the
    times from the delete until then.
    """

    def __init__(self, watch: NodeWatch, client: Station, tell: Tell) -> None:
        self.fired = Timings(time.perf_counter())
        self.boots: dict[RequestId, Deploy] = {}
        self.free_again_s: list[float] = []
        self._watch = watch
        self._client = client
        self._tell = tell
        self._open: set[RequestId] = set()
        # By the node that is being cleaned.
        self._cleaning: dict[ProviderId, Deploy] = {}
        self._nodes = {str(node): node for node in watch.nodes}

    async def fire(self, count: int, in_flight: int) -> None:
        self._watch.on_message, self._watch.on_stock = self._hear, self._cleaned
        for id_ in new_request_ids(count):
            await self._watch.until(lambda: self._under_way < in_flight, "boots are under way")
            self._open.add(id_)
            self.boots[id_] = Deploy(time.perf_counter())
            request = BuildInstance(request_id=id_, flavor=FLAVOR, project=PROJECT, deadline_s=DEADLINE_S)
            self._client.publisher.send_all([Outgoing(request)])
        await self._watch.until(lambda: not self._under_way, "boots are under way")

    @property
    def states(self) -> list[InstanceState]:
        return [boot.state for boot in self.boots.values() if boot.state is not None]

    @property
    def _under_way(self) -> int:
        return len(self._open) + len(self._cleaning)

    def _hear(self, message: Message) -> None:
        match message:
            case InstanceActive(instance=state) | InstanceFailed(instance=state):
                self._ended(state)
            case InstanceDeleted(instance=state) if state.request_id in self._open:
                self._open.discard(state.request_id)
                self._wait_for_node(self.boots[state.request_id])
            case BuildRejected() as rejected:
                raise RuntimeError(f"a request was rejected: {rejected}")
            case _:
                pass

    def _ended(self, state: InstanceState) -> None:
        boot = self.boots.get(state.request_id)
        if boot is None or boot.state is not None:
            return
        now_s = time.perf_counter()
        boot.state, boot.deleted_at_s = state, now_s
        if state.state == "active":
            self.fired.latencies_s.append(now_s - boot.sent_s)
        self._client.publisher.send_all([Outgoing(DeleteInstance(instance=state.id))])

    def _wait_for_node(self, boot: Deploy) -> None:
        assert boot.state is not None, "an instance is deleted only after its end"
        node = self._nodes.get(boot.state.host)
        if boot.state.state == "active" and node is not None:
            self._cleaning[node] = boot
            self._cleaned(node)
        else:
            self._over()

    def _cleaned(self, node: ProviderId) -> None:
        if node in self._cleaning and self._watch.stocks[node].is_free:
            self.free_again_s.append(time.perf_counter() - self._cleaning.pop(node).deleted_at_s)
            self._over()

    def _over(self) -> None:
        self.fired.ended_s = time.perf_counter()
        self._tell(len(self.boots) - self._under_way)
