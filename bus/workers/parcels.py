"""Collects messages for one destination into few parcels, and knows which callers wait for each message."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from bus.broker import LINES, PLAIN, Parcel
from bus.codec import encode_lines
from bus.message import Envelope, Message
from bus.topology import Destination, Kind


class Outgoing(Struct, frozen=True, gc=False):
    """A message to be sent. An answer has the asker's queue in `to`; a question has its reply address in `reply_to`."""

    message: Message
    cause: str = ""
    trace: str = ""
    to: str = ""
    reply_to: str = ""
    # Set by a caller that must recognise the answer; otherwise the publisher creates one.
    id: str = ""
    # Publish it on this project's feed and nowhere else.
    feed: str = ""


class Waiter:
    """The messages of one call. The future is done when the last of them is confirmed."""

    __slots__ = ("done", "is_withdrawn", "left")

    def __init__(self, count: int, done: asyncio.Future[None]) -> None:
        self.left = count
        self.done = done
        self.is_withdrawn = False

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


class Bucket:
    """Messages for one destination that have not left yet, and the caller that waits for each."""

    __slots__ = ("destination", "envelopes", "key", "reply_to", "waiters")

    def __init__(self, key: Key, destination: Destination) -> None:
        self.key = key
        self.destination = destination
        self.reply_to = key[2]
        self.envelopes: list[Envelope[Message]] = []
        self.waiters: list[Waiter] = []

    def drop(self, sent: asyncio.Future[None]) -> int:
        """Drop the messages of the call that returned this future. Returns their number."""
        kept = [n for n, each in enumerate(self.waiters) if each.done is not sent]
        dropped = len(self.waiters) - len(kept)
        if dropped:
            self.envelopes = [self.envelopes[n] for n in kept]
            self.waiters = [self.waiters[n] for n in kept]
        return dropped

    def parcels(self, bytes_max: int) -> Iterator[tuple[Parcel, Mapping[Waiter, int]]]:
        """As few parcels as possible; with each, how many messages of each waiting call it has."""
        body = encode_lines(self.envelopes)
        if len(body) <= bytes_max or len(self.envelopes) == 1:
            yield self._parcel(body, 0, len(self.envelopes))
            return
        lines = body.split(b"\n")
        for first, last in _chunks(lines, bytes_max):
            part = b"\n".join(lines[first:last])
            yield self._parcel(part, first, last)

    def _parcel(self, body: bytes, first: int, last: int) -> tuple[Parcel, Mapping[Waiter, int]]:
        envelopes = self.envelopes[first:last]
        parcel = Parcel(
            exchange=self.destination.exchange,
            routing_key=self.destination.routing_key,
            body=body,
            content_type=PLAIN if len(envelopes) == 1 else LINES,
            persistent=self.destination.kind.is_kept,
            mandatory=self.destination.kind is not Kind.EVENT,
            reply_to=self.reply_to,
            # Readers check messages of strict types by their bytes.
            envelopes=() if envelopes[0].message.IS_STRICT else tuple(envelopes),
        )
        return parcel, Counter(self.waiters[first:last])


def _chunks(lines: Sequence[bytes], bytes_max: int) -> Iterator[tuple[int, int]]:
    """The ranges of lines that share a parcel. A line that is too long gets its own."""
    first = size = 0
    for n, line in enumerate(lines):
        size += len(line) + 1
        if size > bytes_max and n > first:
            yield first, n
            first, size = n, len(line) + 1
    yield first, len(lines)
