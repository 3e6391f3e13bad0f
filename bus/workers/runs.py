"""Which messages of a batch are handled together."""

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from bus.message import Message
from bus.workers.handling import Handler, Handlers, ReadOnly, Weighed

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
