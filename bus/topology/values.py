"""The values that the tables of the topology are made of: exchanges, queues, routes, roles and rights."""

import re
from enum import Enum

from msgspec import Struct

# The names of exchanges, and the forms of the names that deployments choose.


API = "moor.api"
PLACEMENT = "moor.placement"
CELL = "moor.cell.{cell}"
EVENTS = "moor.events"
REPLY = "moor.reply"
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


class Kind(Enum):
    """The kinds of messages. Orders and questions must reach a queue; an event may have no listener."""

    ORDER = "order"
    QUESTION = "question"
    ANSWER = "answer"
    EVENT = "event"

    @property
    def is_kept(self) -> bool:
        """Does the broker store such messages on disk? Only orders and events: questions and answers are repeated."""
        return self in (Kind.ORDER, Kind.EVENT)


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


class Role(Struct, frozen=True):
    """A role of processes, and the rights of its user on a broker.

    A role reads its queues, may return or dead-letter their messages, and may bind its inboxes again. With `asks` each
    of its processes has an answer queue, and with `listens` a feed queue. With `answers` it may write to answer queues.
    """

    name: str
    writes: tuple[Grant, ...] = ()
    reads: tuple[str, ...] = ()
    listens: tuple[Grant, ...] = ()
    asks: bool = False
    answers: bool = False
    # Without `answers`: it may write to the answer queues of these roles alone.
    answers_to: tuple[str, ...] = ()
    per_cell: bool = False
    # Where the role has a user: roles of the API level have none on a cell's own broker.
    site: Site = Site.BOTH
    # May declare objects, and read and move dead letters: for operators and deployment tools.
    operates: bool = False


class Scope(Enum):
    """What follows the type in the routing key of a message."""

    NONE = "none"
    CELL = "cell"
    # The project named by the message; `-` if it names none.
    PROJECT = "project"


class Route(Struct, frozen=True):
    """The route of a message type: the exchange, and a key that is the type, followed by what its scope says. Questions
    are answered by messages of type `answer`; so are orders whose sender may wait for the outcome.
    """

    exchange: str
    kind: Kind
    scope: Scope = Scope.NONE
    answer: str = ""


class Objects(Struct, frozen=True):
    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    limits: Limits = Limits()
