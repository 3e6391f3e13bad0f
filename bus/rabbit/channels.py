"""Channels to publish and to consume on.

RabbitMQ forgets a consumer without a word if the leader of its quorum queue does not live to tell it of the queue's end. Then the
consumer would wait for ever, also beside a new queue of the same name. So one that has received nothing for a while looks
whether its queue is there, and consumes it anew, on the same channel: what it holds stays held. One that holds as much as it may is
quiet for this reason, and waits: what it holds has a limit, however long its reader settles nothing.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any, Generic, TypeVar

from aiormq import Channel, exceptions
from aiormq.abc import DeliveredMessage
from pamqp import commands

from bus.broker import Arrivals, Delivery, Receipt
from bus.message import Parcel
from bus.rabbit import connection
from bus.rabbit.connection import OpenChannel, RabbitWire, again
from bus.rabbit.parcels import delivery_of, properties_of, why_unfit
from kit.errors import ConnectionLost, ConsumerCancelled, Interrupted, OneWasRefused, Refusal

# A consumer that has received nothing for so long looks whether its queue knows it.
QUIET_S = 30.0

D = TypeVar("D")


class RabbitPublishing(OpenChannel):
    """Publishes parcels. The library numbers them as the broker does, and finds the parcel that a confirm is about."""

    def __init__(self, wire: RabbitWire, channel: Channel, user: str) -> None:
        super().__init__(wire, channel)
        self._user = user
        self._published = 0

    async def publish(self, parcel: Parcel) -> Receipt:
        self._published += 1
        try:
            await self.call(
                self.channel.basic_publish(
                    parcel.body,
                    exchange=parcel.exchange,
                    routing_key=parcel.routing_key,
                    properties=self.properties_of(parcel, self._published),
                    mandatory=parcel.mandatory,
                    wait=False,
                )
            )
        except exceptions.PublishError:
            return Receipt.UNROUTABLE
        except exceptions.DeliveryError:
            return Receipt.REFUSED
        except (TypeError, ValueError) as problem:
            raise Refusal(f"AMQP cannot carry this parcel: {why_unfit(parcel) or problem}") from problem
        except Refusal as why:
            # The broker ends a channel when it refuses one parcel, and does not say which.
            if (others := self.at_the_end) > 1:
                raise OneWasRefused(f"one of {others} parcels was refused: {why}") from None
            raise
        except Interrupted as why:
            raise ConnectionLost(f"not confirmed before the channel ended: {why}") from None
        return Receipt.CONFIRMED

    def properties_of(self, parcel: Parcel, number: int) -> commands.Basic.Properties:
        return properties_of(parcel, number, self._user)


class Consumers(OpenChannel, Generic[D]):
    """Queues that are consumed on one channel, and what has arrived of them, as `read` makes it of a message."""

    def __init__(
        self, wire: RabbitWire, channel: Channel, what: str, read: Callable[[DeliveredMessage], D]
    ) -> None:
        self.arrivals = Arrivals[D]()
        super().__init__(wire, channel)
        self._what = what
        self._read = read
        # Those that the broker knows.
        self._tags: set[str] = set()
        channel.on_consumer_cancel_callbacks.add(self.on_cancel)

    async def consume(self, queue: str, tag: str = "") -> None:
        """Consume this queue too. The consumer has this tag, or one that the library makes."""
        asked = self.channel.basic_consume(queue, self.on_message, consumer_tag=tag or None)
        answer = await self.wire.answered(asked, self.channel)
        self._tags.add(answer.consumer_tag or "")

    async def receive(self) -> Sequence[D]:
        """Wait for deliveries, and return all that have arrived, in order."""
        return await self.arrivals.take()

    async def acknowledge(self, tag: int, *, multiple: bool = False) -> None:
        await self._tell(self.channel.basic_ack(tag, multiple=multiple, wait=False))

    async def give_back(self, tag: int) -> None:
        await self._tell(self.channel.basic_nack(tag, requeue=True, wait=False))

    async def stop(self) -> None:
        """Cancel the consumers, and wait until their queues have all acknowledgements.

        When many come at once, RabbitMQ keeps some of them at the channel until the queue has taken the others. It would
        forget them if the channel ended then, and the messages would be delivered again.
        """
        tags, self._tags = self._tags, set()
        if self.over is not None or self.wire.blocked:
            return
        with suppress(Refusal, Interrupted, TimeoutError):
            async with asyncio.timeout(connection.CLOSE_S_MAX):
                for tag in tags:
                    await self.wire.answered(self.channel.basic_cancel(tag), self.channel)

    def end(self, why: Refusal | Interrupted) -> None:
        super().end(why)
        # The broker gives what waits here to another consumer.
        self.arrivals.drop(why if isinstance(why, ConnectionLost) else ConsumerCancelled(str(why)))

    async def on_message(self, message: DeliveredMessage) -> None:
        self.wire.arrived(len(message.body))
        self.arrivals.put(self._read(message))

    def on_cancel(self, told: commands.Basic.Cancel | None = None) -> None:
        """The broker cancelled a consumer. Earlier deliveries may still be acknowledged; no more will come."""
        if told is not None:
            self._tags.discard(told.consumer_tag or "")
        self.arrivals.end(
            ConsumerCancelled(f"the broker cancelled the consumer of {self._what}: was the queue deleted?")
        )

    async def _tell(self, told: Coroutine[Any, Any, None]) -> None:
        # A cancelled consumer may still settle its deliveries while its channel is open.
        if self.over is not None:
            told.close()
            self.arrivals.check()
            raise again(self.over)
        await self.call(told)


class RabbitConsuming(Consumers[Delivery]):
    """One queue of ours, by its name here and on RabbitMQ (`named`)."""

    def __init__(
        self, wire: RabbitWire, channel: Channel, queue: str, *, named: str, prefetch: int, quiet_s: float
    ) -> None:
        super().__init__(wire, channel, repr(queue), self._hold)
        self._queue = queue
        self._named = named
        self._prefetch = prefetch
        self._quiet_s = quiet_s
        # The tags that are not settled, the lowest first.
        self._held: dict[int, None] = {}

    async def receive(self) -> Sequence[Delivery]:
        while not self.arrivals.is_ready:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._quiet_s):
                    return await self.arrivals.take()
            if len(self._held) >= self._prefetch:
                continue
            # What ends the channel ends what arrives on it, too. Where RabbitMQ refuses only the look, a later one may succeed.
            with suppress(Refusal, Interrupted):
                await self._consume_anew()
        return await self.arrivals.take()

    async def acknowledge(self, tag: int, *, multiple: bool = False) -> None:
        for settled in [*takewhile(tag.__ge__, self._held)] if multiple else (tag,):
            self._held.pop(settled, None)
        await super().acknowledge(tag, multiple=multiple)

    async def give_back(self, tag: int) -> None:
        self._held.pop(tag, None)
        await super().give_back(tag)

    async def _consume_anew(self) -> None:
        """Replace the consumer by another one. The queue has one all the time."""
        if self.wire.blocked:
            return
        # To cancel the consumer of a queue that is gone would cost the whole connection.
        if not await self.wire.stands(commands.Queue.Declare(queue=self._named, passive=True)):
            self.on_cancel()
            return
        before = tuple(self._tags)
        await self.consume(self._named)
        for tag in before:
            self._tags.discard(tag)
            await self.wire.answered(self.channel.basic_cancel(tag), self.channel)

    def _hold(self, message: DeliveredMessage) -> Delivery:
        delivery = delivery_of(self._queue, message)
        self._held[delivery.tag] = None
        return delivery
