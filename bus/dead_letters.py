"""What could not be handled, kept with its reason until a person decides: `moor dead list|show|replay|drop`.

A worker buries an item by itself, with headers that say why, how often it was tried, and where. The broker buries a
whole parcel when it has come back too often; it only says from which queue.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from msgspec import Struct

from bus import headers
from bus.broker import LINES, PLAIN, Connection, Consuming, Delivery, Parcel, Receipt
from bus.codec import CODEC, lines_of, revived
from bus.message import Envelope, type_of
from bus.origin import Origin, origin_of
from bus.topology import DEAD, DEAD_QUEUE, retry_exchange_of
from bus.unreadable import Unreadable

REASON_BYTES_MAX = 2_000
PATIENCE_S = 3.0


class DeadLetter(Struct, frozen=True):
    """One dead letter as a person sees it. Letters with equal content from one queue share a handle."""

    handle: str
    queue: str
    reason: str
    attempts: int
    where: str
    type: str
    body: bytes
    origin: Origin


def burial(line: bytes, queue: str, origin: Origin, *, reason: str, attempts: int, where: str) -> Parcel:
    """The parcel that brings one item to the dead letters."""
    return Parcel(
        exchange=DEAD,
        routing_key=queue,
        body=line,
        content_type=PLAIN,
        mandatory=True,
        headers={
            headers.REASON: reason[:REASON_BYTES_MAX],
            headers.QUEUE: queue,
            headers.ATTEMPTS: attempts,
            headers.WHERE: where,
            **_said(origin),
        },
    )


def returned(lines: Sequence[bytes], queue: str, origin: Origin) -> Parcel:
    """The parcel that brings items back to their queue, by themselves."""
    return Parcel(
        exchange=retry_exchange_of(queue),
        routing_key=queue,
        # A line of a client's own may be written over several, so by itself it is not one of many.
        body=b"\n".join(lines),
        content_type=PLAIN if len(lines) == 1 else LINES,
        mandatory=True,
        reply_to=origin.reply_to,
        headers=_said(origin),
    )


def _said(origin: Origin) -> dict[str, str | int]:
    return {headers.SENDER: origin.sender, headers.EXCHANGE: origin.exchange, headers.KEY: origin.key}


def read(delivery: Delivery) -> DeadLetter:
    said = delivery.parcel.headers
    # The key, which the broker has judged, and not a header, which may say anything: it is where a replay goes.
    queue = delivery.parcel.routing_key
    body = delivery.parcel.body
    return DeadLetter(
        handle=hashlib.sha256(queue.encode() + b"\0" + body).hexdigest()[:12],
        queue=queue,
        reason=str(said.get(headers.REASON) or _brokers_reason(str(said.get(headers.BROKER_REASON, "")))),
        attempts=int(said.get(headers.ATTEMPTS, 0)),
        where=str(said.get(headers.WHERE, "broker")),
        type=_types_in(delivery.parcel),
        body=body,
        origin=origin_of(delivery),
    )


class Grave(Struct):
    """The dead letters, held for as long as a person looks at them; what is not decided on goes back."""

    consuming: Consuming
    letters: dict[int, DeadLetter]
    parcels: dict[int, Parcel]

    async def drop(self, tags: Sequence[int]) -> None:
        for tag in tags:
            await self.consuming.acknowledge(tag)

    async def replay(self, connection: Connection, tags: Sequence[int]) -> None:
        """Back to the queues they came from, as if never tried; gone from here only when confirmed there."""
        publishing = await connection.open_publishing()
        try:
            for tag in tags:
                for line in _lines(self.parcels[tag]):
                    letter = self.letters[tag]
                    receipt = await publishing.publish(
                        returned((revived(line),), letter.queue, letter.origin)
                    )
                    if receipt is not Receipt.CONFIRMED:
                        raise RuntimeError(
                            f"dead letter {letter.handle} was not replayed: queue {letter.queue!r} is "
                            f" {receipt.value}; it stays here"
                        )
                await self.consuming.acknowledge(tag)
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
        yield Grave(
            consuming,
            {tag: read(delivery) for tag, delivery in found.items()},
            {tag: delivery.parcel for tag, delivery in found.items()},
        )
    finally:
        await consuming.close()


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
