"""Questions and their answers, page by page. A rejection in place of an answer is raised."""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from msgspec import structs

from bus.broker import PARCEL_BYTES_MAX
from bus.codec import CODEC, encode
from bus.message import Envelope, Message, type_of
from bus.messages.build import BuildRejected
from bus.unreadable import Unreadable
from moor.client.errors import NotSendable, Rejected

# A parcel also has the envelope, which the publisher fills.
LINE_BYTES_MAX = PARCEL_BYTES_MAX - 1024

T = TypeVar("T")
P = TypeVar("P")
M = TypeVar("M", bound=Message)


class Asks(Protocol):
    """Anything that can ask a question on the bus: a `BusClient` or a `Station`."""

    async def ask(self, question: Message) -> Message: ...


def batches_of(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def as_received(message: M) -> M:
    """The message as its receiver will decode it: with tuples in place of lists, for instance.

    Raises `NotSendable`, which names the wrong field, if no receiver could decode it.
    """
    try:
        line = encode(Envelope(message=message))
    except (TypeError, ValueError, OverflowError) as problem:
        raise NotSendable("message", type(message).__name__, str(problem)) from None
    if len(line) > LINE_BYTES_MAX:
        # Its receivers would not read it, and could not answer.
        why = f"it has {len(line)} bytes, and a message at most {LINE_BYTES_MAX}"
        raise NotSendable("message", type_of(message), why, getattr(message, "request_id", None))
    try:
        read = readable(line)
    except NotSendable as wrong:
        wrong.request_id = getattr(message, "request_id", None)
        raise
    assert isinstance(read, type(message)), "a message is decoded as its own type"
    return read


def readable(line: bytes) -> Message:
    """Decode a message as its receiver will. Raises `NotSendable` if that is impossible."""
    read = CODEC.decode(line)
    if isinstance(read, Envelope):
        return read.message
    assert isinstance(read, Unreadable), "a line of this release has no newer version"
    why, *_ = read.reason.partition(" - at `$")
    raise NotSendable(read.field, read.value, why)


async def answer_of(asking: Asks, question: Message, kind: type[T]) -> T:
    """Ask a question and return its answer, of type `kind`. Raises `Rejected` if it is refused."""
    return granted(question, await asking.ask(question), kind)


def granted(question: Message, answer: Message, kind: type[T]) -> T:
    if isinstance(answer, BuildRejected):
        raise Rejected(
            answer.field, answer.value, answer.reason, getattr(question, "request_id", answer.request_id)
        )
    assert isinstance(answer, kind), f"{question!r} was answered by {answer!r}"
    return answer


async def pages_of(asking: Asks, question: Message, kind: type[P]) -> AsyncGenerator[P, None]:
    """Ask a question, and yield all pages of its answer: one, if answers of this kind have no `next`."""
    while True:
        page = await answer_of(asking, question, kind)
        yield page
        if not (after := getattr(page, "next", None)):
            return
        question = structs.replace(question, after=after)


async def items_of(
    asking: Asks, question: Message, kind: type[P], items: Callable[[P], Iterable[T]]
) -> list[T]:
    """Ask for all pages of an answer, and return the items on them."""
    return [item async for page in pages_of(asking, question, kind) for item in items(page)]
