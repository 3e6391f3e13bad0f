"""A channel for publishing: sends parcels and reads the broker's confirms."""

import asyncio
import itertools

from pamqp import commands
from pamqp.base import Frame
from pamqp.header import ContentHeader

from bus.broker import Parcel, Receipt
from bus.rabbit.channel import Channel, Listener
from bus.rabbit.endings import fail
from bus.rabbit.frames import frames_of, why_unfit
from bus.rabbit.wire import RabbitWire
from kit.errors import ConnectionLost, Interrupted, OneWasRefused, Refusal


class RabbitPublishing(Listener):
    """Publishes parcels. Broker and publisher number them alike, and confirms name these numbers."""

    channel: Channel

    def __init__(self, wire: RabbitWire, user: str) -> None:
        self.wire = wire
        self._user = user
        # Keeps callers in order while the broker is blocked; otherwise a later caller could be first.
        self._turn = asyncio.Lock()
        self._published = 0
        self._unconfirmed: dict[int, asyncio.Future[Receipt]] = {}
        self._returned: set[int] = set()

    async def publish(self, parcel: Parcel) -> Receipt:
        async with self._turn:
            await self.wire.until_unblocked()
            told = self._send(parcel)
        return await told

    async def close(self) -> None:
        await self.channel.close()

    def frames(self, parcel: Parcel, number: int) -> bytes:
        """The frames that publish this parcel as the one with this number."""
        return frames_of(parcel, number, self.channel.number, self._user, self.wire.content_size_max)

    def _send(self, parcel: Parcel) -> asyncio.Future[Receipt]:
        number = self._published + 1
        try:
            frames = self.frames(parcel, number)
        except (TypeError, ValueError) as problem:
            raise Refusal(f"AMQP cannot carry this parcel: {why_unfit(parcel) or problem}") from problem
        try:
            self.channel.send(frames)
        except (Refusal, Interrupted) as why:
            raise ConnectionLost(f"this channel has ended: {why}") from None
        # Count only what was sent, as the broker does.
        self._published = number
        told: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._unconfirmed[number] = told
        return told

    def on_content(self, method: Frame, header: ContentHeader, body: bytes) -> None:  # noqa: ARG002 - as the port has it
        """Note that the broker returned a mandatory parcel, which no queue takes. The confirm of the parcel follows."""
        self._returned.add(int(header.properties.message_id or 0))

    def on_confirm(self, frame: commands.Basic.Ack | commands.Basic.Nack) -> None:
        last = frame.delivery_tag or 0
        receipt = Receipt.CONFIRMED if isinstance(frame, commands.Basic.Ack) else Receipt.REFUSED
        if frame.multiple:
            numbers = list(itertools.takewhile(lambda number: number <= last, self._unconfirmed))
        else:
            numbers = [last]
        for number in numbers:
            told = self._unconfirmed.pop(number)
            if not told.done():
                told.set_result(Receipt.UNROUTABLE if number in self._returned else receipt)
        self._returned.difference_update(numbers)

    def on_end(self, why: Exception) -> None:
        """Tell all callers that wait for a confirm that the channel has ended.

        The broker ends a channel when it refuses one parcel, and does not say which. So `Refusal` is reported only if a
        single parcel was under way. Otherwise all callers get `OneWasRefused`.
        """
        if not isinstance(why, Refusal):
            why = ConnectionLost(f"not confirmed before the channel ended: {why}")
        elif len(self._unconfirmed) > 1:
            why = OneWasRefused(f"one of {len(self._unconfirmed)} parcels was refused: {why}")
        for told in self._unconfirmed.values():
            fail(told, why)
        self._unconfirmed.clear()
