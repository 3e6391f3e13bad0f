"""The topology in RabbitMQ's format.

Users and permissions are written as `rabbitmqctl import_definitions` reads them. Queues get the arguments that
give each kind of queue its properties on RabbitMQ 3.10.

Pure: passwords and salt are arguments, and nothing is sent. The rights follow from the topology, and keep cells from
sending to the API level. The memory broker enforces the same ones: a simulation refuses a cell exactly where the real broker would.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, structs

from bus.message import REPLY
from bus.queues import (
    DEAD,
    DEAD_LETTERS,
    EVERY_SITE,
    Exchange,
    Grant,
    Limits,
    Queue,
    Site,
    in_cell,
    matches,
    properties_of,
)
from bus.topology import INBOXES, IRONIC_INBOX, QUEUES, ROLES, Application, Role, retry_exchange_of, user_of

NOTHING = "^$"
EVERYTHING = ".*"
NAMED_BY_RABBITMQ = r"amq\.gen-.*"


class TopicRights(Struct, frozen=True):
    """The routing keys that a user may publish under on one exchange, and those that it may bind its queues to."""

    exchange: str
    write: str = NOTHING
    read: str = NOTHING


class Rights(Struct, frozen=True):
    """The names that a user may configure, write and read; on topic exchanges also the keys.

    An exchange without topic rights is checked by name only.

    `own_queues` matches the user's queues of answers and feeds. RabbitMQ has no such right. The right to configure
    these names would also allow exchanges of these names, bound to whatever the user may write to, past all topic
    rights. So on RabbitMQ a user may only configure names that RabbitMQ itself generates: queues can have these,
    exchanges cannot.
    """

    user: str
    configure: str = NOTHING
    write: str = NOTHING
    read: str = NOTHING
    topics: tuple[TopicRights, ...] = ()
    own_queues: str = NOTHING

    def may_configure(self, name: str) -> bool:
        return re.search(self.configure, name) is not None

    def may_declare_queue(self, name: str) -> bool:
        return self.may_configure(name) or re.search(self.own_queues, name) is not None

    def may_write(self, name: str) -> bool:
        return re.search(f"{self.write}|{self.own_queues}", name) is not None

    def may_read(self, name: str) -> bool:
        return re.search(f"{self.read}|{self.own_queues}", name) is not None

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


def rights_of(role: Role, exchanges: Iterable[str], cell: str = "", *, inbox: Queue = IRONIC_INBOX) -> Rights:
    """The rights of the user of a role, on a broker with these exchanges. `inbox` is the queue of Ironic's notifications, as it
    is called there.

    A role of cells has one user for each cell. An application is a role, too: its keys name its projects.
    """
    user, names = user_of(role.name, cell), tuple(exchanges)
    if role.operates:
        return Rights(user, EVERYTHING, EVERYTHING, EVERYTHING)
    reads = tuple(
        in_cell(inbox.name if queue == IRONIC_INBOX.name else queue, cell or "*") for queue in role.reads
    )
    asks = role.asks and REPLY in names
    answers = [rf"answers\.{re.escape(user)}\.[^.]+"] if asks else []
    feeds = [rf"feed\.{re.escape(user)}\.[^.]+"] if role.listens else []
    named = [NAMED_BY_RABBITMQ] if answers or feeds else []

    retries = [Grant(retry_exchange_of(queue), (queue,)) for queue in role.reads if queue not in INBOXES]
    write_keys = _keys_by_exchange((*role.writes, *retries), names, cell)
    if reads and DEAD in names:
        # A dead letter has the name of its queue in the topology.
        write_keys[DEAD] = [_as_regex(in_cell(queue, cell or "*")) for queue in role.reads]
    if role.answers:
        write_keys[REPLY] = [r"answers\..+"]
    elif role.answers_to and REPLY in names:
        write_keys[REPLY] = [rf"answers\.{re.escape(user_of(each))}\.[^.]+" for each in role.answers_to]
    # Its exchange belongs to another program, which may delete it and create it anew: then the inbox is bound again.
    binds = IRONIC_INBOX.name in role.reads and any(each.exchange in names for each in inbox.bindings)
    heard = tuple(Grant(each.exchange, (each.pattern,)) for each in inbox.bindings) if binds else ()
    read_keys = _keys_by_exchange((*role.listens, *heard), names, cell)
    if asks:
        read_keys[REPLY] = answers
    return Rights(
        user,
        configure=_any_of(named),
        # Binding a queue needs the right to write to it.
        write=_any_of(
            [*map(re.escape, sorted(write_keys)), *([re.escape(inbox.name)] if binds else []), *named]
        ),
        read=_any_of([*map(re.escape, sorted(read_keys)), *map(_as_regex, reads), *named]),
        topics=tuple(
            TopicRights(name, _any_of(write_keys.get(name, [])), _any_of(read_keys.get(name, [])))
            for name in names
        ),
        own_queues=_any_of([*answers, *feeds]),
    )


def joined(rights: Rights, granted: Rights) -> Rights:
    """These rights of the user of Ironic's daemons, and what it may do on the broker already, for another Ironic's inbox.

    Topic rights need no joining: each Ironic has an exchange of its own, and RabbitMQ keeps those of other exchanges.
    """
    return structs.replace(
        rights,
        configure=_either(rights.configure, granted.configure),
        write=_either(rights.write, granted.write),
        read=_either(rights.read, granted.read),
    )


def other_inboxes(rights: Rights, granted: Rights) -> tuple[str, ...]:
    """The inboxes that the user of Ironic's daemons may read on the broker by `granted`, and that are not in `rights`."""
    others = {*_alternatives(granted.read)} - {*_alternatives(rights.read), NAMED_BY_RABBITMQ}
    # To bind an inbox takes the right to write to it: its daemons have that for no other queue that they read.
    return tuple(sorted(each.replace("\\", "") for each in others.intersection(_alternatives(granted.write))))


def _keys_by_exchange(grants: Iterable[Grant], exchanges: tuple[str, ...], cell: str) -> dict[str, list[str]]:
    """Regular expressions of the keys that these grants allow, for each exchange.

    For a role of the API level, a grant on the exchange of a cell covers the exchanges of all cells.
    """
    keys: dict[str, list[str]] = {}
    for grant in grants:
        patterns = [_as_regex(in_cell(pattern, cell or "*")) for pattern in grant.patterns]
        for exchange in exchanges:
            if matches(in_cell(grant.exchange, cell or "*"), exchange):
                keys.setdefault(exchange, []).extend(patterns)
    return keys


def _as_regex(topic: str) -> str:
    """A topic pattern in the language of RabbitMQ's rights, which know only regular expressions. Its words are not empty there."""
    words = [
        "[^.]+" if word == "*" else ".*" if word == "#" else re.escape(word) for word in topic.split(".")
    ]
    # `#` also matches no word: then its dot is missing too.
    return r"\.".join(words).replace(r"\..*", r"(\..*)?")


def _either(one: str, other: str) -> str:
    return _any_of([*_alternatives(one), *_alternatives(other)])


def _alternatives(pattern: str) -> list[str]:
    """The alternatives of a pattern as `_any_of` writes it; none of any other pattern."""
    is_ours = pattern.startswith("^(") and pattern.endswith(")$")
    return re.split(r"(?<!\\)\|", pattern[2:-2]) if is_ours else []


def _any_of(patterns: Iterable[str]) -> str:
    alternatives = sorted(set(patterns))
    return f"^({'|'.join(alternatives)})$" if alternatives else NOTHING


# The length of the salt that RabbitMQ stores in front of the hash.
SALT_BYTES = 4


def definitions_of(
    exchanges: Iterable[Exchange],
    cells: Iterable[str],
    passwords: Mapping[str, str],
    *,
    salt: bytes,
    virtual_host: str = "/",
    sites: Iterable[Site] = EVERY_SITE,
    applications: Iterable[Application] = (),
    inbox: Queue = IRONIC_INBOX,
    limits: Mapping[str, int] | None = None,
    granted: Rights | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """The definitions of the users in `passwords`, for a broker that has these exchanges and serves these cells.

    They contain the users, their rights, RabbitMQ's limits on what each user may take of the broker, and the bounds of the
    queues that users declare for themselves. `granted` are rights that their user has on the broker already, and keeps.
    """
    rights = rights_by_user(exchanges, cells, sites, applications, inbox=inbox)
    if granted is not None:
        rights[granted.user] = joined(rights[granted.user], granted)
    strangers = sorted(passwords.keys() - rights.keys())
    if strangers:
        raise ValueError(
            f"no such user of the topology: {', '.join(strangers)}; there are {', '.join(sorted(rights))}"
        )
    wanted = [rights[user] for user in sorted(passwords)]
    return {
        "users": [
            {
                "name": user,
                "password_hash": password_hash(user, passwords[user], salt),
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": [],
                "limits": dict(limits or {}),
            }
            for user in sorted(passwords)
        ],
        "permissions": [
            {
                "user": each.user,
                "vhost": virtual_host,
                "configure": each.configure,
                "write": each.write,
                "read": each.read,
            }
            for each in wanted
        ],
        "topic_permissions": [
            {
                "user": each.user,
                "vhost": virtual_host,
                "exchange": topic.exchange,
                "write": topic.write,
                "read": topic.read,
            }
            for each in wanted
            for topic in each.topics
        ],
        "policies": [_bounds_of_own_queues(virtual_host, Limits())],
    }


def _bounds_of_own_queues(virtual_host: str, limits: Limits) -> dict[str, Any]:
    """The bounds of all queues with names from RabbitMQ: what applications and workers declare for answers and feeds.

    An application may declare its queue without a bound. If it then reads slowly, the queue grows until the broker's memory
    alarm stops all publishers. So the broker drops the oldest messages, and deletes a queue that nobody uses.
    """
    return {
        "vhost": virtual_host,
        "name": "moor-own-queues",
        "pattern": f"^{NAMED_BY_RABBITMQ}$",
        "apply-to": "queues",
        "priority": 0,
        "definition": {
            "max-length": limits.feed_length_max,
            "max-length-bytes": limits.feed_bytes_max,
            "overflow": "drop-head",
            "expires": limits.own_queue_expires_ms,
        },
    }


def rights_by_user(
    exchanges: Iterable[Exchange],
    cells: Iterable[str],
    sites: Iterable[Site] = EVERY_SITE,
    applications: Iterable[Application] = (),
    *,
    inbox: Queue = IRONIC_INBOX,
) -> dict[str, Rights]:
    """The rights of each user of a broker that has these exchanges, by the user's name.

    `sites` says what this broker serves: the API level, cells or Ironic. `cells` are the cells that it serves. It has a
    user for each role that belongs to one of its sites, and one for each application. A role of cells has one user for
    each cell.
    """
    names, cell_names = tuple(exchange.name for exchange in exchanges), tuple(cells)
    there = {*sites}
    of_applications = {each.user: rights_of(each.role, (*names, each.exchange)) for each in applications}
    return of_applications | {
        user_of(role.name, cell): rights_of(role, names, cell, inbox=inbox)
        for role in ROLES
        if _has_user(role, there)
        for cell in (cell_names if role.per_cell else ("",))
    }


def _has_user(role: Role, sites: set[Site]) -> bool:
    """Whether a role needs a user on a broker that serves these sites: the API level, a cell, or Ironic.

    It does if the role belongs to one of them. On the broker of Ironic it does if the role reads a queue there.
    """
    if role.site in sites or (role.site is Site.BOTH and sites & {Site.API, Site.CELL}):
        return True
    return any(
        queue.site in sites and queue.name in role.reads for queue in QUEUES if queue.site is Site.IRONIC
    )


def password_hash(user: str, password: str, salt: bytes) -> str:
    """Hash a password as RabbitMQ stores it. Each user has a salt of its own, derived from `salt` and the user's name."""
    own_salt = hashlib.sha256(salt + user.encode()).digest()[:SALT_BYTES]
    return base64.b64encode(own_salt + hashlib.sha256(own_salt + password.encode()).digest()).decode()


def arguments_of(queue: Queue, limits: Limits) -> dict[str, str | int]:
    kind = properties_of(queue.kind, limits)
    dead_letters = DEAD_LETTERS.get(queue.kind)
    overflow = "drop-head" if kind.drops_oldest else "reject-publish"
    stated = {
        "x-queue-type": "quorum" if kind.counts_returns else "classic",
        "x-delivery-limit": kind.deliveries_max,
        "x-dead-letter-exchange": dead_letters,
        "x-dead-letter-routing-key": queue.name if dead_letters else None,
        # At-least-once dead-lettering needs all three: the strategy, an overflow that rejects, and therefore a length limit.
        "x-dead-letter-strategy": "at-least-once" if kind.deliveries_max else None,
        "x-overflow": overflow if kind.length_max else None,
        "x-max-length": kind.length_max,
        "x-max-length-bytes": kind.bytes_max,
        "x-expires": kind.expires_ms,
    }
    return {name: value for name, value in stated.items() if value is not None}
