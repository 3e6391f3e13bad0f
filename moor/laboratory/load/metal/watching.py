"""Receives the events about nodes and the instances on them, for the load run that waits for them."""

import asyncio
from collections.abc import Callable

from msgspec import Struct

from bus.message import Message, ProviderId
from bus.messages.placement import InventoryState, ProvidersChanged, ProviderState
from moor.client import Feed
from moor.laboratory.load.firing import SILENCE_S_MAX, NoProgress


class NodeStock(Struct, frozen=True):
    """Reserved and used amounts of a node's only resource class, as placement has them."""

    reserved: int
    used: int

    @property
    def is_free(self) -> bool:
        return not self.reserved and not self.used


class NodeWatch:
    """Keeps the nodes' stocks current. Calls `on_stock` with each node whose stock was received, and `on_message` with every
    other message.
    """

    def __init__(self, providers: list[ProviderState], nodes: frozenset[ProviderId]) -> None:
        self.nodes = nodes
        self.stocks: dict[ProviderId, NodeStock] = {}
        self.on_stock: Callable[[ProviderId], None] = lambda _: None
        self.on_message: Callable[[Message], None] = lambda _: None
        self._revisions: dict[ProviderId, int] = {}
        self._changed = asyncio.Event()
        for provider in providers:
            self._take(provider)

    async def listen(self, feed: Feed) -> None:
        async for batch in feed:
            for heard in batch:
                self.hear(heard.message)

    def hear(self, message: Message) -> None:
        if isinstance(message, ProvidersChanged):
            for provider in message.providers:
                self._take(provider)
            for usage in message.usage:
                if usage.id in self.stocks and usage.revision > self._revisions[usage.id]:
                    self._revisions[usage.id] = usage.revision
                    used = max(usage.used.values(), default=0)
                    self.stocks[usage.id] = NodeStock(self.stocks[usage.id].reserved, used)
                    self.on_stock(usage.id)
        else:
            self.on_message(message)
        self._changed.set()

    async def until(self, is_so: Callable[[], object], what: str) -> None:
        """Wait until `is_so` returns true. Raise NoProgress if no event arrives for SILENCE_S_MAX."""
        while not is_so():
            self._changed.clear()
            try:
                async with asyncio.timeout(SILENCE_S_MAX):
                    await self._changed.wait()
            except TimeoutError:
                raise NoProgress(f"no event for {SILENCE_S_MAX:.0f} s, while {what}") from None

    def _take(self, provider: ProviderState) -> None:
        if provider.id not in self.nodes or provider.revision <= self._revisions.get(provider.id, -1):
            return
        self._revisions[provider.id] = provider.revision
        stock = next(iter(provider.inventories.values()), InventoryState(total=0))
        self.stocks[provider.id] = NodeStock(stock.reserved, stock.used)
        self.on_stock(provider.id)
