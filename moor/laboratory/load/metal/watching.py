"""Keeps what placement has of the nodes of a load run, by its events."""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from bus.message import Message, ProviderId
from bus.messages.placement import InventoryState, ProvidersChanged, ProviderState


class NodeStock(Struct, frozen=True):
    """Reserved and used amounts of a node's only resource class, as placement has them."""

    reserved: int
    used: int
    revision: int

    @property
    def is_free(self) -> bool:
        return not self.reserved and not self.used


class NodeStocks:
    """The stock of each of these nodes, by its id."""

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
