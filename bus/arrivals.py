"""The deliveries that wait for their reader: the same for the consumers of every broker."""

import asyncio
from collections.abc import Sequence

from bus.broker import Delivery


class Arrivals:
    """Deliveries in the order of their arrival, until the reader takes them or the consumer ends."""

    def __init__(self) -> None:
        self._waiting: list[Delivery] = []
        self._changed = asyncio.Event()
        self.why_over: Exception | None = None

    def put(self, delivery: Delivery) -> None:
        self._waiting.append(delivery)
        self._changed.set()

    def end(self, why: Exception) -> None:
        """End this series of deliveries. Readers get the waiting deliveries first, then the first reason given."""
        self.why_over = self.why_over or why
        self._changed.set()

    def drop(self, why: Exception) -> None:
        """End this series and forget the waiting deliveries: the broker has put them back into their queue."""
        self._waiting.clear()
        self.end(why)

    def check(self) -> None:
        """Raise the reason of the end: a new exception each time, since one that is raised twice grows its traceback."""
        if self.why_over is not None:
            raise type(self.why_over)(*self.why_over.args)

    async def take(self) -> Sequence[Delivery]:
        """All waiting deliveries, at least one."""
        while not self._waiting:
            self.check()
            self._changed.clear()
            await self._changed.wait()
        taken, self._waiting = self._waiting, []
        return taken
