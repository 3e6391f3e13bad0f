"""A broker, a store and a station that fail on request, in front of working ones."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from bus.broker import Broker, Connection, Consuming, Delivery, Publishing, Receipt
from bus.message import Message, Parcel
from bus.topology import Objects

Problem = Callable[[], Exception]


class Faults:
    """The operations that fail now: by name, and by place (a queue, an exchange, a method, a message type)."""

    def __init__(self) -> None:
        self._broken: dict[tuple[str, str], Problem] = {}
        self.unroutable: set[str] = set()
        self.answers: dict[type[Message], Message] = {}
        self.channels = 0
        self._stuck: dict[str, int] = {}
        self._changed = asyncio.Event()

    def stick(self, exchange: str) -> None:
        """Refuse what is published to this exchange on the channels that are open now, until they are closed."""
        self._stuck[exchange] = self.channels

    def is_stuck(self, channel: int, exchange: str) -> bool:
        return channel <= self._stuck.get(exchange, 0)

    def mend(self) -> None:
        self._broken.clear()
        self.unroutable.clear()
        self.answers.clear()

    def check(self, operation: str, where: str) -> None:
        for (broken, place), problem in self._broken.items():
            if broken == operation and where.startswith(place):
                raise problem()

    async def until_broken(self, operation: str, where: str) -> None:
        while True:
            self.check(operation, where)
            await self._changed.wait()


class BreakableBroker:
    def __init__(self, broker: Broker, faults: Faults) -> None:
        self._broker = broker
        self._faults = faults

    @property
    def user(self) -> str:
        return self._broker.user

    async def connect(self) -> Connection:
        self._faults.check("connect", "")
        return cast("Connection", _Connection(await self._broker.connect(), self._faults))


class _Connection:
    """What it does not break is done by the working one; so it is of a channel."""

    def __init__(self, connection: Connection, faults: Faults) -> None:
        self._connection = connection
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def declare(self, objects: Objects) -> None:
        for queue in objects.queues:
            self._faults.check("open", queue.name)
        await self._connection.declare(objects)

    async def open_publishing(self) -> "_Publishing":
        return _Publishing(await self._connection.open_publishing(), self._faults)

    async def open_consuming(self, queue: str, prefetch: int) -> "_Consuming":
        self._faults.check("open", queue)
        return _Consuming(await self._connection.open_consuming(queue, prefetch), self._faults, queue)


class _Publishing:
    def __init__(self, publishing: Publishing, faults: Faults) -> None:
        self._publishing = publishing
        self._faults = faults
        faults.channels += 1
        self._number = faults.channels

    def __getattr__(self, name: str) -> Any:
        return getattr(self._publishing, name)

    async def publish(self, parcel: Parcel) -> Receipt:
        self._faults.check("publish", parcel.exchange)
        if self._faults.is_stuck(self._number, parcel.exchange):
            return Receipt.REFUSED
        if parcel.mandatory and parcel.exchange in self._faults.unroutable:
            return Receipt.UNROUTABLE
        return await self._publishing.publish(parcel)


class _Consuming:
    def __init__(self, consuming: Consuming, faults: Faults, queue: str) -> None:
        self._consuming = consuming
        self._faults = faults
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consuming, name)

    async def receive(self) -> Sequence[Delivery]:
        receiving = asyncio.ensure_future(self._consuming.receive())
        breaking = asyncio.create_task(self._faults.until_broken("receive", self._queue))
        try:
            await asyncio.wait((receiving, breaking), return_when=asyncio.FIRST_COMPLETED)
            if breaking.done():
                breaking.result()
            return receiving.result()
        finally:
            for task in (receiving, breaking):
                task.cancel()
            await asyncio.gather(receiving, breaking, return_exceptions=True)
