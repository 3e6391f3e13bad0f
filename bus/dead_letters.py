"""What could not be handled, kept with its reason until a person decides: `moor dead list|show|replay|drop`.

A worker buries an item by itself, with headers that say why, how often it was tried, and where. The broker buries a
whole parcel when it has come back too often; it only says from which queue.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import takewhile

from msgspec import Struct, structs

from bus import headers
from bus.broker import LINES, PLAIN, Connection, Consuming, Delivery, Parcel, Receipt
from bus.codec import CODEC, lines_of, revived
from bus.errors import Failure
from bus.message import Envelope, type_of
from bus.origin import Origin, origin_of
from bus.topology import DEAD, DEAD_QUEUE, is_retry_exchange, retry_exchange_of
from bus.unreadable import Unreadable

REASON_BYTES_MAX = 2_000
PATIENCE_S = 3.0
LOOK_S = 0.01
# Half of what a channel of RabbitMQ tells a quorum queue before it waits for that to catch up.
WORDS_AT_ONCE = 16


class NotReplayed(Failure):
    """The queue that a dead letter came from did not take it; the letter stays."""


class DeadLetter(Struct, frozen=True):
    """One dead letter as a person sees it. No two that are there at the same time have the same handle."""

    handle: str
    queue: str
    reason: str
    attempts: int
    where: str
    type: str
    body: bytes
    origin: Origin


def burial(
    line: bytes, queue: str, origin: Origin, *, reason: str, attempts: int, where: str, letter: str = ""
) -> Parcel:
    """The parcel that brings one item to the dead letters; `letter` is a name that no other has."""
    return Parcel(
        exchange=DEAD,
        routing_key=queue,
        body=line,
        content_type=PLAIN,
        mandatory=True,
        headers={
            headers.REASON: _fit_for_a_header(reason),
            headers.QUEUE: queue,
            headers.ATTEMPTS: attempts,
            headers.WHERE: where,
            **_said(origin),
            headers.LETTER: letter,
        },
    )


def returned(lines: Sequence[bytes], queue: str, origin: Origin, *, waits: int = 0) -> Parcel:
    """The parcel that brings items back to their queue, by themselves; `waits` says how often they did so to wait for a
    newer worker.
    """
    return Parcel(
        exchange=retry_exchange_of(queue),
        routing_key=queue,
        # A line of a client's own may be written over several, so by itself it is not one of many.
        body=b"\n".join(lines),
        content_type=PLAIN if len(lines) == 1 else LINES,
        mandatory=True,
        reply_to=origin.reply_to,
        headers=_said(origin) | ({headers.WAITS: waits} if waits else {}),
    )


def _said(origin: Origin) -> dict[str, str | int]:
    return {headers.SENDER: origin.sender, headers.EXCHANGE: origin.exchange, headers.KEY: origin.key}


def waits_of(parcel: Parcel) -> int:
    """How often this was returned to wait for a newer worker, as the worker that returned it says."""
    return _number(parcel, headers.WAITS) if is_retry_exchange(parcel.exchange) else 0


def read(delivery: Delivery) -> DeadLetter:
    """Whatever bytes and headers it has: a letter that cannot be read could not be dropped."""
    said = delivery.parcel.headers
    # The key, which the broker has judged, and not a header, which may say anything: it is where a replay goes.
    queue = delivery.parcel.routing_key
    body = delivery.parcel.body
    return DeadLetter(
        handle=_handle(delivery.parcel),
        queue=queue,
        reason=str(said.get(headers.REASON) or _brokers_reason(str(said.get(headers.BROKER_REASON, "")))),
        attempts=_number(delivery.parcel, headers.ATTEMPTS),
        where=str(said.get(headers.WHERE, "broker")),
        type=_types_in(delivery.parcel),
        body=body,
        origin=origin_of(delivery),
    )


class Grave(Struct):
    """The dead letters, held for as long as a person looks at them; what is not decided on goes back."""

    connection: Connection
    consuming: Consuming
    letters: dict[int, DeadLetter]
    parcels: dict[int, Parcel]
    gone: set[int]

    async def drop(self, tags: Sequence[int]) -> None:
        """All up to the first that stays in one word, the others a few at a time: of hundreds of words at once, RabbitMQ
        forgets those that it has not passed on to the queue when the consumer leaves, and their letters come back.
        """
        dropped = set(tags)
        self.gone |= dropped
        first = [*takewhile(dropped.__contains__, sorted(self.letters))]
        if first:
            await self.consuming.acknowledge(first[-1], multiple=True)
        for number, tag in enumerate(sorted(dropped.difference(first)), 1):
            await self.consuming.acknowledge(tag)
            if number % WORDS_AT_ONCE == 0:
                await self.connection.depth(DEAD_QUEUE)

    async def replay(self, connection: Connection, tags: Sequence[int]) -> None:
        """Back to the queues they came from, as if never tried; gone from here only when confirmed there."""
        publishing = await connection.open_publishing()
        try:
            for tag in tags:
                for line in _lines(self.parcels[tag]):
                    letter = self.letters[tag]
                    receipt = await publishing.publish(_replayed(letter, line))
                    if receipt is not Receipt.CONFIRMED:
                        raise NotReplayed(
                            f"dead letter {letter.handle} was not replayed: queue {letter.queue!r} is "
                            f"{receipt.value}; it stays here, and so do those after it"
                        )
                await self.consuming.acknowledge(tag)
                self.gone.add(tag)
        finally:
            await publishing.close()


@asynccontextmanager
async def opened(connection: Connection, letters_max: int) -> AsyncIterator[Grave]:
    """The dead letters that are there now, oldest first, taken from the queue and given back at the end.

    Somebody else may be looking at some of them: those are not waited for.
    """
    count = min(await connection.depth(DEAD_QUEUE), letters_max)
    consuming = await connection.open_consuming(DEAD_QUEUE, prefetch=max(count, 1))
    found: dict[int, Delivery] = {}
    try:
        with suppress(TimeoutError):
            while len(found) < count:
                async with asyncio.timeout(PATIENCE_S):
                    found |= {delivery.tag: delivery for delivery in await consuming.receive()}
        grave = Grave(
            connection,
            consuming,
            _told_apart({tag: read(delivery) for tag, delivery in found.items()}),
            {tag: delivery.parcel for tag, delivery in found.items()},
            gone=set(),
        )
        yield grave
    finally:
        await consuming.close()
    await _given_back(connection, len(found) - len(grave.gone))


async def _given_back(connection: Connection, count: int) -> None:
    """RabbitMQ takes letters back some time after their reader left; until then, the next reader would not see them. If
    another reader has taken them meanwhile, the wait ends by its limit.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while await connection.depth(DEAD_QUEUE) < count:  # noqa: ASYNC110 - only the broker knows
                await asyncio.sleep(LOOK_S)


def _handle(parcel: Parcel) -> str:
    """Of everything that a person can tell it from others by, and of the name that it was given with its burial."""
    said = sorted((key, str(value)) for key, value in parcel.headers.items())
    about = repr((parcel.routing_key, parcel.reply_to, said)).encode(errors="backslashreplace")
    return hashlib.sha256(about + b"\0" + parcel.body).hexdigest()[:12]


def _told_apart(letters: Mapping[int, DeadLetter]) -> dict[int, DeadLetter]:
    """What the broker buried has no name of its own. Of those that are alike in everything, each has a number more."""
    seen: Counter[str] = Counter()
    apart = {}
    for tag, letter in letters.items():
        seen[letter.handle] += 1
        number = seen[letter.handle]
        apart[tag] = letter if number == 1 else structs.replace(letter, handle=f"{letter.handle}-{number}")
    return apart


def _number(parcel: Parcel, header: str) -> int:
    """A count in a header; 0 if it is none, since anybody may have written it."""
    value = parcel.headers.get(header, 0)
    return value if isinstance(value, int) and value > 0 else 0


def _fit_for_a_header(reason: str) -> str:
    return reason.encode(errors="backslashreplace")[:REASON_BYTES_MAX].decode(errors="ignore")


def _replayed(letter: DeadLetter, line: bytes) -> Parcel:
    try:
        return returned((revived(line),), letter.queue, letter.origin)
    except ValueError as unknown:
        raise NotReplayed(
            f"dead letter {letter.handle} was not replayed: {unknown}; it stays here, and so do those after it"
        ) from unknown


def _lines(parcel: Parcel) -> Sequence[bytes]:
    lines = lines_of(parcel)
    return (parcel.body,) if isinstance(lines, Unreadable) else lines


def _types_in(parcel: Parcel) -> str:
    kinds = {
        type_of(read.message) if isinstance(read, Envelope) else "?"
        for read in map(CODEC.decode, _lines(parcel))
    }
    return ", ".join(sorted(kinds))


def _brokers_reason(reason: str) -> str:
    return f"the broker gave up on it: {reason or 'no reason given'}"
