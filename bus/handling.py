"""What handlers get and give, and the one place that decides what becomes of a message that could not be handled."""

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

from msgspec import Struct

from bus.errors import Failure, Locked, Poison, TookTooLong, Unavailable
from bus.message import Envelope, M_co, Message
from bus.origin import Origin
from bus.settings import BusSettings

Tx = TypeVar("Tx")


class Received(Struct, Generic[M_co], frozen=True, eq=False, gc=False):
    """A message as a handler gets it. `sender` is the user the broker verified, empty if the sender did not say; `cell` is
    the one cell that the sender may speak for, None if it stands above cells; `sent_at` is the sender's own word, None if it
    did not say.
    """

    message: M_co
    id: str
    trace: str
    sender: str
    reply_to: str
    attempts: int
    sent_at: datetime | None = None
    cell: str | None = None


def received(
    envelope: Envelope[M_co], origin: Origin, returns: int, cell: str | None = None
) -> Received[M_co]:
    return Received(
        message=envelope.message,
        id=envelope.id,
        trace=envelope.trace,
        sender=origin.sender,
        reply_to=origin.reply_to,
        attempts=envelope.attempts + returns,
        sent_at=envelope.sent_at,
        cell=cell,
    )


class Answer(Struct, frozen=True, gc=False):
    """Said to whoever asked; to nobody if the question named no one to answer to."""

    question: Received[Message]
    message: Message


class Tell(Struct, frozen=True, gc=False):
    """Said to whom it concerns. With `kept`, it stays on its entity's row until the broker has confirmed it."""

    message: Message
    cause: Received[Message] | None = None
    kept: "Kept | None" = None
    # The project on whose feed it is said, and nowhere else.
    feed: str = ""


class Bury(Struct, frozen=True):
    """This item never will work; its neighbours are done."""

    item: Received[Message]
    reason: str


class Kept(Struct, frozen=True):
    """Where a message is kept until it is confirmed: an entity's row and its sequence number there, or whatever else its
    store keeps it by.
    """

    entity: str
    sequence: int


Said = Answer | Tell | Bury
Handler = Callable[[Sequence[Received[Any]], Any], Awaitable[Sequence[Said]]]


class Reading(Struct, frozen=True):
    """A handler that saves nothing, and so is not given a transaction."""

    handle: Callable[[Sequence[Received[Any]]], Awaitable[Sequence[Said]]]


# Which handler takes which message. Neighbours in a queue that share a handler are given to it together, in order.
# Who handles `Unreadable` answers what cannot be read; where nobody does, it becomes a dead letter.
Handlers = Mapping[type[Message], Handler | Reading]


class OneByOne(Struct, frozen=True):
    """Each item by itself, so that the one to blame is found."""


class PutBack(Struct, frozen=True):
    """The item goes back to its queue after a pause; one attempt older, if that was its own."""

    delay_ms: float
    counts: bool = True


class GiveUp(Struct, frozen=True):
    """To the dead letters."""

    reason: str


def after_failure(
    problem: Exception, *, items: int, attempts: int, settings: BusSettings, others_succeed: bool = True
) -> OneByOne | PutBack | GiveUp:
    """What becomes of a batch of so many items that failed, or of one item after so many attempts.

    What was transient has been tried where it was before this is asked. An attempt that failed by what the item cannot
    help is not counted: else a server that does not answer would make dead letters of innocent messages.
    """
    if items > 1:
        return OneByOne()
    if isinstance(problem, Locked | Unavailable) or (isinstance(problem, TookTooLong) and not others_succeed):
        return PutBack(settings.blameless_delay_ms, counts=False)
    if isinstance(problem, Poison):
        return GiveUp(describe(problem))
    if attempts + 1 >= settings.attempts_max:
        return GiveUp(f"{describe(problem)}; {attempts + 1} attempts, none is left")
    return PutBack(backoff_ms(attempts, settings))


def backoff_ms(tries: int, settings: BusSettings) -> float:
    return min(settings.retry_delay_ms_first * 2.0**tries, settings.retry_delay_ms_max)


def jittered_ms(delay_ms: float, chance: random.Random) -> float:
    """Somewhere in the upper half, so that those who failed together do not come back together."""
    return delay_ms * chance.uniform(0.5, 1.0)


def describe(problem: Exception) -> str:
    """A failure of ours speaks for itself; of anything else, its type is half of the message."""
    return str(problem) if isinstance(problem, Failure) else f"{type(problem).__name__}: {problem}"
