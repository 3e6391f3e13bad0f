"""The way of one process to the memory broker, with what may befall it, and with ears for whoever checks what is said.

A `Broker` for the process; everything real about it is the memory broker's. Nothing is heard of a process that is dead.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Protocol

from bus.broker import ConnectionLost, Delivery, HandsOver, Parcel, Receipt
from bus.memory import MemoryBroker
from bus.memory.channels import MemoryConsuming, MemoryPublishing
from bus.memory.connection import MemoryConnection
from bus.topology import Binding, Objects
from tests.simulation.faults import ON_THE_WAY
from tests.simulation.process import SimProcess

# How long a process waits for a confirm that will not come, before it dies.
LOST_AFTER_S = 1.5


class Hearing(Protocol):
    """Whoever must know what goes over the wires."""

    def published(self, process: SimProcess, parcel: Parcel, user: str) -> None: ...

    def delivered(self, process: SimProcess, queue: str, deliveries: Sequence[Delivery]) -> None: ...

    def fired(self, fault: str, process: str) -> None: ...

    def quiet_until_s(self, process: SimProcess, queue: str) -> float:
        """Until when this queue's deliveries are on their way to this process."""

    def turned_away(self, process: SimProcess, parcel: Parcel) -> Receipt | None:
        """What the broker says to a parcel that it does not store; None if it does."""

    def is_nacked(self, process: SimProcess, parcel: Parcel) -> bool:
        """Is this parcel refused, though a queue has it?"""

    def copies_of(self, parcel: Parcel) -> Sequence[float]:
        """How much later this parcel arrives once more, for each time that it does."""


class SimAccess:
    def __init__(
        self,
        memory: MemoryBroker,
        user: str,
        process: SimProcess,
        hearing: Hearing,
        *,
        hands_over: HandsOver,
    ) -> None:
        self.user = user
        self.hands_over = hands_over
        self._memory = memory
        self._process = process
        self._hearing = hearing

    async def connect(self) -> "SimConnection":
        await self._process.until_online()
        inner = self._memory.connect(self.user)
        self._process.connections[inner] = None
        return SimConnection(inner, self.user, self._process, self._hearing, self._again)

    def _again(self, parcel: Parcel) -> None:
        """Say it once more, by nobody's doing."""
        inner = self._memory.connect(self.user)

        async def say() -> None:
            publishing = await inner.open_publishing()
            await publishing.publish(parcel)
            await inner.close()

        Context().run(asyncio.get_running_loop().create_task, say())


class SimConnection:
    def __init__(
        self,
        inner: MemoryConnection,
        user: str,
        process: SimProcess,
        hearing: Hearing,
        again: Callable[[Parcel], None],
    ) -> None:
        self._inner = inner
        self._user = user
        self._process = process
        self._hearing = hearing
        self._again = again

    @property
    def blocked(self) -> str:
        return self._inner.blocked

    async def until_unblocked(self) -> None:
        await self._inner.until_unblocked()

    async def declare(self, objects: Objects) -> None:
        await self._inner.declare(objects)

    async def bind(self, queue: str, bindings: Sequence[Binding]) -> None:
        await self._inner.bind(queue, bindings)

    async def open_publishing(self) -> "SimPublishing":
        return SimPublishing(await self._inner.open_publishing(), self)

    async def open_consuming(self, queue: str, prefetch: int) -> "SimConsuming":
        consuming = await self._inner.open_consuming(queue, prefetch)
        return SimConsuming(consuming, self._process, self._hearing)

    async def depth(self, queue: str) -> int:
        return await self._inner.depth(queue)

    async def close(self) -> None:
        self._process.connections.pop(self._inner, None)
        await self._inner.close()

    async def say(self, parcel: Parcel, publishing: MemoryPublishing) -> Receipt:
        process = self._process
        await process.until_awake()
        if process.is_doomed(ON_THE_WAY):
            await asyncio.sleep(LOST_AFTER_S)
            await process.point(ON_THE_WAY)
        self._hearing.published(process, parcel, self._user)
        if process.take_mark("lost_publish"):
            process.fired("lost_publish", parcel.routing_key)
            self._inner.end("cut before the parcel came")
            raise ConnectionLost("cut before the parcel came")
        if (receipt := self._hearing.turned_away(process, parcel)) is not None:
            return receipt
        receipt = await publishing.publish(parcel)
        for after_s in self._hearing.copies_of(parcel):
            self._hearing.fired("duplicate", f"{process.full_name} {parcel.routing_key}")
            loop = asyncio.get_running_loop()
            loop.call_later(after_s, self._again, parcel, context=Context())
        if self._hearing.is_nacked(process, parcel):
            return Receipt.REFUSED
        if process.take_mark("late_confirms"):
            process.fired("late_confirms", parcel.routing_key)
            await asyncio.sleep(process.confirms_late_s)
        if process.take_mark("lost_confirm"):
            self._hearing.fired("lost_confirm", f"{process.full_name} {parcel.routing_key}")
            self._inner.end("cut before the confirm came")
            raise ConnectionLost("cut before the confirm came")
        if slow_s := process.slow_s():
            await asyncio.sleep(slow_s)
        return receipt


class SimPublishing:
    def __init__(self, inner: MemoryPublishing, connection: SimConnection) -> None:
        self._inner = inner
        self._connection = connection

    async def publish(self, parcel: Parcel) -> Receipt:
        return await self._connection.say(parcel, self._inner)

    async def close(self) -> None:
        await self._inner.close()


class SimConsuming:
    def __init__(self, inner: MemoryConsuming, process: SimProcess, hearing: Hearing) -> None:
        self._inner = inner
        self._process = process
        self._hearing = hearing
        self._queue = inner.queue.name
        self._is_feed = self._queue.startswith("feed.")
        self._is_work = self._queue.endswith(
            (".work", ".requests", ".events", ".claims", ".searches", ".questions")
        )

    async def receive(self) -> Sequence[Delivery]:
        while True:
            deliveries = await self._inner.receive()
            process = self._process
            if self._is_work and process.take_mark("late_redelivery"):
                self._hearing.fired("late_redelivery", f"{process.full_name} {self._queue}")
                await asyncio.sleep(process.held_s)
                process.cut("held too long")
                raise ConnectionLost("held too long")
            await self._until_they_arrive()
            await process.until_awake()
            if self._is_feed and any(each.parcel.routing_key == "providers.changed" for each in deliveries):
                deliveries = [each for each in deliveries if not self._is_dropped(each)]
            if deliveries:
                self._hearing.delivered(process, self._queue, deliveries)
                return deliveries

    async def acknowledge(self, tag: int, *, multiple: bool = False) -> None:
        if self._is_work:
            await self._process.point("before_ack")
        await self._inner.acknowledge(tag, multiple=multiple)

    async def give_back(self, tag: int) -> None:
        await self._inner.give_back(tag)

    async def close(self) -> None:
        await self._inner.close()

    async def _until_they_arrive(self) -> None:
        now_s = asyncio.get_running_loop().time()
        quiet_s = max(self._hearing.quiet_until_s(self._process, self._queue) - now_s, self._process.slow_s())
        if quiet_s > 0:
            await asyncio.sleep(quiet_s)

    def _is_dropped(self, delivery: Delivery) -> bool:
        if delivery.parcel.routing_key == "providers.changed" and self._process.take_mark("feed_drop"):
            self._hearing.fired("feed_drop", self._process.full_name)
            return True
        return False
