"""The memory broker as one process reaches it: a `Broker` that injects faults, and reports all traffic to the observer.

The memory broker does everything real. A dead process can publish nothing more.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Protocol

from bus.broker import Delivery, Receipt
from bus.memory import MemoryBroker
from bus.memory.broker import MemoryConnection, MemoryConsuming, MemoryPublishing
from bus.message import Parcel
from bus.topology import Binding, Objects
from kit.errors import ConnectionLost
from tests.simulation.faults import ON_THE_WAY
from tests.simulation.process import SimProcess

# How long a process waits for a confirm that will not come, before it dies.
LOST_AFTER_S = 1.5


class TrafficObserver(Protocol):
    """Is told of every parcel and delivery, and decides which faults apply to it."""

    def published(self, process: SimProcess, parcel: Parcel, user: str) -> None: ...

    def delivered(self, process: SimProcess, queue: str, deliveries: Sequence[Delivery]) -> None: ...

    def fired(self, fault: str, process: str) -> None: ...

    def quiet_until_s(self, process: SimProcess, queue: str) -> float:
        """Deliveries of this queue reach this process only after this time."""

    def refused_receipt(self, process: SimProcess, parcel: Parcel) -> Receipt | None:
        """The broker's receipt for a parcel that it does not store; None if it stores it."""

    def is_nacked(self, process: SimProcess, parcel: Parcel) -> bool:
        """True if the broker refuses this parcel although a queue has stored it."""

    def copies_of(self, parcel: Parcel) -> Sequence[float]:
        """The delays after which this parcel is delivered again."""


class FaultyBroker:
    def __init__(
        self,
        memory: MemoryBroker,
        user: str,
        process: SimProcess,
        observer: TrafficObserver,
    ) -> None:
        self.user = user
        self._memory = memory
        self._process = process
        self._observer = observer

    async def connect(self) -> "FaultyConnection":
        await self._process.until_online()
        inner = self._memory.connect(self.user)
        self._process.connections[inner] = None
        return FaultyConnection(
            inner,
            self.user,
            self._process,
            self._observer,
            self._publish_copy,
        )

    def _publish_copy(self, parcel: Parcel) -> None:
        """Publish the parcel a second time on a separate connection."""
        inner = self._memory.connect(self.user)

        async def say() -> None:
            publishing = await inner.open_publishing()
            await publishing.publish(parcel)
            await inner.close()

        Context().run(asyncio.get_running_loop().create_task, say())


class FaultyConnection:
    def __init__(
        self,
        inner: MemoryConnection,
        user: str,
        process: SimProcess,
        observer: TrafficObserver,
        publish_copy: Callable[[Parcel], None],
    ) -> None:
        self._inner = inner
        self._user = user
        self._process = process
        self._observer = observer
        self._publish_copy = publish_copy

    @property
    def blocked(self) -> str:
        return self._inner.blocked

    async def until_unblocked(self) -> None:
        await self._inner.until_unblocked()

    async def declare(self, objects: Objects) -> None:
        await self._inner.declare(objects)

    async def bind(self, queue: str, bindings: Sequence[Binding]) -> None:
        await self._inner.bind(queue, bindings)

    async def open_publishing(self) -> "FaultyPublishing":
        return FaultyPublishing(await self._inner.open_publishing(), self)

    async def open_consuming(self, queue: str, prefetch: int) -> "FaultyConsuming":
        consuming = await self._inner.open_consuming(queue, prefetch)
        return FaultyConsuming(consuming, self._process, self._observer)

    async def depth(self, queue: str) -> int:
        return await self._inner.depth(queue)

    async def consumers(self, queue: str) -> int:
        return await self._inner.consumers(queue)

    async def close(self) -> None:
        self._process.connections.pop(self._inner, None)
        await self._inner.close()

    async def publish(self, parcel: Parcel, publishing: MemoryPublishing) -> Receipt:
        process = self._process
        await process.until_awake()
        if process.will_crash_at(ON_THE_WAY):
            await asyncio.sleep(LOST_AFTER_S)
            await process.point(ON_THE_WAY)
        self._observer.published(process, parcel, self._user)
        if process.take_armed("lost_publish"):
            process.fired("lost_publish", parcel.routing_key)
            self._inner.end("cut before the parcel arrived")
            raise ConnectionLost("cut before the parcel arrived")
        if (receipt := self._observer.refused_receipt(process, parcel)) is not None:
            return receipt
        receipt = await publishing.publish(parcel)
        for after_s in self._observer.copies_of(parcel):
            self._observer.fired("duplicate", f"{process.full_name} {parcel.routing_key}")
            loop = asyncio.get_running_loop()
            loop.call_later(after_s, self._publish_copy, parcel, context=Context())
        if self._observer.is_nacked(process, parcel):
            return Receipt.REFUSED
        if process.take_armed("late_confirms"):
            process.fired("late_confirms", parcel.routing_key)
            await asyncio.sleep(process.confirms_late_s)
        if process.take_armed("lost_confirm"):
            self._observer.fired("lost_confirm", f"{process.full_name} {parcel.routing_key}")
            self._inner.end("cut before the confirm arrived")
            raise ConnectionLost("cut before the confirm arrived")
        if slow_s := process.slow_s():
            await asyncio.sleep(slow_s)
        return receipt


class FaultyPublishing:
    def __init__(self, inner: MemoryPublishing, connection: FaultyConnection) -> None:
        self._inner = inner
        self._connection = connection

    async def publish(self, parcel: Parcel) -> Receipt:
        return await self._connection.publish(parcel, self._inner)

    async def close(self) -> None:
        await self._inner.close()


class FaultyConsuming:
    def __init__(self, inner: MemoryConsuming, process: SimProcess, observer: TrafficObserver) -> None:
        self._inner = inner
        self._process = process
        self._observer = observer
        self._queue = inner.queue.name
        self._is_feed = self._queue.startswith("feed.")
        self._is_work = self._queue.endswith(
            (".work", ".requests", ".events", ".claims", ".searches", ".questions")
        )

    async def receive(self) -> Sequence[Delivery]:
        while True:
            deliveries = await self._inner.receive()
            process = self._process
            if self._is_work and process.take_armed("late_redelivery"):
                self._observer.fired("late_redelivery", f"{process.full_name} {self._queue}")
                await asyncio.sleep(process.held_s)
                process.cut("delivery held too long")
                raise ConnectionLost("delivery held too long")
            await self._until_they_arrive()
            await process.until_awake()
            if self._is_feed and any(each.parcel.routing_key == "providers.changed" for each in deliveries):
                deliveries = [each for each in deliveries if not self._is_dropped(each)]
            if deliveries:
                self._observer.delivered(process, self._queue, deliveries)
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
        quiet_s = max(
            self._observer.quiet_until_s(self._process, self._queue) - now_s, self._process.slow_s()
        )
        if quiet_s > 0:
            await asyncio.sleep(quiet_s)

    def _is_dropped(self, delivery: Delivery) -> bool:
        if delivery.parcel.routing_key == "providers.changed" and self._process.take_armed("feed_drop"):
            self._observer.fired("feed_drop", self._process.full_name)
            return True
        return False
