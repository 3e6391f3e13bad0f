"""A consumer's deliveries while they wait for their reader. Consumers of every kind of broker use this code."""

import asyncio
from collections.abc import Sequence
from typing import Generic, TypeVar

from bus.broker import Delivery

D = TypeVar("D")


class ArrivalsOf(Generic[D]):
    """Deliveries in the order of their arrival, until the reader takes them or the consumer ends."""

    def __init__(self) -> None:
        self._waiting: list[D] = []
        self._changed = asyncio.Event()
        self.why_over: Exception | None = None

    def put(self, delivery: D) -> None:
        self._waiting.append(delivery)
        self._changed.set()

    def end(self, why: Exception) -> None:
        """Accept no more deliveries. The reader still gets those that wait, and after them `why`, raised as an error.

        If this is called several times, the first reason counts.
        """
        self.why_over = self.why_over or why
        self._changed.set()

    def drop(self, why: Exception) -> None:
        """Accept no more deliveries and forget the waiting ones: the broker has put them back into their queue."""
        self._waiting.clear()
        self.end(why)

    def check(self) -> None:
        """Raise the error that ended the deliveries, if they have ended.

        Each call raises a new exception, since an exception that is raised twice grows its traceback.
        """
        if self.why_over is not None:
            raise type(self.why_over)(*self.why_over.args)

    @property
    def is_ready(self) -> bool:
        """Has something arrived that the reader has not taken?"""
        return bool(self._waiting)

    async def take(self) -> Sequence[D]:
        """Remove and return all waiting deliveries, and wait until there is at least one.

        If none waits and the deliveries have ended, raise the error that ended them.
        """
        while not self._waiting:
            self.check()
            self._changed.clear()
            await self._changed.wait()
        taken, self._waiting = self._waiting, []
        return taken


class Arrivals(ArrivalsOf[Delivery]):
    """Deliveries of our own parcels."""
