"""What each user may do on a broker, worked out from the topology: the promise of no up-calls, as regular expressions.

The same rights are given to RabbitMQ (`moor broker declare --users`) and enforced by the memory broker, so that a
simulation sees a cell refused just as the real broker would refuse it.
"""

import re
from collections.abc import Iterable

from msgspec import Struct

from bus.topology import (
    DEAD,
    REPLY,
    Grant,
    Role,
    in_cell,
    retry_exchange_of,
    user_of,
)

NOTHING = "^$"
EVERYTHING = ".*"
NAMED_BY_RABBITMQ = r"amq\.gen-.*"


class TopicRights(Struct, frozen=True):
    """Which routing keys a user may write to, and bind its own queues to, on one exchange."""

    exchange: str
    write: str = NOTHING
    read: str = NOTHING


class Rights(Struct, frozen=True):
    """What a user may configure, write and read, by name; on topic exchanges, with which keys.

    An exchange without topic rights is one where the names alone decide.

    `answers` are its answer queues. RabbitMQ has no such right, and a right to configure their names would be one to
    make exchanges of these names, which are its own to bind to whatever it may write to, past all topic rights. So
    there it may configure only what RabbitMQ itself names, which queues can be and exchanges cannot.
    """

    user: str
    configure: str = NOTHING
    write: str = NOTHING
    read: str = NOTHING
    topics: tuple[TopicRights, ...] = ()
    answers: str = NOTHING

    def may_configure(self, name: str) -> bool:
        return re.search(self.configure, name) is not None

    def may_declare_queue(self, name: str) -> bool:
        return self.may_configure(name) or re.search(self.answers, name) is not None

    def may_write(self, name: str) -> bool:
        return re.search(f"{self.write}|{self.answers}", name) is not None

    def may_read(self, name: str) -> bool:
        return re.search(f"{self.read}|{self.answers}", name) is not None

    def may_publish(self, exchange: str, routing_key: str) -> bool:
        return self.may_write(exchange or "amq.default") and self._topic(exchange, routing_key, "write")

    def may_bind(self, exchange: str, routing_key: str) -> bool:
        return self.may_read(exchange or "amq.default") and self._topic(exchange, routing_key, "read")

    def _topic(self, exchange: str, routing_key: str, right: str) -> bool:
        for topic in self.topics:
            if topic.exchange == exchange:
                return re.search(topic.write if right == "write" else topic.read, routing_key) is not None
        return True


ALL_RIGHTS = Rights("", EVERYTHING, EVERYTHING, EVERYTHING)


def rights_of(role: Role, exchanges: Iterable[str], cell: str = "") -> Rights:
    """The rights of a role's user on a broker with these exchanges; a role per cell has one user per cell."""
    user = user_of(role.name, cell)
    if role.operates:
        return Rights(user, EVERYTHING, EVERYTHING, EVERYTHING)
    names = tuple(exchanges)
    reads = tuple(name for queue in role.reads for name in _on_broker(queue, cell))
    answers = [rf"answers\.{re.escape(user)}\.[^.]+"] if role.asks else []
    feeds = [rf"feed\.{re.escape(user)}\.[^.]+"] if role.listens else []
    own = [*feeds, *([NAMED_BY_RABBITMQ] if role.asks else [])]

    write_keys = _keys_by_exchange(role.writes, names, cell)
    if reads:
        write_keys[DEAD] = [_pattern(queue) for queue in reads]
    for queue in reads:
        write_keys.setdefault(retry_exchange_of(queue), []).append(_pattern(queue))
    if role.answers:
        write_keys[REPLY] = [r"answers\..+"]
    read_keys = _keys_by_exchange(role.listens, names, cell)
    if role.asks:
        read_keys[REPLY] = answers
    return Rights(
        user,
        configure=_any_of(own),
        write=_any_of([*map(re.escape, sorted(write_keys)), *own]),
        read=_any_of([*map(re.escape, sorted(read_keys)), *map(_pattern, reads), *own]),
        topics=tuple(
            TopicRights(name, _any_of(write_keys.get(name, [])), _any_of(read_keys.get(name, [])))
            for name in names
        ),
        answers=_any_of(answers),
    )


def _keys_by_exchange(grants: Iterable[Grant], exchanges: tuple[str, ...], cell: str) -> dict[str, list[str]]:
    """A grant on every cell's exchange, given to a role that stands above cells, counts for each of them."""
    return {
        exchange: [_pattern(in_cell(pattern, cell)) for pattern in grant.patterns]
        for grant in grants
        for exchange in exchanges
        if re.fullmatch(_pattern(in_cell(grant.exchange, cell or "*")), exchange)
    }


def _on_broker(queue: str, cell: str) -> tuple[str, ...]:
    return (in_cell(queue, cell or "*"),)


def _pattern(topic: str) -> str:
    """An AMQP topic pattern as a regular expression, without anchors."""
    if topic == "#":
        return ".*"
    words = (
        r"[^.]+" if word == "*" else ".*" if word == "#" else re.escape(word) for word in topic.split(".")
    )
    # `#` stands for no word, too: its dot goes with it.
    return r"\.".join(words).replace(r"\..*", r"(\..*)?")


def _any_of(patterns: Iterable[str]) -> str:
    alternatives = sorted(set(patterns))
    return f"^({'|'.join(alternatives)})$" if alternatives else NOTHING
