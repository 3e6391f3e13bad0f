"""Topic routing as in AMQP: which queues a routing key reaches."""

from collections.abc import Iterable, Sequence

from bus.memory.queue import MemoryQueue

ROUTES_REMEMBERED_MAX = 10_000


class MemoryExchange:
    """The bindings of one exchange. A queue gets a parcel once, however many of its bindings match."""

    def __init__(self, name: str, *, durable: bool) -> None:
        self.name = name
        self.durable = durable
        self._bindings: dict[tuple[str, MemoryQueue], tuple[str, ...]] = {}
        self._routes: dict[str, tuple[MemoryQueue, ...]] = {}

    @property
    def bindings(self) -> Iterable[tuple[str, MemoryQueue]]:
        return self._bindings

    def bind(self, pattern: str, queue: MemoryQueue) -> bool:
        """Bind a queue. True if the binding is new."""
        if (pattern, queue) in self._bindings:
            return False
        self._bindings[pattern, queue] = words_of(pattern)
        self._routes.clear()
        return True

    def unbind_all(self, queue: MemoryQueue) -> None:
        for pattern, bound in [*self._bindings]:
            if bound is queue:
                del self._bindings[pattern, bound]
        self._routes.clear()

    def route(self, routing_key: str) -> tuple[MemoryQueue, ...]:
        """The queues for this key, in the order in which they were bound."""
        queues = self._routes.get(routing_key)
        if queues is None:
            words = words_of(routing_key)
            found = {queue: None for (_, queue), pattern in self._bindings.items() if matches(pattern, words)}
            if len(self._routes) >= ROUTES_REMEMBERED_MAX:
                self._routes.clear()
            queues = self._routes[routing_key] = tuple(found)
        return queues


def words_of(key: str) -> tuple[str, ...]:
    """The words of a key. An empty key has none, not one empty word."""
    return tuple(key.split(".")) if key else ()


def matches(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Does the pattern match? `*` stands for one word, `#` for any number of words, none included.

    `reached[n]` says whether the pattern so far can match exactly the first n words. So several `#` cost no more than
    one.
    """
    reached = [True] + [False] * len(words)
    for part in pattern:
        if part == "#":
            first = reached.index(True) if True in reached else len(reached)
            reached = [n >= first for n in range(len(reached))]
        else:
            reached = [False] + [
                before and part in ("*", word) for before, word in zip(reached, words, strict=False)
            ]
    return reached[-1]
