"""Questions of tests to a whole cloud, as messages: its hosts, its providers, and whether all of them are there."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from bus.memory import MemoryBroker
from bus.message import Message
from bus.messages.hosts import AskHosts, HostsFound
from bus.messages.placement import AskSnapshot, SnapshotPage
from engine.hosts import HostState
from engine.inventories import ProviderState
from kit.errors import Unavailable
from moor.client import Client
from moor.client.bus_client import Asks, BusClient, items_of


class OnlyAsked(BusClient):
    """A client of the bus that has no connection: `asking` answers its questions."""

    trouble = ""

    def __init__(self, asking: Asks) -> None:
        self._asking = asking

    async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
        return [await self._asking.ask(each) for each in self.sendable(questions)]


def client_of(asking: Any) -> Client:
    """A client whose bus this is: all of it, or what answers its questions."""
    moor = Client(MemoryBroker().as_user(), project="")
    moor._opened = asking if hasattr(asking, "listen") else OnlyAsked(asking)  # noqa: SLF001 - in place of a connection
    return moor


async def hosts_of(asking: Asks, name: str = "") -> list[HostState]:
    return await items_of(asking, AskHosts(name=name), HostsFound, lambda page: page.hosts)


async def providers_of(asking: Asks) -> list[ProviderState]:
    return await items_of(asking, AskSnapshot(), SnapshotPage, lambda page: page.providers)


async def until_choosable(asking: Asks, are_enough: Callable[[Sequence[HostState]], bool]) -> None:
    """Wait until enough hosts are up, and placement has their providers."""
    while True:
        # Raised while the workers that answer are still starting.
        with suppress(Unavailable):
            up = [host for host in await hosts_of(asking) if host.up or host.setting.mode != "up"]
            provided = {each.id for each in await providers_of(asking)}
            if are_enough([host for host in up if host.id in provided]):
                return
        await asyncio.sleep(0.05)
