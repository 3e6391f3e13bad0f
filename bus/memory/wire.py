"""The stream of requests from a client to the memory broker. The broker may stop reading it, and it can be cut."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from bus.broker import ConnectionLost, Interrupted, Refusal
from bus.memory.virtual_host import MemoryVirtualHost

T = TypeVar("T")


class MemoryWire:
    """The requests of one connection to the memory broker.

    A blocked broker stops reading from a connection that publishes. So it does not read that connection's other
    requests either, acknowledgements included. Deliveries still arrive.
    """

    def __init__(self, host: MemoryVirtualHost) -> None:
        self.host = host
        # Why it was cut; empty while it is not.
        self.lost = ""
        self._unheard: deque[tuple[asyncio.Future[Any], Callable[[], Any]]] = deque()

    def check(self) -> None:
        if self.lost:
            raise ConnectionLost(self.lost)

    async def tell(self, said: Callable[[], T], *, publishing: bool = False) -> T:
        """Carry out a request at the broker, at once or when the broker reads from this connection again.

        A blocked broker lets a publish wait, and each request that comes after it on the connection.
        """
        self.check()
        if not (self.host.blocked and (publishing or self._unheard)):
            return said()
        heard: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._unheard.append((heard, said))
        return await heard

    def hear(self) -> None:
        """Carry out the requests that waited while the broker did not read from this connection."""
        while self._unheard:
            heard, said = self._unheard.popleft()
            if heard.done():
                continue
            try:
                heard.set_result(said())
            except (Refusal, Interrupted) as problem:
                heard.set_exception(problem)

    def cut(self, why: str) -> None:
        self.lost = why
        while self._unheard:
            heard, _ = self._unheard.popleft()
            if not heard.done():
                heard.set_exception(ConnectionLost(why))
