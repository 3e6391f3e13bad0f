"""Changes the state of nodes, and builds on them and deletes again; so many at once, or so many a second.

A state change is a node's maintenance, on or off. Its latency is the time from Ironic's notification, as it is handed to the
bus, to the event by which placement tells everybody that the node may not, or may, be claimed. That of a boot is the time from
its request to the event that its instance is active.
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
from bus.publisher import Outgoing
from bus.station import Station
from compute_sim.ironic import Refused, SimulatedIronic
from moor.bare_metal import flavor_of_nodes
from moor.load.metal.watching import Watch
from moor.request_ids import new_request_ids

FLAVOR = flavor_of_nodes("load")
PROJECT = "moor-load"
DEADLINE_S = 600

Tell = Callable[[int], None]


class Fired(Struct):
    """When it began and ended, and how long each took."""

    began_s: float
    ended_s: float = 0.0
    latencies_s: list[float] = []


async def fire_changes(
    watch: Watch, ironic: SimulatedIronic, count: int, *, in_flight: int, rate: float, tell: Tell
) -> Fired:
    """With a rate, so many a second are begun, as long as no more are under way than that."""
    fired = Fired(time.perf_counter())
    idle = deque(sorted(watch.nodes))
    # What placement must say, and since when it is waited for.
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
        done = ironic.set_maintenance(str(node), is_on=bool(reserved), reason="moor load")
        assert not isinstance(done, Refused), f"the simulated Ironic refuses: {done}"
    await watch.until(lambda: not under_way, "state changes are under way")
    return fired


async def end_maintenance(watch: Watch, ironic: SimulatedIronic) -> None:
    """An odd number of changes leaves nodes in maintenance."""
    watch.on_stock = lambda _: None
    for node in [*ironic.nodes.values()]:
        if node.maintenance:
            ironic.set_maintenance(node.uuid, is_on=False)
    await watch.until(lambda: all(each.is_free for each in watch.stocks.values()), "nodes are given back")


class Boot(Struct):
    asked_s: float
    deleted_at_s: float = 0.0
    state: InstanceState | None = None


class Deploys(Struct):
    """The boots, each of which was deleted again, and how long their nodes took to be offered again."""

    fired: Fired
    boots: dict[RequestId, Boot]
    free_again_s: list[float] = []

    @property
    def states(self) -> list[InstanceState]:
        return [boot.state for boot in self.boots.values() if boot.state is not None]


class Deployer:
    """A boot is over when its instance is deleted and its node offered again."""

    def __init__(self, watch: Watch, client: Station, tell: Tell) -> None:
        self.deploys = Deploys(Fired(time.perf_counter()), {})
        self._watch = watch
        self._client = client
        self._tell = tell
        self._open: set[RequestId] = set()
        # By the node that is to be clean again.
        self._cleaning: dict[ProviderId, Boot] = {}
        self._nodes = {str(node): node for node in watch.nodes}

    async def fire(self, count: int, in_flight: int) -> Deploys:
        self._watch.on_message, self._watch.on_stock = self._hear, self._cleaned
        for id_ in new_request_ids(count):
            await self._watch.until(lambda: self._under_way < in_flight, "boots are under way")
            self._open.add(id_)
            self.deploys.boots[id_] = Boot(time.perf_counter())
            request = BuildInstance(request_id=id_, flavor=FLAVOR, project=PROJECT, deadline_s=DEADLINE_S)
            self._client.publisher.send_all([Outgoing(request)])
        await self._watch.until(lambda: not self._under_way, "boots are under way")
        return self.deploys

    @property
    def _under_way(self) -> int:
        return len(self._open) + len(self._cleaning)

    def _hear(self, message: Message) -> None:
        match message:
            case InstanceActive(instance=state) | InstanceFailed(instance=state):
                self._ended(state)
            case InstanceDeleted(instance=state) if state.request_id in self._open:
                self._open.discard(state.request_id)
                self._wait_for_node(self.deploys.boots[state.request_id])
            case BuildRejected() as rejected:
                raise RuntimeError(f"a request was rejected: {rejected}")
            case _:
                pass

    def _ended(self, state: InstanceState) -> None:
        boot = self.deploys.boots.get(state.request_id)
        if boot is None or boot.state is not None:
            return
        now_s = time.perf_counter()
        boot.state, boot.deleted_at_s = state, now_s
        if state.state == "active":
            self.deploys.fired.latencies_s.append(now_s - boot.asked_s)
        self._client.publisher.send_all([Outgoing(DeleteInstance(instance=state.id))])

    def _wait_for_node(self, boot: Boot) -> None:
        assert boot.state is not None, "it was deleted after its end"
        node = self._nodes.get(boot.state.host)
        if boot.state.state == "active" and node is not None:
            self._cleaning[node] = boot
            self._cleaned(node)
        else:
            self._over()

    def _cleaned(self, node: ProviderId) -> None:
        if node in self._cleaning and self._watch.stocks[node].is_free:
            boot = self._cleaning.pop(node)
            self.deploys.free_again_s.append(time.perf_counter() - boot.deleted_at_s)
            self._over()

    def _over(self) -> None:
        self.deploys.fired.ended_s = time.perf_counter()
        self._tell(len(self.deploys.boots) - self._under_way)
