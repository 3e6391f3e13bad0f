"""Publishes parcels, each until the broker has said what became of it.

Parcels share one channel. When it breaks, a parcel is published again, after growing pauses. There is a second channel for a parcel of
which it must be certain that a refusal is about this one, and for one that the first channel refuses again and again.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

from bus.broker import Connection, Interrupted, OneWasRefused, Parcel, Publishing, Receipt, Refusal
from bus.configuration.settings import BusSettings
from bus.pauses import Pauses
from bus.workers.link import Link, PublishingChannel

log = logging.getLogger(__name__)

# After so many tries of a parcel in a row, another channel is tried.
_TRIES_ON_A_CHANNEL = 5
# The publishing channel is replaced at most once in so long: all that is unconfirmed on it is published again.
_REPLACED_EVERY_S = 10.0


class ParcelSender:
    """`opened` is called whenever the channel was opened. `held_back` counts the tries that did not bring a parcel to its queue."""

    def __init__(self, link: Link, settings: BusSettings, name: str, opened: Callable[[], object]) -> None:
        self._pauses = Pauses(settings.retry_delay_ms_first / 1000, settings.connect_delay_ms_max / 1000)
        # A simulation can replay its pauses.
        self._chance = random.Random(name)
        self._way = PublishingChannel(link, opened)
        # A second channel for parcels of which one was refused: each is sent there alone.
        self._second = PublishingChannel(link)
        self._alone = asyncio.Lock()
        self._may_be_replaced_at_s = 0.0
        self.held_back = 0
        self.parcels_sent = 0

    @property
    def connection(self) -> Connection | None:
        """The connection of the open channel; None while there is no channel."""
        return self._way.connection

    async def close(self) -> None:
        await self._second.close()
        await self._way.close()

    async def publish_until_told(
        self, parcel: Parcel, is_withdrawn: Callable[[], bool], final: Sequence[Receipt]
    ) -> Receipt:
        """Publish a parcel, again after growing pauses, until the broker's receipt is one of `final`.

        Returns `REFUSED` if all messages of the parcel were withdrawn meanwhile.
        """
        tries = 0
        while not is_withdrawn():
            if (receipt := await self._publish_once(parcel)) in final:
                return receipt
            tries += 1
            self.held_back += 1
            log.info("a queue is full or the broker is unreachable: trying again", extra={"tries": tries})
            if receipt is Receipt.REFUSED and tries % _TRIES_ON_A_CHANNEL == 0:
                receipt = await self.publish_on_another_channel(parcel)
                if receipt in final:
                    return receipt
            await asyncio.sleep(self._pauses.after(tries, self._chance))
        return Receipt.REFUSED

    async def _publish_once(self, parcel: Parcel) -> Receipt:
        """Publish a parcel once. If the channel breaks meanwhile, the outcome is unknown, and the receipt is `LOST`."""
        try:
            return await self._publish_on(self._way, parcel)
        except OneWasRefused:
            return await self._publish_alone(parcel)
        except Interrupted:
            return Receipt.LOST

    async def _publish_alone(self, parcel: Parcel) -> Receipt:
        """Publish with no other parcel under way, so that a refusal is certainly about this one."""
        async with self._alone:
            try:
                return await self._publish_on(self._second, parcel)
            except Refusal:
                await self._second.close()
                raise
            except Interrupted:
                return Receipt.LOST

    async def publish_on_another_channel(self, parcel: Parcel) -> Receipt:
        """Publish a refused parcel on a new channel. If it is taken there, the old channel is replaced.

        A cluster of RabbitMQ refuses everything for a quorum queue on a channel that first published to it while the node of its
        leader was down; and does so for as long as that channel is open, though the queue has had another leader since. A queue
        that is full now and then looks the same from here, so the channel is not replaced each time.
        """
        if self._alone.locked():
            return Receipt.REFUSED
        async with self._alone:
            await self._second.close()
            try:
                receipt = await self._publish_on(self._second, parcel)
            except Refusal:
                await self._second.close()
                raise
            except Interrupted:
                return Receipt.LOST
            now_s = asyncio.get_running_loop().time()
            if receipt is not Receipt.REFUSED and now_s >= self._may_be_replaced_at_s:
                self._may_be_replaced_at_s = now_s + _REPLACED_EVERY_S
                log.warning(
                    "the broker refused a parcel on one channel and took it on another: the first is replaced"
                )
                # What is unconfirmed there is published again.
                await self._way.close()
            return receipt

    async def _publish_on(self, way: PublishingChannel, parcel: Parcel) -> Receipt:
        publishing: Publishing | None = None
        try:
            publishing = await way.channel()
            receipt = await publishing.publish(parcel)
        except Interrupted:
            await way.forget(publishing)
            raise
        self.parcels_sent += 1
        return receipt
