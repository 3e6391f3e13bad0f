"""What handlers get and return, which messages of a batch one of them gets together, and what happens to a message whose handler failed."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, NewType, TypeVar

from msgspec import Struct

from bus.broker import Origin
from bus.message import Envelope, M_co, Message
from bus.settings import BusSettings
from kit.errors import Failure, Locked, Poison, TookTooLong, Unavailable
from kit.parts import grown, operational

Tx = TypeVar("Tx")
# Columns and messages have room for so many characters.
BY_LENGTH_MAX = 255
TRACEBACK_LENGTH_MAX = 1_200
# Under this number a store keeps messages until they are confirmed.
OutboxKey = NewType("OutboxKey", int)


class Received(Struct, Generic[M_co], frozen=True, eq=False, gc=False):
    """A message as a handler receives it.

    `sender` is the user verified by the broker, empty if the sender did not name it. `cell` is the only cell that the
    sender may speak for, None for a sender of the API level. `sent_at` is the time of sending by the sender's clock,
    None if it was not sent along.
    """

    message: M_co
    id: str
    trace: str
    sender: str
    reply_to: str
    attempts: int
    sent_at: datetime | None = None
    cell: str | None = None

    @property
    def by(self) -> str:
        """Who ordered it: the verified sender, and the person for whom it acts, if the message names one."""
        person = getattr(self.message, "for_user", "")
        return f"{self.sender} for {person}".lstrip()[:BY_LENGTH_MAX] if person else self.sender


def all_received(
    envelopes: Iterable[Envelope[M_co]], origin: Origin, attempts: int, cell: str | None = None
) -> list[Received[M_co]]:
    sender, reply_to = origin.sender, origin.reply_to
    return [
        Received(each.message, each.id, each.trace, sender, reply_to, attempts, each.sent_at, cell)
        for each in envelopes
    ]


class Answer(Struct, frozen=True, gc=False):
    """An answer to a question. It is dropped if the question names no reply address."""

    question: Received[Message]
    message: Message


class Tell(Struct, frozen=True, gc=False):
    """A message to publish to the exchange and key that its type has; answers are sent as `Answer`.

    With `kept`, the message is also stored with the entity that it is about, such as an instance, until the broker
    confirms it.
    """

    message: Message
    cause: Received[Message] | None = None
    kept: OutboxKey | None = None
    # Publish it on this project's feed and nowhere else.
    feed: str = ""


class Bury(Struct, frozen=True):
    """The handler's result for a message that can never be handled: dead-letter it, with this reason.

    All other messages of its batch count as handled.
    """

    item: Received[Message]
    reason: str


Said = Answer | Tell | Bury
Handler = Callable[[Sequence[Received[Any]], Any], Awaitable[Sequence[Said]]]


class ReadOnly(Struct, frozen=True):
    """Wraps a handler that only reads: it saves nothing and gets no transaction."""

    handle: Callable[[Sequence[Received[Any]]], Awaitable[Sequence[Said]]]


def answering(answer: Callable[[Any], Awaitable[Message]]) -> ReadOnly:
    """Make a handler of questions that answers each of them alone, by `answer`.

    The event loop runs between two answers, so other batches do not wait for all questions of one batch.
    """

    async def on_asks(asks: Sequence[Received[Message]]) -> list[Said]:
        said: list[Said] = []
        for ask in asks:
            said.append(Answer(ask, await answer(ask.message)))
            await asyncio.sleep(0)
        return said

    return ReadOnly(on_asks)


class Weighed(Struct, frozen=True):
    """A handler whose messages differ much in cost, and the largest weight of messages that it gets in one call.

    A single message that is heavier than that is a call by itself.
    """

    handle: Handler
    weight_of: Callable[[Any], int]
    weight_max: int


# Which handler takes which message. Messages of a queue with the same handler go to it together, those about the same thing in order.
# A handler of `Unreadable` answers messages that cannot be read; without one, they become dead letters.
Handlers = Mapping[type[Message], Handler | ReadOnly | Weighed]


class OneByOne(Struct, frozen=True):
    """Decision after a failed batch: handle each message alone, to find the one that fails."""


class PutBack(Struct, frozen=True):
    """Decision after a failure: return the message to its queue after a pause. With `counts`, one more attempt is counted; with
    `is_bug`, this process is written beside it.
    """

    delay_ms: float
    counts: bool = True
    is_bug: bool = False


class GiveUp(Struct, frozen=True):
    """Decision after a failure: make the message a dead letter, with this reason."""

    reason: str


def after_failure(
    problem: Exception,
    *,
    items: int,
    attempts: int,
    settings: BusSettings,
    others_succeed: bool = True,
    failed_elsewhere: bool = False,
) -> OneByOne | PutBack | GiveUp:
    """Decide what to do with a batch of `items` messages that failed, or with one message after so many `attempts`.

    The worker has already retried transient errors in place. An attempt is not counted if the message is not to blame:
    otherwise a server that does not answer would turn good messages into dead letters. A message at which a second process meets a
    bug is given up at once: the first one may have been ill itself, and both are not.
    """
    if items > 1:
        return OneByOne()
    if isinstance(problem, Locked | Unavailable) or (isinstance(problem, TookTooLong) and not others_succeed):
        return PutBack(settings.BLAMELESS_DELAY_MS, counts=False)
    if isinstance(problem, Poison):
        return GiveUp(describe(problem))
    is_bug = operational(problem) is None
    if is_bug and failed_elsewhere:
        return GiveUp(f"{describe(problem)}; two processes failed at it\n{_innermost(problem)}")
    if attempts + 1 >= settings.ATTEMPTS_MAX:
        trace = f"\n{_innermost(problem)}" if is_bug else ""
        return GiveUp(f"{describe(problem)}; {attempts + 1} attempts, none is left{trace}")
    return PutBack(backoff_ms(attempts, settings), is_bug=is_bug)


def _innermost(bug: Exception) -> str:
    """The end of the traceback, as far as the reason of a dead letter has room for it."""
    return "".join(traceback.format_tb(bug.__traceback__))[-TRACEBACK_LENGTH_MAX:]


def backoff_ms(tries: int, settings: BusSettings) -> float:
    """The pause after a try, when there were so many before it."""
    return grown(settings.RETRY_DELAY_MS_FIRST, settings.RETRY_DELAY_MS_MAX, tries + 1)


def describe(problem: Exception) -> str:
    """Describe an exception as the reason of a dead letter. Our own errors need no type: their text says everything."""
    return str(problem) if isinstance(problem, Failure) else f"{type(problem).__name__}: {problem}"


# Which messages of a batch are handled together.


T = TypeVar("T")
Taker = Handler | ReadOnly | Weighed | None


def runs(
    batch: Sequence[T], messages: Sequence[Message], handlers: Handlers
) -> Sequence[tuple[Taker, Sequence[T]]]:
    """The items of a batch in groups of one handler each, in the order in which to handle them. `messages` are those of the items.

    Messages about the same thing stay in the order of the queue. Others may pass each other: builds and deletes that come in turn
    are handled as all builds and all deletes, not one by one.
    """
    takers = {kind: handlers.get(kind) for kind in {*map(type, messages)}}
    if len({*takers.values()}) == 1:
        return [(takers[type(messages[0])], batch)]
    found: list[tuple[Taker, list[T]]] = []
    # Since the last message that nothing may pass: the newest group of each handler, and the last group about each thing.
    newest: dict[Taker, int] = {}
    last: dict[int, int] = {}
    for item, message in zip(batch, messages, strict=True):
        taker, keys = takers[type(message)], message.about()
        at = newest.get(taker, -1)
        if at < _first_for(keys, last, len(found) - 1):
            at = len(found)
            found.append((taker, []))
        found[at][1].append(item)
        if keys is None:
            newest, last = {}, {}
        newest[taker] = at
        last.update(dict.fromkeys(keys or (), at))
    return found


def _first_for(keys: Collection[int] | None, last: Mapping[int, int], end: int) -> int:
    """The first of the groups in which a message about these things does not pass one that came before it."""
    if keys is None:
        return max(end, 0)
    return max((last.get(key, 0) for key in keys), default=0)
