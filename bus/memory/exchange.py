"""Topic routing as in AMQP: which queues a routing key reaches."""

from functools import lru_cache

from bus.memory.queue import MemoryQueue


class MemoryExchange:
    """The bindings of one exchange. A queue gets a parcel once, however many of its bindings match."""

    def __init__(self, name: str, *, durable: bool) -> None:
        self.name = name
        self.durable = durable
        # The words of each pattern.
        self.bindings: dict[tuple[str, MemoryQueue], tuple[str, ...]] = {}
        self.route = lru_cache(maxsize=10_000)(self._route)

    def bind(self, pattern: str, queue: MemoryQueue) -> bool:
        """Bind a queue. Returns whether the binding is new."""
        if (pattern, queue) in self.bindings:
            return False
        self.bindings[pattern, queue] = words_of(pattern)
        self.route.cache_clear()
        return True

    def unbind_all(self, queue: MemoryQueue) -> None:
        bindings = {key: words for key, words in self.bindings.items() if key[1] is not queue}
        if len(bindings) < len(self.bindings):
            self.bindings = bindings
            self.route.cache_clear()

    def _route(self, routing_key: str) -> tuple[MemoryQueue, ...]:
        """The queues for this key, in the order in which they were bound."""
        words = words_of(routing_key)
        matching = (queue for (_, queue), pattern in self.bindings.items() if matches(pattern, words))
        return tuple(dict.fromkeys(matching))


def words_of(key: str) -> tuple[str, ...]:
    """Split a routing key or pattern into its words. An empty key has no words."""
    return tuple(key.split(".")) if key else ()


@lru_cache(maxsize=10_000)
def matches(pattern: tuple[str, ...], words: tuple[str, ...]) -> bool:
    """Whether a routing key matches a topic pattern.

    In a pattern, `*` stands for one word, and `#` for any number of words or none. `reached[n]` says whether the
    pattern so far can match exactly the first n words. So several `#` cost no more than one.
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
