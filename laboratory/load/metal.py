"""The state changes of a load on bare metal. A change switches a node's maintenance on or off. It has ended when placement has it: its latency is the time from
when it is due, or from Ironic's notification, handed to the bus, until placement's event that the node is reserved or free.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from bus.message import Message
from bus.messages.placement import ProvidersChanged
from engine.inventories import InventoryState, ProviderId, ProviderState
from laboratory.ironic import SimulatedIronic
from laboratory.load.firing import DueOrder, EndedOrder, Run


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
