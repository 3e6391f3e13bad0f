"""Collects messages for one destination into few parcels, and knows which callers wait for each message."""

import asyncio
from collections.abc import Iterator, Mapping

from msgspec import Struct

from bus.broker import LINES, PLAIN, Parcel, encode_lines
from bus.chunks import chunks
from bus.message import Envelope, Message
from bus.topology import Destination, Kind


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

    def parcels(self, bytes_max: int, *, hands_over: bool) -> Iterator[tuple[Parcel, Mapping[Waiter, int]]]:
        """Make as few parcels as possible of these messages. With each comes how many messages of each call it has.

        A broker that hands over objects does not need their bytes, and so no parcels of limited size.
        """
        # Readers check messages of strict types by their bytes.
        if hands_over and not self.envelopes[0].message.IS_STRICT:
            yield self._parcel(None, slice(None))
            return
        body = encode_lines(self.envelopes)
        if len(body) <= bytes_max or len(self.envelopes) == 1:
            yield self._parcel(body, slice(None))
            return
        lines = body.split(b"\n")
        for part in chunks([len(line) + 1 for line in lines], bytes_max):
            yield self._parcel(b"\n".join(lines[part]), part)

    def _parcel(self, body: bytes | None, part: slice) -> tuple[Parcel, Mapping[Waiter, int]]:
        envelopes = self.envelopes[part]
        parcel = Parcel(
            exchange=self.destination.exchange,
            routing_key=self.destination.routing_key,
            encoded=body,
            content_type=PLAIN if len(envelopes) == 1 else LINES,
            persistent=self.destination.kind.is_kept,
            mandatory=self.destination.kind is not Kind.EVENT,
            reply_to=self.key[2],
            envelopes=() if envelopes[0].message.IS_STRICT else tuple(envelopes),
        )
        return parcel, self._calls_of(part)
