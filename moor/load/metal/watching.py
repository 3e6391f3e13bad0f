"""Receives the events about nodes and the instances on them, for the load run that waits for them."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from msgspec import Struct

from bus.codec import CODEC
from bus.link import Link
from bus.listening import listen
from bus.message import Message, ProviderId
from bus.messages.placement import InventoryState, ProvidersChanged, ProviderState
from bus.station import Station
from bus.topology import EVENTS, Grant
from moor.load.firing import Feed, NoProgress

SILENCE_S_MAX = 60.0


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
        """Wait until `is_so`. Raise NoProgress if no event arrives for SILENCE_S_MAX."""
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


async def listen_on(watch: NodeWatch, feed: Feed) -> None:
    async for batch in feed:
        for heard in batch:
            watch.hear(heard.message)


@asynccontextmanager
async def hearing_nodes(client: Station) -> AsyncGenerator[Feed]:
    link = Link(client.consuming.broker, client.settings)
    keys = (
        "instance.active.#",
        "instance.error.#",
        "instance.deleted.#",
        "build.rejected",
        "providers.changed",
    )
    feed = listen(link, [Grant(EVENTS, keys)], process=client.name, settings=client.settings, codec=CODEC)
    await anext(feed)
    try:
        yield feed
    finally:
        await feed.aclose()
        await link.close()
