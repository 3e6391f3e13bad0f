"""A connection that is made again whenever it breaks, and with it every channel that was opened on it.

The client libraries' own recovery is not used: it is known to come back without its consumers. Here a break is an
exception in whoever was using the connection, and each of them opens what it needs anew.
"""

import asyncio
import random
from collections.abc import Callable

from bus.authority import Post, post_of
from bus.broker import Broker, Connection, ConnectionLost, Publishing
from bus.errors import Operational
from bus.parts import Pauses, Status
from bus.settings import BusSettings


class Link:
    """One connection to a broker, healed on demand: publishers and consumers each have one of their own.

    They are apart because a broker that is short of memory stops reading from whoever publishes, acknowledgements
    included: on one connection a full broker could never be emptied.
    """

    def __init__(
        self,
        broker: Broker,
        settings: BusSettings,
        post: Post | None = None,
        *,
        name: str = "connection",
        chance: random.Random | None = None,
    ) -> None:
        self.broker = broker
        self.post = post or post_of(broker.user)
        self.status = Status(name, pauses=pauses_of(settings), chance=chance)
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self.connections_made = 0

    async def connection(self) -> Connection:
        """The connection as it stands, or a new one; waits as long as there is no broker."""
        async with self._connecting:
            if self._closed:
                raise ConnectionLost("this end was closed")
            if self._connection is None:
                self._connection = await self._connect()
            return self._connection

    async def broken(self, connection: Connection) -> None:
        """Told by whoever noticed; who comes later gets a new connection."""
        if self._connection is connection:
            self._connection = None
            await connection.close()

    async def close(self) -> None:
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connect(self) -> Connection:
        """Whatever keeps us out, a wrong password too, may be mended while we wait."""
        while True:
            self.status.began()
            try:
                connection = await self.broker.connect()
            except Operational as problem:
                await asyncio.sleep(self.status.failed(problem))
            else:
                self.connections_made += 1
                self.status.well()
                return connection


def pauses_of(settings: BusSettings) -> Pauses:
    """Between two tries of whatever needs a broker."""
    return Pauses(settings.connect_delay_ms_first / 1000, settings.connect_delay_ms_max / 1000)


class WayOut:
    """A channel to publish on, over a link: opened when it is needed, and again when it broke.

    `connection` is the one that the channel is open on; None while there is no channel. `opened` is called each time there is
    one again.
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
                connection = await self._link.connection()
                try:
                    self._publishing = await connection.open_publishing()
                except ConnectionLost:
                    await self._link.broken(connection)
                    raise
                self.connection = connection
                if self._opened is not None:
                    self._opened()
            return self._publishing

    async def forget(self, broken: Publishing | None) -> None:
        """The next parcel opens a new channel; unless another parcel's failure has led to one already."""
        if broken is not None and self._publishing is broken:
            await self.close()

    async def close(self) -> None:
        publishing, self._publishing = self._publishing, None
        self.connection = None
        if publishing is not None:
            await publishing.close()
