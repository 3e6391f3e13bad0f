"""A connection that is made again when it breaks. Channels on it must then be opened again.

The recovery of the client libraries is not used: it is known to lose consumers. Here every user of a broken connection
gets an exception, and opens what it needs again.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

from msgspec import Struct, structs

from bus.broker import Broker, Connection, Publishing, Receipt, chunks
from bus.message import LINES, PLAIN, REPLY, Envelope, Kind, Message, Parcel, encode_lines
from bus.queues import FEED
from bus.settings import BusSettings
from bus.topology import Destination, destination_of, reader_of_end
from bus.workers.authority import BrokerFacts, broker_facts_of
from kit.errors import ConnectionLost, Interrupted, OneWasRefused, Refusal
from kit.parts import Chance, PartState, Pauses, Status


class Link:
    """One connection to a broker, opened again on demand. Publishers and consumers have separate ones: a broker short
    of memory stops reading from connections that publish, acknowledgements included. With one connection, consumers
    could never empty a full broker.
    """

    def __init__(
        self,
        broker: Broker,
        settings: BusSettings,
        facts: BrokerFacts | None = None,
        *,
        name: str = "connection",
        chance: random.Random | None = None,
    ) -> None:
        self.broker = broker
        self.facts = facts or broker_facts_of(broker.user)
        self.status = Status(name, pauses=pauses_of(settings), chance=chance)
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self.connections_made = 0

    async def connection(self) -> Connection:
        """The open connection, or a new one. Waits as long as the broker is unreachable."""
        async with self._connecting:
            if self._closed:
                raise ConnectionLost("this end was closed")
            if self._connection is None:
                # Every failure is retried, a wrong password too: an operator may correct it meanwhile.
                await self.status.until_done(self._connect)
            assert self._connection is not None, "it is connected, or this was cancelled"
            return self._connection

    @property
    def trouble(self) -> str:
        """Why there is no connection now. Empty if there is one, or if none was needed yet."""
        return self.status.last_error if self.status.state is PartState.FAILING else ""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Connection]:
        """A context with the open connection, for a caller that opens channels on it. If none is open, a new one is made.

        If the connection breaks inside the context, the next caller gets a new one.
        """
        connection = await self.connection()
        try:
            yield connection
        except ConnectionLost:
            if self._connection is connection:
                self._connection = None
                await connection.close()
            raise

    async def close(self) -> None:
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connect(self) -> None:
        self._connection = await self.broker.connect()
        self.connections_made += 1


def pauses_of(settings: BusSettings) -> Pauses:
    """The pauses between tries to reach the broker, as the settings have them."""
    return Pauses(settings.CONNECT_DELAY_MS_FIRST / 1000, settings.CONNECT_DELAY_MS_MAX / 1000)


class PublishingChannel:
    """A channel to publish on, opened on demand over a link, and again after it broke.

    `connection` is the connection of the open channel, None while there is no channel. `opened` is called whenever a
    channel was opened.
    """

    def __init__(self, link: Link, opened: Callable[[], object] | None = None) -> None:
        self._link = link
        self._opened = opened
        self._opening = asyncio.Lock()
        self._publishing: Publishing | None = None
        self.connection: Connection | None = None

    async def channel(self) -> Publishing:
        async with self._opening:
            if self._publishing is None:
                async with self._link.opened() as connection:
                    self._publishing = await connection.open_publishing()
                self.connection = connection
                if self._opened is not None:
                    self._opened()
            return self._publishing

    async def forget(self, broken: Publishing | None) -> None:
        """Drop a broken channel, so that the next parcel opens a new one. Does nothing if that has already happened."""
        if broken is not None and self._publishing is broken:
            await self.close()

    async def close(self) -> None:
        publishing, self._publishing = self._publishing, None
        self.connection = None
        if publishing is not None:
            await publishing.close()


# Collects messages for one destination into few parcels, and knows which callers wait for each message.


class Outgoing(Struct, frozen=True, gc=False):
    """A message to be published.

    `to` is the asker's queue if it is an answer. `reply_to` is the reply address if it is a question.
    """

    message: Message
    cause: str = ""
    trace: str = ""
    to: str = ""
    reply_to: str = ""
    # Set by a caller that must recognise the answer; otherwise the publisher creates one.
    id: str = ""
    # Publish it on this project's feed and nowhere else.
    feed: str = ""


class Waiter(Struct, eq=False):
    """A call that sent messages, and how many of them are not confirmed yet. `done` is set when the last of them is."""

    left: int
    done: asyncio.Future[None]
    is_withdrawn: bool = False

    def settle(self, count: int, problem: Exception | None) -> None:
        self.left -= count
        if self.done.done():
            return
        if problem is not None:
            self.done.set_exception(problem)
        elif self.left == 0:
            self.done.set_result(None)


# Messages with equal keys share parcels. A key is the type or exchange, the end of the routing key, and the reply
# address.
Key = tuple[type[Message] | str, str, str]


class Bucket(Struct, eq=False):
    """The messages for one destination that wait in this process to be sent. `calls` tells how many of them each call sent: first
    come those of the first call, then those of the next one.
    """

    key: Key
    destination: Destination
    envelopes: list[Envelope[Message]] = []
    calls: dict[Waiter, int] = {}

    def cut(self, count: int) -> "Bucket":
        """Remove the first messages, as many as this. Returns them as a bucket of their own."""
        first = Bucket(self.key, self.destination, self.envelopes[:count], self._calls_of(slice(count)))
        self.calls = self._calls_of(slice(count, None))
        del self.envelopes[:count]
        return first

    def drop(self, sent: asyncio.Future[None]) -> int:
        """Remove the messages of one call to the publisher that have not left yet. Returns how many were removed.

        `sent` is the future that the call returned.
        """
        first = 0
        for waiter, count in self.calls.items():
            if waiter.done is sent:
                del self.envelopes[first : first + count], self.calls[waiter]
                return count
            first += count
        return 0

    def fail(self, problem: Exception) -> None:
        for waiter, count in self.calls.items():
            waiter.settle(count, problem)

    def _calls_of(self, part: slice) -> dict[Waiter, int]:
        """How many messages of this part each call sent."""
        begin, end, _ = part.indices(len(self.envelopes))
        found, first = {}, 0
        for waiter, count in self.calls.items():
            if (here := min(first + count, end) - max(first, begin)) > 0:
                found[waiter] = here
            first += count
        return found

    def parcels(self, bytes_max: int) -> Iterator[tuple[Parcel, Mapping[Waiter, int]]]:
        """Make as few parcels as possible of these messages. With each comes how many messages of each call it has."""
        body = encode_lines(self.envelopes)
        if len(body) <= bytes_max or len(self.envelopes) == 1:
            yield self._parcel(body, slice(None))
            return
        lines = body.split(b"\n")
        for part in chunks([len(line) + 1 for line in lines], bytes_max):
            yield self._parcel(b"\n".join(lines[part]), part)

    def _parcel(self, body: bytes, part: slice) -> tuple[Parcel, Mapping[Waiter, int]]:
        parcel = Parcel(
            exchange=self.destination.exchange,
            routing_key=self.destination.routing_key,
            body=body,
            content_type=PLAIN if len(self.envelopes[part]) == 1 else LINES,
            persistent=self.destination.kind.is_kept,
            mandatory=self.destination.kind is not Kind.EVENT,
            reply_to=self.key[2],
        )
        return parcel, self._calls_of(part)


# Where messages go: the key by which they share parcels, their destination, and the copies for the feeds of projects.


# Returns the project on whose feed an event is repeated, and the event as this project sees it; None if it is on none.
CopyOf = Callable[[Message], tuple[str, Message] | None]


def with_copies(outgoing: Sequence[Outgoing], copy_of: CopyOf) -> Sequence[Outgoing]:
    """Add copies of events to these messages: one for the feed of the project that an event is about."""
    copies = [
        structs.replace(each, feed=copy[0], message=copy[1], id="")
        for each in outgoing
        if not each.to and not each.feed and (copy := copy_of(each.message))
    ]
    return [*outgoing, *copies] if copies else outgoing


def key_of(outgoing: Outgoing) -> Key:
    if outgoing.feed:
        # Events of all types share parcels on a feed.
        return FEED, outgoing.feed, ""
    if outgoing.to:
        return REPLY, outgoing.to, outgoing.reply_to
    message = outgoing.message
    kind = type(message)
    return kind, reader_of_end(kind)(message), outgoing.reply_to


def destination(outgoing: Outgoing) -> Destination:
    if outgoing.feed:
        return Destination(FEED, outgoing.feed, Kind.EVENT)
    if outgoing.to:
        return Destination(REPLY, outgoing.to, Kind.ANSWER)
    return destination_of(outgoing.message)


# Publishes parcels, each until the broker has said what became of it.
#
# Parcels share one channel. When it breaks, a parcel is published again, after growing pauses. There is a second channel for a parcel of
# which it must be certain that a refusal is about this one, and for one that the first channel refuses again and again.


log = logging.getLogger(__name__)

# After so many tries of a parcel in a row, another channel is tried.
_TRIES_ON_A_CHANNEL = 5
# The publishing channel is replaced at most once in so long: all that is unconfirmed on it is published again.
_REPLACED_EVERY_S = 10.0


class ParcelSender:
    """`opened` is called whenever the channel was opened. `held_back` counts the tries that did not bring a parcel to its queue."""

    def __init__(
        self, link: Link, settings: BusSettings, chance: Chance, opened: Callable[[], object]
    ) -> None:
        self._pauses = Pauses(settings.RETRY_DELAY_MS_FIRST / 1000, settings.CONNECT_DELAY_MS_MAX / 1000)
        self._chance = chance
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
        try:
            return await self._publish_on(self._way, parcel)
        except OneWasRefused:
            # With no other parcel under way, a refusal is certainly about this one.
            async with self._alone:
                return await self._publish_on(self._second, parcel)

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
            receipt = await self._publish_on(self._second, parcel)
            now_s = asyncio.get_running_loop().time()
            if receipt not in (Receipt.REFUSED, Receipt.LOST) and now_s >= self._may_be_replaced_at_s:
                self._may_be_replaced_at_s = now_s + _REPLACED_EVERY_S
                log.warning(
                    "the broker refused a parcel on one channel and took it on another: the first is replaced"
                )
                # What is unconfirmed there is published again.
                await self._way.close()
            return receipt

    async def _publish_on(self, way: PublishingChannel, parcel: Parcel) -> Receipt:
        """Publish a parcel once. If the channel breaks meanwhile, the outcome is unknown, and the receipt is `LOST`."""
        publishing: Publishing | None = None
        try:
            publishing = await way.channel()
            receipt = await publishing.publish(parcel)
        except Interrupted as broken:
            await way.forget(publishing)
            if isinstance(broken, OneWasRefused) and way is self._way:
                raise
            return Receipt.LOST
        except Refusal:
            if way is self._second:
                await way.close()
            raise
        self.parcels_sent += 1
        return receipt
