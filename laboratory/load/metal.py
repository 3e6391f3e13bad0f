"""The load on bare metal: state changes, and deploys. Each of them has ended when placement has it.

A state change switches a node's maintenance on or off. Its latency is the time from when it is due, or from Ironic's notification, handed to
the bus, until placement's event that the node is reserved or free. The latency of a boot is the time from its request until the
event that its instance is active.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from bus.message import Message
from bus.messages.build import DeleteInstance, InstanceDeleted, InstanceState
from bus.messages.placement import ProvidersChanged
from engine.flavors import InstanceId
from engine.inventories import InventoryState, ProviderId, ProviderState
from laboratory.ironic import SimulatedIronic
from laboratory.load.firing import DueOrder, EndedOrder, Run
from laboratory.load.orders import METAL, Order, OrderRun, plain


class NodeStock(Struct, frozen=True):
    """Reserved and used amounts of a node's only resource class, as placement has them."""

    reserved: int
    used: int
    revision: int

    @property
    def is_free(self) -> bool:
        return not self.reserved and not self.used


class NodeStocks:
    """The stock of each of these nodes, by its id. Placement's events keep it current."""

    def __init__(self, nodes: Iterable[ProviderId], providers: Iterable[ProviderState]) -> None:
        self.by_node = dict.fromkeys(nodes, NodeStock(0, 0, -1))
        for provider in providers:
            self._is_news_of(provider)

    def hear(self, message: Message) -> Iterator[ProviderId]:
        """The nodes whose stock this message changes, each after its change."""
        if isinstance(message, ProvidersChanged):
            yield from (each.id for each in message.providers if self._is_news_of(each))
            for usage in message.usage:
                known = self.by_node.get(usage.id)
                if known is not None and usage.revision > known.revision:
                    used = max(usage.used.values(), default=0)
                    self.by_node[usage.id] = NodeStock(known.reserved, used, usage.revision)
                    yield usage.id

    def _is_news_of(self, provider: ProviderState) -> bool:
        known = self.by_node.get(provider.id)
        if known is None or provider.revision <= known.revision:
            return False
        stock = next(iter(provider.inventories.values()), InventoryState(total=0))
        self.by_node[provider.id] = NodeStock(stock.reserved, stock.used, provider.revision)
        return True


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
                self.ends.append(EndedOrder(due_s, self.clock(), is_done=True))
                self._has_ended()
                self._idle.append(node)


class DeployRun(OrderRun):
    """Boots instances on nodes, and deletes each at once. A deploy has ended when its instance is deleted and placement offers its
    node again. `free_again_s` are the times from the delete until then.
    """

    def __init__(self, stocks: NodeStocks, count: int) -> None:
        super().__init__(["metal"] * count, METAL, mix=plain("metal"))
        self.free_again_s: list[float] = []
        self._stocks = stocks
        self._deletes: list[InstanceId] = []
        # When each instance was ordered to be deleted; and the same by the node that is being cleaned.
        self._deleting: dict[InstanceId, float] = {}
        self._cleaning: dict[ProviderId, float] = {}
        self._nodes = {str(node): node for node in stocks.by_node}

    def next_orders(self, count: int) -> Sequence[DueOrder]:
        """The deletes of the instances that have ended, and the next boots."""
        deletes, self._deletes = self._deletes, []
        return [
            *(DueOrder(self.clock(), DeleteInstance(instance=id_)) for id_ in deletes),
            *super().next_orders(count),
        ]

    def hear(self, message: Message) -> None:
        for node in self._stocks.hear(message):
            self._cleaned(node)
        if isinstance(message, InstanceDeleted) and message.instance.id in self._deleting:
            self._deleted(message.instance)
        else:
            super().hear(message)

    def _close(self, order: Order, instance: InstanceId) -> None:
        self.ends.append(EndedOrder(order.due_s, order.ended_s, order.outcome == "active"))
        self._deletes.append(instance)
        self._deleting[instance] = order.ended_s

    def _deleted(self, state: InstanceState) -> None:
        """Count the deploy, or wait until its node is clean."""
        boot, deleted_s = self.instances[state.id], self._deleting.pop(state.id)
        assert boot.state is not None, "an instance is deleted only after its end"
        node = self._nodes.get(boot.state.host) if boot.state.state == "active" else None
        boot.state = state
        if node is None:
            self._has_ended()
        else:
            self._cleaning[node] = deleted_s
            self._cleaned(node)

    def _cleaned(self, node: ProviderId) -> None:
        if node in self._cleaning and self._stocks.by_node[node].is_free:
            self.free_again_s.append(self.clock() - self._cleaning.pop(node))
            self._has_ended()
