"""A channel to publish on: what leaves, and what the broker says of each parcel."""

import asyncio
import itertools

from pamqp import commands
from pamqp.base import Frame
from pamqp.header import ContentHeader

from bus.broker import ConnectionLost, Interrupted, Parcel, Receipt, Refusal
from bus.rabbit.channel import Channel, Listener
from bus.rabbit.endings import fail
from bus.rabbit.frames import frames_of
from bus.rabbit.wire import Wire


class RabbitPublishing(Listener):
    """Parcels out, numbered by us and by the broker alike; its confirms name the numbers."""

    channel: Channel

    def __init__(self, wire: Wire, user: str) -> None:
        self._wire = wire
        self._user = user
        # Whoever comes while the broker is blocked gets in line; without this, whoever comes next would be first.
        self._turn = asyncio.Lock()
        self._published = 0
        self._unconfirmed: dict[int, tuple[Parcel, asyncio.Future[Receipt]]] = {}
        self._returned: set[int] = set()

    async def publish(self, parcel: Parcel) -> Receipt:
        async with self._turn:
            await self._wire.until_unblocked()
            told = self._send(parcel)
        return await told

    async def close(self) -> None:
        await self.channel.close()

    def _send(self, parcel: Parcel) -> asyncio.Future[Receipt]:
        number = self._published + 1
        try:
            frames = frames_of(parcel, number, self.channel.number, self._user, self._wire.content_size_max)
        except (TypeError, ValueError) as problem:
            raise Refusal(f"AMQP cannot carry this parcel: {problem}") from problem
        try:
            self.channel.send(frames)
        except (Refusal, Interrupted) as why:
            raise ConnectionLost(f"this channel has ended: {why}") from None
        # Only what was sent is counted: the broker does not count what it does not see.
        self._published = number
        told: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._unconfirmed[number] = (parcel, told)
        return told

    def on_content(self, method: Frame, header: ContentHeader, body: bytes) -> None:  # noqa: ARG002 - as the port has it
        """A mandatory parcel came back: no queue takes it. Its confirm follows."""
        self._returned.add(int(header.properties.message_id or 0))

    def on_confirm(self, frame: commands.Basic.Ack | commands.Basic.Nack) -> None:
        last = frame.delivery_tag or 0
        receipt = Receipt.CONFIRMED if isinstance(frame, commands.Basic.Ack) else Receipt.REFUSED
        if frame.multiple:
            numbers = list(itertools.takewhile(lambda number: number <= last, self._unconfirmed))
        else:
            numbers = [last]
        for number in numbers:
            _, told = self._unconfirmed.pop(number)
            if not told.done():
                told.set_result(Receipt.UNROUTABLE if number in self._returned else receipt)
        self._returned.difference_update(numbers)

    def on_end(self, why: Exception) -> None:
        """A refusal is for the parcel that it names; what became of those beside it, nobody knows."""
        for parcel, told in self._unconfirmed.values():
            named = isinstance(why, Refusal) and _names(str(why), parcel)
            fail(told, why if named else ConnectionLost(f"not confirmed before the channel ended: {why}"))
        self._unconfirmed.clear()


def _names(refusal: str, parcel: Parcel) -> bool:
    """Whether the broker's words are about this parcel: it names the exchange, and the key if that was the reason."""
    if f"exchange '{parcel.exchange or 'amq.default'}'" not in refusal:
        return False
    return "access to topic" not in refusal or f"topic '{parcel.routing_key}'" in refusal
