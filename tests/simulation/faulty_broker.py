"""The memory broker as simulated processes reach it: its channels inject faults, and report all traffic.

The memory broker does everything real. A dead process can publish nothing more.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import Context
from typing import Any

from bus.broker import Delivery, Receipt
from bus.memory import MemoryBroker
from bus.memory.broker import MemoryConnection, MemoryConsuming, MemoryPublishing
from bus.message import Parcel
from kit.errors import ConnectionLost
from tests.planted.replacing import around, replaced
from tests.simulation.faults import ON_THE_WAY
from tests.simulation.process import RUNNING, SimProcess

# How long a process waits for a confirm that will not come, before it dies.
LOST_AFTER_S = 1.5
WORK_QUEUES = (".work", ".requests", ".events", ".claims", ".searches", ".questions")


class FaultyBroker:
    """A `Broker` for one process."""

    def __init__(self, memory: MemoryBroker, user: str, process: SimProcess) -> None:
        self.user = user
        self._memory = memory
        self._process = process

    async def connect(self) -> MemoryConnection:
        await self._process.until_online()
        connection = self._memory.connect(self.user)
        self._process.connections[connection] = None
        return connection


@contextmanager
def watched_channels() -> Iterator[None]:
    """What a process publishes, receives and acknowledges may fail, and the traffic of its cloud sees it."""
    with ExitStack() as stack:
        for owner, name, by in (
            (MemoryPublishing, "publish", _publish),
            (MemoryConsuming, "receive", _receive),
            (MemoryConsuming, "acknowledge", _acknowledge),
        ):
            stack.enter_context(replaced(owner, name, around(by)))
        yield


async def _publish(real: Any, self: Any, parcel: Parcel) -> Receipt:
    process = RUNNING.get()
    if process is None:
        return await real(self, parcel)  # type: ignore[no-any-return]
    traffic = process.cloud.traffic
    await process.until_awake()
    if process.will_crash_at(ON_THE_WAY):
        await asyncio.sleep(LOST_AFTER_S)
        await process.point(ON_THE_WAY)
    traffic.published(process, parcel, self._user)
    if process.take_armed("lost_publish"):
        process.fired("lost_publish", parcel.routing_key)
        process.lose(self._wire, "cut before the parcel arrived")
    if (refused := traffic.refused_receipt(process, parcel)) is not None:
        return refused
    receipt: Receipt = await real(self, parcel)
    for after_s in traffic.copies_of(parcel):
        traffic.fired("duplicate", f"{process.full_name} {parcel.routing_key}")
        loop = asyncio.get_running_loop()
        loop.call_later(after_s, _publish_copy, process, self._user, parcel, context=Context())
    if traffic.is_nacked(process, parcel):
        return Receipt.REFUSED
    if process.take_armed("late_confirms"):
        process.fired("late_confirms", parcel.routing_key)
        await asyncio.sleep(process.confirms_late_s)
    if process.take_armed("lost_confirm"):
        traffic.fired("lost_confirm", f"{process.full_name} {parcel.routing_key}")
        process.lose(self._wire, "cut before the confirm arrived")
    if slow_s := process.slow_s():
        await asyncio.sleep(slow_s)
    return receipt


def _publish_copy(process: SimProcess, user: str, parcel: Parcel) -> None:
    """Publish the parcel a second time on a separate connection."""
    connection = process.cloud.memory.connect(user)

    async def say() -> None:
        await (await connection.open_publishing()).publish(parcel)
        await connection.close()

    asyncio.get_running_loop().create_task(say())


async def _receive(real: Any, self: Any) -> Sequence[Delivery]:
    process, queue = RUNNING.get(), self.queue.name
    while True:
        deliveries: Sequence[Delivery] = await real(self)
        if process is None:
            return deliveries
        if queue.endswith(WORK_QUEUES) and process.take_armed("late_redelivery"):
            process.cloud.traffic.fired("late_redelivery", f"{process.full_name} {queue}")
            await asyncio.sleep(process.held_s)
            process.cut("delivery held too long")
            raise ConnectionLost("delivery held too long")
        await _until_they_arrive(process, queue)
        await process.until_awake()
        if queue.startswith("feed."):
            deliveries = [each for each in deliveries if not _is_dropped(process, each)]
        if deliveries:
            process.cloud.traffic.delivered(process, queue, deliveries)
            return deliveries


async def _acknowledge(real: Any, self: Any, tag: int, *, multiple: bool = False) -> None:
    if (process := RUNNING.get()) is not None and self.queue.name.endswith(WORK_QUEUES):
        await process.point("before_ack")
    await real(self, tag, multiple=multiple)


async def _until_they_arrive(process: SimProcess, queue: str) -> None:
    now_s = asyncio.get_running_loop().time()
    quiet_s = max(process.cloud.traffic.quiet_until_s(process, queue) - now_s, process.slow_s())
    if quiet_s > 0:
        await asyncio.sleep(quiet_s)


def _is_dropped(process: SimProcess, delivery: Delivery) -> bool:
    is_dropped = delivery.parcel.routing_key == "providers.changed" and process.take_armed("feed_drop")
    if is_dropped:
        process.cloud.traffic.fired("feed_drop", process.full_name)
    return is_dropped
