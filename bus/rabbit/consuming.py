"""A channel for consuming: receives deliveries and settles them.

RabbitMQ forgets a consumer without a word if the leader of its quorum queue does not live to tell it of the queue's end: then the
consumer would wait for ever, also beside a new queue of the same name. So one that has received nothing for a while looks
whether its queue is there, and consumes it anew, on the same channel: what it holds stays held. One that holds as much as it may is
quiet for this reason, and waits: what it holds has a limit, however long its reader settles nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import cast

from pamqp import commands
from pamqp.base import Frame
from pamqp.header import ContentHeader

from bus.broker import Arrivals, Delivery
from bus.rabbit.channel import Channel, Listener
from bus.rabbit.frames import delivery_of
from kit.errors import ConnectionLost, ConsumerCancelled, Interrupted, Refusal

QUIET_S = 30.0


class RabbitConsuming(Listener):
    channel: Channel

    def __init__(
        self,
        queue: str,
        prefetch: int,
        consume_anew: Callable[["RabbitConsuming"], Awaitable[None]],
        quiet_s: float,
    ) -> None:
        self._queue = queue
        self._prefetch = prefetch
        self._consume_anew = consume_anew
        self._quiet_s = quiet_s
        self._arrivals = Arrivals()
        # The tags that are not settled, the lowest first.
        self._held: dict[int, None] = {}

    async def receive(self) -> Sequence[Delivery]:
        while not self._arrivals.is_ready:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._quiet_s):
                    return await self._arrivals.take()
            if len(self._held) >= self._prefetch:
                continue
            # What ends the channel ends what arrives on it, too. Where RabbitMQ refuses only the look, a later one may succeed.
            with suppress(Refusal, Interrupted):
                await self._consume_anew(self)
        return await self._arrivals.take()

    async def acknowledge(self, tag: int, *, multiple: bool = False) -> None:
        self._tell(commands.Basic.Ack(delivery_tag=tag, multiple=multiple))
        for settled in [*takewhile(tag.__ge__, self._held)] if multiple else (tag,):
            self._held.pop(settled, None)

    async def give_back(self, tag: int) -> None:
        self._tell(commands.Basic.Nack(delivery_tag=tag, requeue=True))
        self._held.pop(tag, None)

    async def close(self) -> None:
        await self.channel.close()

    def _tell(self, frame: Frame) -> None:
        # A cancelled consumer may still settle its deliveries while its channel is open.
        if self.channel.ended is not None:
            self._arrivals.check()
        self.channel.tell(frame)

    def on_content(self, method: Frame, header: ContentHeader, body: bytes) -> None:
        delivery = delivery_of(self._queue, cast("commands.Basic.Deliver", method), header, body)
        self._held[delivery.tag] = None
        self._arrivals.put(delivery)

    def on_cancel(self) -> None:
        """The broker cancelled the consumer. Earlier deliveries may still be acknowledged; no more will come."""
        self._arrivals.end(
            ConsumerCancelled(f"the broker cancelled the consumer of {self._queue!r}: was the queue deleted?")
        )

    def on_end(self, why: Exception) -> None:
        """End the deliveries, since the channel has ended. The broker gives the waiting ones to another consumer."""
        self._arrivals.drop(why if isinstance(why, ConnectionLost) else ConsumerCancelled(str(why)))
