"""A channel for consuming: receives deliveries and settles them."""

from collections.abc import Sequence
from typing import cast

from pamqp import commands
from pamqp.base import Frame
from pamqp.header import ContentHeader

from bus.arrivals import Arrivals
from bus.broker import ConnectionLost, ConsumerCancelled, Delivery
from bus.rabbit.channel import Channel, Listener
from bus.rabbit.frames import delivery_of


class RabbitConsuming(Listener):
    channel: Channel

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._arrivals = Arrivals()

    async def receive(self) -> Sequence[Delivery]:
        return await self._arrivals.take()

    async def acknowledge(self, tag: int, *, multiple: bool = False) -> None:
        self._tell(commands.Basic.Ack(delivery_tag=tag, multiple=multiple))

    async def give_back(self, tag: int) -> None:
        self._tell(commands.Basic.Nack(delivery_tag=tag, requeue=True))

    async def close(self) -> None:
        await self.channel.close()

    def _tell(self, frame: Frame) -> None:
        # A cancelled consumer may still settle its deliveries while its channel is open.
        if self.channel.ended is not None:
            self._arrivals.check()
        self.channel.tell(frame)

    def on_content(self, method: Frame, header: ContentHeader, body: bytes) -> None:
        self._arrivals.put(delivery_of(self._queue, cast("commands.Basic.Deliver", method), header, body))

    def on_cancel(self) -> None:
        """The broker cancelled the consumer. Earlier deliveries may still be acknowledged; no more will come."""
        self._arrivals.end(
            ConsumerCancelled(f"the broker cancelled the consumer of {self._queue!r}: was the queue deleted?")
        )

    def on_end(self, why: Exception) -> None:
        """End the deliveries, since the channel has ended. The broker gives the waiting ones to another consumer."""
        self._arrivals.drop(why if isinstance(why, ConnectionLost) else ConsumerCancelled(str(why)))
