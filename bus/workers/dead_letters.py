"""Dead letters: messages that could not be handled, kept with the reason until a person decides what to do
with them (`moor dead list|show|replay|delete`).

A worker buries (dead-letters) a single message, with headers that say why, where, and after how many
attempts. The broker dead-letters a whole parcel that came back too often or has expired, and records only its queue.

A replay has the authority of the letter's first sender, and never that of the person who replays it.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from itertools import takewhile
from typing import Any

from msgspec import Struct, structs

from bus.broker import Connection, Consuming, Delivery, Origin, Receipt
from bus.codec import CODEC, lines_of
from bus.message import (
    ATTEMPTS,
    BROKER_REASON,
    BURIED_AT,
    EXCHANGE,
    EXPIRATION,
    FAILED_IN,
    KEY,
    LETTER,
    PLAIN,
    QUEUE,
    REASON,
    SENDER,
    WAITS,
    WHERE,
    Envelope,
    Parcel,
    type_of,
)
from bus.messages.cloud import RowFailed
from bus.queues import DEAD, DEAD_QUEUE, is_retry_exchange
from bus.topology import retry_exchange_of
from bus.unreadable import Unreadable
from bus.workers.authority import BrokerFacts, is_parked, judge, judge_parcel, origin_of
from kit.errors import Failure

REASON_BYTES_MAX = 2_000
COUNT_MAX = 2**31 - 1
# Of letters that are not replayed so many are told.
REFUSED_TOLD_MAX = 5
# Where a letter was dead-lettered that no worker has.
BROKER = "broker"
# Letters of this type are about a row (bus/workers/set_aside.py).
ABOUT_ROW = type_of(RowFailed)
PATIENCE_S = 3.0
LOOK_S = 0.01
# RabbitMQ limits how much one channel may send to a quorum queue before that queue catches up. This is half of it.
WORDS_AT_ONCE = 16


class NotReplayed(Failure):
    """The queue of a dead letter did not accept it again, or its sender may not send it. The dead letter stays."""


class DeadLetter(Struct, frozen=True):
    """One dead letter as it is shown to a person.

    By its handle an operator names it. Letters that share one are about the same row (bus/workers/set_aside.py), of which each process
    that fails at it writes one. `sent_at` is what its sender said. `buried_at` is unknown of a letter that the broker dead-lettered.
    """

    handle: str
    queue: str
    reason: str
    attempts: int
    where: str
    type: str
    parcel: Parcel
    origin: Origin
    sent_at: datetime | None = None
    buried_at: datetime | None = None

    @property
    def document(self) -> Mapping[str, Any]:
        """All of it for programs, with the body as a text."""
        return {
            "handle": self.handle,
            "queue": self.queue,
            "type": self.type,
            "reason": self.reason,
            "attempts": self.attempts,
            "where": self.where,
            "sender": self.origin.sender,
            "sent_at": self.sent_at,
            "buried_at": self.buried_at,
            "bytes": len(self.parcel.body),
            "body": self.parcel.body.decode(errors="replace"),
        }


def dead_letter_parcel(
    line: bytes,
    queue: str,
    origin: Origin,
    *,
    reason: str,
    attempts: int,
    where: str,
    letter: str = "",
    at: datetime | None = None,
) -> Parcel:
    """The parcel that carries one message to the dead letters. `letter` is a unique name for it, `at` the time."""
    return Parcel(
        exchange=DEAD,
        routing_key=queue,
        body=line,
        content_type=PLAIN,
        mandatory=True,
        headers={
            REASON: reason.encode(errors="backslashreplace")[:REASON_BYTES_MAX].decode(errors="ignore"),
            QUEUE: queue,
            ATTEMPTS: attempts,
            WHERE: where,
            **_said(origin),
            LETTER: letter,
            **({} if at is None else {BURIED_AT: at.isoformat()}),
        },
    )


class Parked(Struct, frozen=True):
    """What whoever parked a message for another try wrote beside it; all 0 of a message that nobody has parked.

    `attempts` counts how often it was tried, `waits` how often it was returned to wait for a worker of a newer release. `failed_in` is
    the process that has met a bug at it, empty if none has.
    """

    attempts: int = 0
    waits: int = 0
    failed_in: str = ""


NOT_PARKED = Parked()


def retry_parcel(line: bytes, queue: str, origin: Origin, parked: Parked = NOT_PARKED) -> Parcel:
    """The parcel that returns one message to its own queue, for another try."""
    said: dict[str, str | int] = {
        ATTEMPTS: parked.attempts,
        WAITS: parked.waits,
        FAILED_IN: parked.failed_in,
    }
    return Parcel(
        exchange=retry_exchange_of(queue),
        routing_key=queue,
        # A client may have written one JSON message over several lines, so it is not sent as lines.
        body=line,
        content_type=PLAIN,
        mandatory=True,
        reply_to=origin.reply_to,
        headers=_said(origin) | {name: value for name, value in said.items() if value},
    )


def parked_of(parcel: Parcel) -> Parked:
    """What is written beside a parked message. Only who parks may write to the exchanges for retries: elsewhere nothing counts."""
    if not is_retry_exchange(parcel.exchange):
        return NOT_PARKED
    failed_in = str(parcel.headers.get(FAILED_IN, ""))
    return Parked(_number(parcel.headers, ATTEMPTS), _number(parcel.headers, WAITS), failed_in)


def _said(origin: Origin) -> dict[str, str | int]:
    first: dict[str, str | int] = {
        SENDER: origin.sender,
        EXCHANGE: origin.exchange,
        KEY: origin.key,
    }
    if origin.expiration:
        first[EXPIRATION] = origin.expiration
    return first


def read(delivery: Delivery, facts: BrokerFacts) -> DeadLetter:
    """Make a dead letter from a delivery, whatever its bytes and headers are.

    If this failed for a letter, an operator could not drop that letter either. Our headers count if a worker has written them.
    """
    headers, origin = delivery.parcel.headers, origin_of(delivery, facts)
    said = headers if is_parked(delivery, facts) else {}
    found = [*map(CODEC.decode, _lines(delivery.parcel))]
    known = [each for each in found if isinstance(each, Envelope)]
    rows = [each.message for each in known if said and isinstance(each.message, RowFailed)]
    brokers_reason = f"the broker gave up on it: {headers.get(BROKER_REASON) or 'no reason given'}"
    return DeadLetter(
        handle=_handle(delivery.parcel, repr((origin.sender, rows)) if rows else ""),
        # A replay goes to this queue. It is taken from the key, which the broker has checked, and not from a
        # header, which may say anything.
        queue=delivery.parcel.routing_key,
        reason=str(said.get(REASON) or brokers_reason),
        attempts=_number(said, ATTEMPTS),
        where=str(said.get(WHERE, BROKER)),
        type=", ".join(
            sorted({type_of(each.message) if isinstance(each, Envelope) else "?" for each in found})
        ),
        parcel=delivery.parcel,
        origin=origin,
        sent_at=next((each.sent_at for each in known if each.sent_at), None),
        buried_at=_moment(said.get(BURIED_AT)),
    )


class OpenedDeadLetters(Struct):
    """The dead letters, held while a person looks at them. Letters that are neither dropped nor replayed go back."""

    connection: Connection
    consuming: Consuming
    facts: BrokerFacts
    # By their tags; those that were dropped or replayed are gone.
    letters: dict[int, DeadLetter]

    async def drop(self, tags: Sequence[int]) -> None:
        """Remove these letters from the queue for good.

        The longest prefix is acknowledged at once, and the others a few at a time. RabbitMQ forgets some of hundreds of
        single acknowledgements if the consumer leaves before the queue has them, and then these letters come back.
        """
        dropped = set(tags)
        first = [*takewhile(dropped.__contains__, sorted(self.letters))]
        if first:
            await self.consuming.acknowledge(first[-1], multiple=True)
        for number, tag in enumerate(sorted(dropped.difference(first)), 1):
            await self.consuming.acknowledge(tag)
            if number % WORDS_AT_ONCE == 0:
                await self.connection.depth(DEAD_QUEUE)
        for tag in dropped:
            del self.letters[tag]

    async def replay(self, connection: Connection, tags: Sequence[int]) -> None:
        """Send these letters to their own queues again, with no attempts counted.

        A letter is removed from the dead letters only when its own queue has accepted it. One that its sender may not send stays, and
        holds up no other: it may be a client's, written to stand in the way.
        """
        publishing = await connection.open_publishing()
        refused: list[str] = []
        try:
            for tag in tags:
                letter = self.letters[tag]
                if why := _why_not_replayed(letter, self.facts):
                    refused.append(f"dead letter {letter.handle} was not replayed: {why}; it stays here")
                    continue
                for line in _lines(letter.parcel):
                    receipt = await publishing.publish(_replayed(letter, line))
                    if receipt is not Receipt.CONFIRMED:
                        raise NotReplayed(
                            f"dead letter {letter.handle} was not replayed: queue {letter.queue!r} is "
                            f"{receipt.value}; it and the letters after it stay here"
                        )
                await self.consuming.acknowledge(tag)
                del self.letters[tag]
        finally:
            await publishing.close()
        if refused:
            raise NotReplayed("; ".join(refused[:REFUSED_TOLD_MAX]))


@asynccontextmanager
async def open_dead_letters(
    connection: Connection, letters_max: int, facts: BrokerFacts | None = None
) -> AsyncIterator[OpenedDeadLetters]:
    """A context with the dead letters that are in the queue now, oldest first. They go back into the queue at its end.

    Letters that another reader has are not waited for. Without `facts` about the broker, it has no users.
    """
    facts = facts or BrokerFacts()
    count = min(await connection.depth(DEAD_QUEUE), letters_max)
    consuming = await connection.open_consuming(DEAD_QUEUE, prefetch=max(count, 1))
    found: dict[int, Delivery] = {}
    try:
        with suppress(TimeoutError):
            while len(found) < count:
                async with asyncio.timeout(PATIENCE_S):
                    found |= {delivery.tag: delivery for delivery in await consuming.receive()}
        letters = _told_apart({tag: read(delivery, facts) for tag, delivery in found.items()})
        yield OpenedDeadLetters(connection, consuming, facts, letters)
    finally:
        await consuming.close()
    await _given_back(connection, len(letters))


async def _given_back(connection: Connection, count: int) -> None:
    """Wait until the queue has the returned letters again, so that the next reader sees them.

    RabbitMQ returns them some time after their reader has left. If another reader takes them in between, the wait ends
    at its limit.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while await connection.depth(DEAD_QUEUE) < count:  # noqa: ASYNC110 - only the broker knows
                await asyncio.sleep(LOOK_S)


def _handle(parcel: Parcel, row: str) -> str:
    """The handle by which an operator names a dead letter: a hash of its queue, and of the row that it is about.

    If it is about none, it is a hash of everything by which letters differ, including the unique name that a worker gave this one.
    """
    said = sorted((key, str(value)) for key, value in parcel.headers.items())
    about = row or repr((parcel.reply_to, said, parcel.body))
    return hashlib.sha256(f"{parcel.routing_key} {about}".encode(errors="backslashreplace")).hexdigest()[:12]


def _told_apart(letters: Mapping[int, DeadLetter]) -> dict[int, DeadLetter]:
    """Make the handles of dead letters unique, by adding numbers to equal ones: those of the broker have no unique name, and a sender may
    repeat one. Letters of workers about one row stay together.
    """
    seen: Counter[str] = Counter()
    apart = {}
    for tag, letter in letters.items():
        seen[letter.handle] += letter.where == BROKER or letter.type != ABOUT_ROW
        number = seen[letter.handle] or 1
        apart[tag] = letter if number == 1 else structs.replace(letter, handle=f"{letter.handle}-{number}")
    return apart


def _number(headers: Mapping[str, str | int], header: str) -> int:
    """A count in a header; 0 if the header is not a count."""
    value = headers.get(header, 0)
    return value if isinstance(value, int) and 0 < value <= COUNT_MAX else 0


def _why_not_replayed(letter: DeadLetter, facts: BrokerFacts) -> str:
    """Why no worker would take this letter from its sender. Empty if one would, and for what cannot be read here."""
    origin = letter.origin
    # Where a process owns its broker, letters have no sender: whoever reads them then knows whether that counts.
    if not (facts.has_users and origin.sender):
        return ""
    if not origin.key:
        return (
            f"the broker itself gave it up, so nobody has verified under which key {origin.sender} sent it; that one "
            "may send it anew"
        )
    read = [CODEC.decode(line) for line in _lines(letter.parcel)]
    refused = judge_parcel(origin, facts)
    for each in read:
        if isinstance(each, Envelope):
            refused = refused or judge(each.message, origin, facts)
    return "" if refused is None else refused.reason


def _replayed(letter: DeadLetter, line: bytes) -> Parcel:
    try:
        return retry_parcel(line, letter.queue, letter.origin)
    except ValueError as unknown:
        raise NotReplayed(
            f"dead letter {letter.handle} was not replayed: {unknown}; it and the letters after it stay here"
        ) from unknown


def _lines(parcel: Parcel) -> Sequence[bytes]:
    lines = lines_of(parcel)
    return (parcel.body,) if isinstance(lines, Unreadable) else lines


def _moment(said: object) -> datetime | None:
    """The time in a header; None if there is none, or if it is no time with a zone."""
    try:
        at = datetime.fromisoformat(str(said))
    except ValueError:
        return None
    return at if at.tzinfo else None
