"""What brokers are made of: the names of exchanges and queues, the kinds of queues with their properties and bounds."""

import functools
import re
from collections.abc import Iterable
from enum import Enum

from msgspec import Struct

from bus.message import API, REPLY

# The names of exchanges (those of messages: bus/message.py), and the forms of the names that deployments choose.

# The feed of applications: events of their own projects, with the project as the key.
FEED = "moor.feed"
# A message that must be retried returns to its queue, and one that cannot be handled goes to the dead letters, each
# under the name of its queue. So no user needs the default exchange, which reaches every queue. Each role has its own
# retry exchange, in each cell. The reason: RabbitMQ checks only the routing key of a parcel, but also routes it by the
# keys in its CC header. So a user that may write to an exchange reaches every queue bound to it.
RETRY = "moor.retry."
DEAD = "moor.dead"
IRONIC = "ironic"
IRONIC_TOPIC = "ironic_versioned_notifications"
IRONIC_EVENTS = "ironic.events"

DEAD_QUEUE = "dead"
CELL_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
# Stands for the cell of instances without a cell: no cell may have this name.
CELL0 = "cell0"
APPLICATION_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
# How the roles and users of applications begin.
APPLICATION = "app-"
APPLICATION_USER = f"moor-{APPLICATION}"
# Each application has one of its own beside each of these, for what it publishes on its own exchange.
API_QUEUES = ("scheduler.requests", "scheduler.questions")
PROJECT_NAME = re.compile(r"[a-z0-9_-]{1,64}")
# In the key of a message that names no project: it is for the instances of all projects.
NO_PROJECT = "-"


def in_cell(text: str, cell: str) -> str:
    return text.replace("{cell}", cell)


@functools.lru_cache(maxsize=10_000)
def matches(pattern: str, key: str) -> bool:
    """Whether a routing key, or another name of words with dots between them, matches an AMQP topic pattern.

    In a pattern, `*` stands for one word, and `#` for any number of words or none. An empty key has no words. `reached[n]` says
    whether the pattern so far can match exactly the first n words. So several `#` cost no more than one.
    """
    words = key.split(".") if key else []
    reached = [True] + [False] * len(words)
    for part in pattern.split(".") if pattern else ():
        if part == "#":
            first = reached.index(True) if True in reached else len(reached)
            reached = [n >= first for n in range(len(reached))]
        else:
            reached = [False] + [
                before and part in ("*", word) for before, word in zip(reached, words, strict=False)
            ]
    return reached[-1]


def is_retry_exchange(name: str) -> bool:
    return name.startswith(RETRY)


def application_exchange(application: str) -> str:
    """The exchange that one application may use instead of the API's, and to which no other application may write."""
    return f"{API}.{application}"


def application_queue(queue: str, application: str) -> str:
    """The name of an application's own queue beside this one for all; with `*`, a pattern of all such names."""
    return f"{queue}.{application}"


DELIVERIES_MAX_LEAST = 20


class Site(Enum):
    """The kind of broker on which an exchange, a queue or a role's user exists.

    API is the API level's broker, and CELL the broker of a cell. By default one broker serves as all of them, and has
    each object once. IRONIC is the broker on which Ironic publishes its notifications. It is often a separate broker,
    with nothing else of ours.
    """

    API = "api"
    CELL = "cell"
    BOTH = "both"
    IRONIC = "ironic"


EVERY_SITE = (Site.API, Site.CELL, Site.IRONIC)


class QueueKind(Enum):
    """The kinds of queues. WORK loses nothing. QUESTIONS and ANSWERS may lose messages, since askers repeat; the queue
    of questions itself outlives a restart of the broker, since the workers that answer have no right to declare it. A
    FEED drops its oldest, and its reader sees the gap. DEAD keeps messages that could not be handled until a person
    decides, and rejects more when it is full.

    An INBOX takes the messages of another program, such as Ironic. When nobody reads, it drops its oldest, so that it
    never blocks that program.
    """

    WORK = "work"
    QUESTIONS = "questions"
    ANSWERS = "answers"
    FEED = "feed"
    DEAD = "dead"
    INBOX = "inbox"


class Exchange(Struct, frozen=True):
    name: str
    site: Site = Site.BOTH
    durable: bool = True
    # Another program's: queues are bound to it where it exists, and it is created only on request.
    foreign: bool = False


class Binding(Struct, frozen=True):
    exchange: str
    pattern: str


class Queue(Struct, frozen=True):
    name: str
    kind: QueueKind
    bindings: tuple[Binding, ...] = ()
    site: Site = Site.API


class Limits(Struct, frozen=True):
    """Limits of queues: their length, the number of deliveries of a message, and the lifetime of an unread feed."""

    work_length_max: int = 100_000
    questions_length_max: int = 20_000
    # A queue that a client declares for itself has these bounds too, and is deleted when it was not used for so long.
    feed_length_max: int = 10_000
    feed_bytes_max: int = 256 * 1024 * 1024
    own_queue_expires_ms: int = 3_600_000
    # A full dead-letter queue rejects more: messages to be buried then stay unacknowledged in their own queues.
    dead_length_max: int = 100_000
    # An inbox holds about an hour of a busy Ironic. The smaller of the two limits applies.
    inbox_length_max: int = 50_000
    inbox_bytes_max: int = 256 * 1024 * 1024
    # The last resort, for messages that kill every worker. A worker that lives buries a message at half of this, with a
    # better reason.
    deliveries_max: int = 40
    unused_expires_ms: int = 60_000
    # For a broker of several nodes: each question is kept on several of them, for more work of the broker. Otherwise such a queue is
    # on one node, and while that node is down nobody is answered, and nothing is built.
    replicates_questions: bool = False

    def __post_init__(self) -> None:
        if self.deliveries_max < DELIVERIES_MAX_LEAST:
            raise ValueError(
                f"deliveries_max is {self.deliveries_max}, must be at least {DELIVERIES_MAX_LEAST}: a consumer that "
                "dies uses up one delivery of every message that it had prefetched"
            )


class QueueProperties(Struct, frozen=True):
    """The properties of a queue. Two declarations of a queue must agree in all of them."""

    kind: QueueKind
    durable: bool = False
    # Only the declaring connection may use it, and it is deleted with that connection.
    exclusive: bool = False
    length_max: int | None = None
    bytes_max: int | None = None
    # A full queue drops its oldest parcel if set; otherwise it rejects new ones.
    drops_oldest: bool = False
    # RabbitMQ's quorum queues count the returns of a parcel; classic queues only know that there was one.
    counts_returns: bool = False
    # A parcel with more returns than this becomes a dead letter.
    deliveries_max: int | None = None
    expires_ms: int | None = None


def properties_of(kind: QueueKind, limits: Limits) -> QueueProperties:
    match kind:
        case QueueKind.WORK:
            return QueueProperties(
                kind,
                durable=True,
                length_max=limits.work_length_max,
                counts_returns=True,
                deliveries_max=limits.deliveries_max,
            )
        case QueueKind.DEAD:
            return QueueProperties(kind, durable=True, length_max=limits.dead_length_max, counts_returns=True)
        case QueueKind.QUESTIONS:
            # The queue outlives a restart, since the workers that answer may not declare it; its questions do not. A
            # full queue rejects, so that the asker is told.
            return QueueProperties(
                kind,
                durable=True,
                length_max=limits.questions_length_max,
                counts_returns=limits.replicates_questions,
            )
        case QueueKind.INBOX:
            # Not a quorum queue: one without its quorum confirms nothing and would block its publishers.
            return QueueProperties(
                kind,
                durable=True,
                length_max=limits.inbox_length_max,
                bytes_max=limits.inbox_bytes_max,
                drops_oldest=True,
            )
        case QueueKind.ANSWERS:
            return QueueProperties(kind, exclusive=True)
        case QueueKind.FEED:
            return QueueProperties(
                kind,
                length_max=limits.feed_length_max,
                drops_oldest=True,
                expires_ms=limits.unused_expires_ms,
            )


# The exchange to which the broker sends what leaves a queue of this kind unhandled, under the queue's name.
DEAD_LETTERS = {QueueKind.WORK: DEAD}


class Grant(Struct, frozen=True):
    """The right to publish to an exchange with the routing keys that match these patterns."""

    exchange: str
    patterns: tuple[str, ...]

    def allows(self, exchange: str, key: str, cell: str = "") -> bool:
        """Whether this key of this exchange is granted to a user of this cell, or without `cell` to one of the API level."""
        # A key on a cell's exchange ends with the cell's name too, so comparing the key is enough.
        patterns = [in_cell(each, cell or "*") for each in self.patterns]
        if "" in key.split("."):
            # An empty word names nothing, such as a cell: a user may not stand for it, though brokers take it for a word.
            patterns = [each for each in patterns if "*" not in each]
        return matches(in_cell(self.exchange, "*"), exchange) and any(matches(each, key) for each in patterns)


class Objects(Struct, frozen=True):
    """The exchanges and queues that a broker must have."""

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    limits: Limits = Limits()


def inbox_queue(name: str, exchange: str, topics: Iterable[str]) -> Queue:
    """An inbox for these topics of another program's exchange.

    The routing keys of oslo.messaging are `<topic>.<level>`. The inbox takes every level by `<topic>.*`. A list of
    levels would easily lack one: there are more than Ironic uses, and `warning` is `warn` in a key. A binding to `#`
    would take everything, also Ironic's RPC, which has the same exchange.
    """
    return Queue(
        name, QueueKind.INBOX, tuple(Binding(exchange, f"{topic}.*") for topic in topics), Site.IRONIC
    )


def answers_queue(user: str, process: str) -> Queue:
    """The queue for answers to one process, under its user's name so that no other user can read them."""
    name = f"answers.{user}.{process}"
    return Queue(name, QueueKind.ANSWERS, (Binding(REPLY, name),), Site.BOTH)


def feed_queue(user: str, process: str, grants: Iterable[Grant]) -> Queue:
    """The feed queue of one process. It outlives a short absence of its reader, and drops its oldest when it is full."""
    bindings = tuple(Binding(grant.exchange, pattern) for grant in grants for pattern in grant.patterns)
    return Queue(f"feed.{user}.{process}", QueueKind.FEED, bindings, Site.BOTH)
