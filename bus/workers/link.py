"""A connection that is made again when it breaks. Channels on it must then be opened again.

The recovery of the client libraries is not used: it is known to lose consumers. Here every user of a broken connection
gets an exception, and opens what it needs again.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from bus.broker import Broker, Connection, ConnectionLost, Publishing
from bus.configuration.settings import BusSettings
from bus.parts import PartState, Status
from bus.pauses import Pauses
from bus.workers.authority import BrokerFacts, broker_facts_of


class Link:
    """One connection to a broker, opened again on demand. Publishers and consumers have separate ones: a broker short
    of memory stops reading from connections that publish, acknowledgements included. With one connection, consumers
    could never empty a full broker.
    """

    def __init__(
        self,
        broker: Broker,
        settings: BusSettings,
        facts: BrokerFacts | None = None,
        *,
        name: str = "connection",
        chance: random.Random | None = None,
    ) -> None:
        self.broker = broker
        self.facts = facts or broker_facts_of(broker.user)
        self.status = Status(name, pauses=pauses_of(settings), chance=chance)
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self.connections_made = 0

    async def connection(self) -> Connection:
        """The open connection, or a new one. Waits as long as the broker is unreachable."""
        async with self._connecting:
            if self._closed:
                raise ConnectionLost("this end was closed")
            if self._connection is None:
                # Every failure is retried, a wrong password too: an operator may correct it meanwhile.
                await self.status.until_done(self._connect)
            assert self._connection is not None, "it is connected, or this was cancelled"
            return self._connection

    @property
    def trouble(self) -> str:
        """Why there is no connection now. Empty if there is one, or if none was needed yet."""
        return self.status.last_error if self.status.state is PartState.FAILING else ""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Connection]:
        """A context with the open connection, for a caller that opens channels on it. If none is open, a new one is made.

        If the connection breaks inside the context, the next caller gets a new one.
        """
        connection = await self.connection()
        try:
            yield connection
        except ConnectionLost:
            if self._connection is connection:
                self._connection = None
                await connection.close()
            raise

    async def close(self) -> None:
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connect(self) -> None:
        self._connection = await self.broker.connect()
        self.connections_made += 1


def pauses_of(settings: BusSettings) -> Pauses:
    """The pauses between tries to reach the broker, as the settings have them."""
    return Pauses(settings.connect_delay_ms_first / 1000, settings.connect_delay_ms_max / 1000)


class PublishingChannel:
    """A channel to publish on, opened on demand over a link, and again after it broke.

    `connection` is the connection of the open channel, None while there is no channel. `opened` is called whenever a
    channel was opened.
    """

    def __init__(self, link: Link, opened: Callable[[], object] | None = None) -> None:
        self._link = link
        self._opened = opened
        self._opening = asyncio.Lock()
        self._publishing: Publishing | None = None
        self.connection: Connection | None = None

    async def channel(self) -> Publishing:
        async with self._opening:
            if self._publishing is None:
                async with self._link.opened() as connection:
                    self._publishing = await connection.open_publishing()
                self.connection = connection
                if self._opened is not None:
                    self._opened()
            return self._publishing

    async def forget(self, broken: Publishing | None) -> None:
        """Drop a broken channel, so that the next parcel opens a new one. Does nothing if that has already happened."""
        if broken is not None and self._publishing is broken:
            await self.close()

    async def close(self) -> None:
        publishing, self._publishing = self._publishing, None
        self.connection = None
        if publishing is not None:
            await publishing.close()
