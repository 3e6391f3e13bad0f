"""The topology as data: exchanges, queues, routes of messages, roles and their rights.

This one table has several uses. Objects are declared and users and permissions generated from it (bus/permissions.py);
messages are routed by it; and each arriving message is judged by it (bus/authority.py). Tests, the simulation and the
broker check its promise that cells never send to the API level.

A pattern is an AMQP topic pattern; `{cell}` in a pattern or name is replaced by the cell's name. Some keys, roles and
queues are for messages that do not exist yet (moves, groups, aggregates), so that rights need not change with them.
"""

import functools
import operator
import re
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

from msgspec import Struct, structs

from bus.message import Message, type_of

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
# Carries messages that an inbox dropped to its second queue, under the inbox's name.
MISSED = "moor.missed"
IRONIC = "ironic"
IRONIC_TOPIC = "ironic_versioned_notifications"
IRONIC_EVENTS = "ironic.events"

DEAD_QUEUE = "dead"
CELL_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
# Stands for the cell of instances without a cell: no cell may have this name.
CELL0 = "cell0"
APPLICATION_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
APPLICATION_USER = "moor-app-"
PROJECT_NAME = re.compile(r"[a-z0-9_-]{1,64}")
# In the key of a message that names no project: it is for the instances of all projects.
NO_PROJECT = "-"
DELIVERIES_MAX_LEAST = 20


class Site(Enum):
    """The broker on which an object exists. By default there is one broker with all objects, each once.

    IRONIC is the broker on which Ironic publishes its notifications. It is often a separate one, with nothing else of
    ours.
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
    never blocks that program. Dropped messages go to a MISSED queue, which holds one message: from it the reader of the
    inbox learns of the gap.
    """

    WORK = "work"
    QUESTIONS = "questions"
    ANSWERS = "answers"
    FEED = "feed"
    DEAD = "dead"
    INBOX = "inbox"
    MISSED = "missed"


class Kind(Enum):
    """The kinds of messages. Orders and questions must reach a queue; an event may have no listener."""

    ORDER = "order"
    QUESTION = "question"
    ANSWER = "answer"
    EVENT = "event"

    @property
    def must_be_routed(self) -> bool:
        return self in (Kind.ORDER, Kind.QUESTION)

    @property
    def is_kept(self) -> bool:
        """Stored on disk by the broker; questions and answers are repeated instead."""
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


def missed_queue(inbox: str) -> str:
    return f"{inbox}.missed"


def inbox_queues(name: str, exchange: str, topics: Iterable[str]) -> tuple[Queue, Queue]:
    """An inbox for these topics of another program's exchange, and the queue that reports dropped messages.

    oslo.messaging's keys are `<topic>.<level>`. `*` matches every level: there are more than Ironic uses, and `warning`
    is `warn` in a key. Never `#`: the same exchange carries Ironic's RPC.
    """
    return (
        Queue(name, QueueKind.INBOX, tuple(Binding(exchange, f"{topic}.*") for topic in topics), Site.IRONIC),
        Queue(missed_queue(name), QueueKind.MISSED, (Binding(MISSED, name),), Site.IRONIC),
    )


class Limits(Struct, frozen=True):
    """Limits of queues: their length, the number of deliveries of a message, and the lifetime of an unread feed."""

    work_length_max: int = 100_000
    questions_length_max: int = 20_000
    feed_length_max: int = 10_000
    # A full dead-letter queue rejects more: messages to be buried then stay unacknowledged in their own queues.
    dead_length_max: int = 100_000
    # An inbox holds about an hour of a busy Ironic. The smaller of the two limits applies.
    inbox_length_max: int = 50_000
    inbox_bytes_max: int = 256 * 1024 * 1024
    # The last resort, for messages that kill every worker. A worker that lives buries a message at half of this, with a
    # better reason.
    deliveries_max: int = 40
    unused_expires_ms: int = 60_000

    def __post_init__(self) -> None:
        if self.deliveries_max < DELIVERIES_MAX_LEAST:
            raise ValueError(
                f"deliveries_max is {self.deliveries_max}, must be at least {DELIVERIES_MAX_LEAST}: a consumer that "
                "dies uses up one delivery of every message that it had prefetched"
            )


class Grant(Struct, frozen=True):
    """The right to use these keys on an exchange."""

    exchange: str
    patterns: tuple[str, ...]


class Role(Struct, frozen=True):
    """A role of processes. It has these rights and what follows from them, nothing else.

    A role reads its queues, may return or bury their messages, and may bind its inboxes again. With `asks` it has one
    answer queue per process, with `listens` its own feeds; with `answers` it may write to answer queues.
    """

    name: str
    writes: tuple[Grant, ...] = ()
    reads: tuple[str, ...] = ()
    listens: tuple[Grant, ...] = ()
    asks: bool = False
    answers: bool = False
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


# Writes by name to placement's books, and questions about more than providers: for the API level, not for cells.
BOOK_WRITES = (
    *("provider.create", "provider.update", "provider.delete"),
    *("inventory.set", "inventory.put", "inventory.drop", "traits.set", "aggregates.set"),
    *("trait.create", "trait.delete", "class.create", "class.rename", "class.delete"),
    *("allocations.set", "allocations.delete", "reshape"),
)
GROUP_ORDERS = ("group.create.*", "group.delete.*")
AGGREGATE_ORDERS = ("aggregate.set", "aggregate.delete")
BOOK_SEARCHES = ("candidates", "candidates.more")
BOOK_QUESTIONS = ("consumer.query", "holders.query", "usages.query.*", "names.query")

_ANSWER = Route(REPLY, Kind.ANSWER)
_CELL_EVENT = Route(EVENTS, Kind.EVENT, Scope.CELL)
_CELL_ORDER = Route(CELL, Kind.ORDER, Scope.CELL)

ROUTES: dict[str, Route] = {
    "build.request": Route(API, Kind.ORDER, Scope.PROJECT, "build.accepted"),
    "build.rejected": Route(EVENTS, Kind.EVENT),
    "build.accepted": Route(EVENTS, Kind.EVENT),
    "instance.delete": Route(API, Kind.ORDER, Scope.PROJECT, "instance.found"),
    "instance.rebuild": Route(API, Kind.ORDER, Scope.PROJECT, "instance.found"),
    "instance.query": Route(API, Kind.QUESTION, Scope.PROJECT, "instance.found"),
    "instance.found": _ANSWER,
    "instance.placed": _CELL_EVENT,
    "instance.active": _CELL_EVENT,
    "instance.error": _CELL_EVENT,
    "instance.deleted": _CELL_EVENT,
    "place": _CELL_ORDER,
    "remove": _CELL_ORDER,
    "rebuild": _CELL_ORDER,
    "spawn": _CELL_ORDER,
    "destroy": _CELL_ORDER,
    "deploy": _CELL_ORDER,
    "undeploy": _CELL_ORDER,
    "redeploy": _CELL_ORDER,
    "deploy.progress": _CELL_ORDER,
    "spawned": _CELL_ORDER,
    "spawn.failed": _CELL_ORDER,
    "destroyed": _CELL_ORDER,
    "redeployed": _CELL_ORDER,
    "host.state": _CELL_EVENT,
    "host.beat": _CELL_EVENT,
    "host.set": Route(API, Kind.ORDER, answer="host.was_set"),
    "host.was_set": _ANSWER,
    "host.query": Route(API, Kind.QUESTION, answer="host.found"),
    "host.found": _ANSWER,
    "application.set": Route(API, Kind.ORDER, answer="application.was_set"),
    "application.was_set": _ANSWER,
    "application.query": Route(API, Kind.QUESTION, answer="application.found"),
    "application.found": _ANSWER,
    "claim": Route(PLACEMENT, Kind.QUESTION, Scope.CELL, "claim.answered"),
    "swap": Route(PLACEMENT, Kind.QUESTION, Scope.CELL, "claim.answered"),
    "release": Route(PLACEMENT, Kind.ORDER, Scope.CELL, "claim.answered"),
    "claim.answered": _ANSWER,
    "inventory.report": Route(PLACEMENT, Kind.ORDER, Scope.CELL, "report.answered"),
    "report.answered": _ANSWER,
    "inventory.refused": _CELL_EVENT,
    "snapshot": Route(PLACEMENT, Kind.QUESTION, answer="snapshot.page"),
    "snapshot.page": _ANSWER,
    "revisions": Route(PLACEMENT, Kind.QUESTION, answer="revisions.page"),
    "revisions.page": _ANSWER,
    "providers.changed": Route(EVENTS, Kind.EVENT),
    **dict.fromkeys(BOOK_WRITES, Route(PLACEMENT, Kind.ORDER, answer="write.answered")),
    "write.answered": _ANSWER,
    "candidates": Route(PLACEMENT, Kind.QUESTION, answer="candidates.found"),
    "candidates.more": Route(PLACEMENT, Kind.QUESTION, answer="candidates.found"),
    "candidates.found": _ANSWER,
    "consumer.query": Route(PLACEMENT, Kind.QUESTION, answer="consumer.found"),
    "consumer.found": _ANSWER,
    "holders.query": Route(PLACEMENT, Kind.QUESTION, answer="holders.found"),
    "holders.found": _ANSWER,
    "usages.query": Route(PLACEMENT, Kind.QUESTION, Scope.PROJECT, "usages.found"),
    "usages.found": _ANSWER,
    "names.query": Route(PLACEMENT, Kind.QUESTION, answer="names.found"),
    "names.found": _ANSWER,
}
# An invalid request is answered by this type, whatever was asked.
REJECTION = "build.rejected"

EXCHANGES: tuple[Exchange, ...] = (
    Exchange(API, Site.API),
    Exchange(PLACEMENT),
    Exchange(CELL, Site.CELL),
    Exchange(EVENTS),
    Exchange(REPLY),
    Exchange(FEED, Site.API),
    Exchange(f"{RETRY}scheduler"),
    Exchange(f"{RETRY}placement"),
    Exchange(f"{RETRY}ironic.{{cell}}", Site.CELL),
    Exchange(f"{RETRY}conductor.{{cell}}", Site.CELL),
    Exchange(f"{RETRY}compute.{{cell}}", Site.CELL),
    Exchange(DEAD),
    Exchange(MISSED, Site.IRONIC),
    # Declared exactly as Ironic does.
    Exchange(IRONIC, Site.IRONIC, durable=False, foreign=True),
)

QUEUES: tuple[Queue, ...] = (
    Queue(
        "scheduler.requests",
        QueueKind.WORK,
        (
            Binding(API, "build.request.*"),
            Binding(API, "move.request.*"),
            Binding(API, "instance.delete.*"),
            Binding(API, "instance.rebuild.*"),
            *(Binding(API, key) for key in (*GROUP_ORDERS, *AGGREGATE_ORDERS)),
            Binding(API, "host.set"),
            Binding(API, "application.set"),
        ),
    ),
    Queue(
        "scheduler.questions",
        QueueKind.QUESTIONS,
        (
            Binding(API, "instance.query.*"),
            Binding(API, "group.query.*"),
            Binding(API, "aggregate.query"),
            Binding(API, "host.query"),
            Binding(API, "application.query"),
        ),
    ),
    # Events that schedulers must not miss, however long they are down: how instances end, and facts about hosts.
    Queue(
        "scheduler.events",
        QueueKind.WORK,
        (
            Binding(EVENTS, "instance.active.*"),
            Binding(EVENTS, "instance.error.*"),
            Binding(EVENTS, "instance.deleted.*"),
            Binding(EVENTS, "host.state.*"),
        ),
        Site.BOTH,
    ),
    Queue(
        "placement.work",
        QueueKind.WORK,
        (
            Binding(PLACEMENT, "inventory.report.*"),
            Binding(PLACEMENT, "release.*"),
            *(Binding(PLACEMENT, key) for key in BOOK_WRITES),
        ),
        Site.BOTH,
    ),
    # Separate queues for claims, searches and other questions: many searches do not delay claims.
    Queue(
        "placement.claims",
        QueueKind.QUESTIONS,
        (Binding(PLACEMENT, "claim.*"), Binding(PLACEMENT, "swap.*")),
        Site.BOTH,
    ),
    Queue(
        "placement.searches",
        QueueKind.QUESTIONS,
        tuple(Binding(PLACEMENT, key) for key in BOOK_SEARCHES),
    ),
    Queue(
        "placement.questions",
        QueueKind.QUESTIONS,
        (
            Binding(PLACEMENT, "snapshot"),
            Binding(PLACEMENT, "revisions"),
            *(Binding(PLACEMENT, key) for key in BOOK_QUESTIONS),
        ),
    ),
    Queue(
        "conductor.{cell}.work",
        QueueKind.WORK,
        (
            Binding(CELL, "place.{cell}"),
            Binding(CELL, "remove.{cell}"),
            Binding(CELL, "rebuild.{cell}"),
            Binding(CELL, "spawned.{cell}"),
            Binding(CELL, "spawn.failed.{cell}"),
            Binding(CELL, "destroyed.{cell}"),
            Binding(CELL, "deploy.progress.{cell}"),
            Binding(CELL, "redeployed.{cell}"),
        ),
        Site.CELL,
    ),
    Queue(
        "compute.{cell}.work",
        QueueKind.WORK,
        (Binding(CELL, "spawn.{cell}"), Binding(CELL, "destroy.{cell}")),
        Site.CELL,
    ),
    *inbox_queues(IRONIC_EVENTS, IRONIC, (IRONIC_TOPIC,)),
    Queue(
        "ironic.{cell}.work",
        QueueKind.WORK,
        tuple(Binding(CELL, f"{key}.{{cell}}") for key in ("deploy", "undeploy", "redeploy")),
        Site.CELL,
    ),
    Queue(DEAD_QUEUE, QueueKind.DEAD, (Binding(DEAD, "#"),), Site.BOTH),
)

# All events, listed by name instead of `#`: a cell can forward answers meant for it to the events exchange, but not
# under these keys.
FACTS = (
    "build.#",
    "instance.#",
    "host.#",
    "node.#",
    "providers.changed",
    "inventory.refused.*",
)
# What an application may send for its projects, by the part of the key before the project; and what only admin
# applications may ask.
OF_PROJECTS = (
    *(
        Grant(API, (f"{key}.{{project}}",))
        for key in ("build.request", "move.request", "instance.delete", "instance.rebuild")
    ),
    Grant(API, ("instance.query.{project}", "group.*.{project}")),
    Grant(PLACEMENT, ("usages.query.{project}",)),
)
OF_ADMINS = (
    Grant(API, ("host.query", *AGGREGATE_ORDERS, "aggregate.query")),
    Grant(PLACEMENT, (*BOOK_SEARCHES, "consumer.query", "holders.query", "names.query")),
)

# Nothing is returned to these queues, neither by a worker's retry nor from the dead letters.
INBOXES = frozenset(queue.name for queue in QUEUES if queue.kind in (QueueKind.INBOX, QueueKind.MISSED))

ROLES: tuple[Role, ...] = (
    Role(
        "scheduler",
        writes=(
            Grant(PLACEMENT, ("claim.*", "release.*", "snapshot", "revisions", "aggregates.set")),
            Grant(CELL, ("place.*", "remove.*", "rebuild.*")),
            Grant(EVENTS, ("instance.#", "build.#")),
            Grant(FEED, ("*",)),
        ),
        reads=("scheduler.requests", "scheduler.questions", "scheduler.events"),
        listens=(Grant(EVENTS, FACTS),),
        asks=True,
        answers=True,
    ),
    Role(
        "placement",
        writes=(Grant(EVENTS, ("providers.changed", "inventory.refused.*")),),
        reads=("placement.work", "placement.claims", "placement.searches", "placement.questions"),
        answers=True,
    ),
    Role(
        "conductor",
        writes=(
            Grant(PLACEMENT, ("swap.{cell}", "release.{cell}")),
            Grant(
                CELL,
                ("spawn.{cell}", "destroy.{cell}", "deploy.{cell}", "undeploy.{cell}", "redeploy.{cell}"),
            ),
            Grant(EVENTS, ("instance.*.{cell}",)),
        ),
        reads=("conductor.{cell}.work",),
        asks=True,
        per_cell=True,
        site=Site.CELL,
    ),
    Role(
        "compute",
        writes=(
            Grant(PLACEMENT, ("inventory.report.{cell}",)),
            Grant(CELL, ("spawned.{cell}", "spawn.failed.{cell}", "destroyed.{cell}")),
            Grant(EVENTS, ("host.*.{cell}",)),
        ),
        reads=("compute.{cell}.work",),
        asks=True,
        per_cell=True,
        site=Site.CELL,
    ),
    Role(
        "ironic",
        writes=(
            Grant(PLACEMENT, ("inventory.report.*", "snapshot")),
            Grant(CELL, ("spawned.*", "spawn.failed.*", "destroyed.*", "deploy.progress.*", "redeployed.*")),
            Grant(EVENTS, ("host.*.*", "node.#")),
        ),
        reads=(IRONIC_EVENTS, missed_queue(IRONIC_EVENTS), "ironic.{cell}.work"),
        asks=True,
    ),
    # The broker allows an operator everything; but only these messages of an operator count.
    Role(
        "operator",
        writes=(
            Grant(API, ("host.set", "application.set", "application.query")),
            *(
                Grant(grant.exchange, tuple(each.replace("{project}", "*") for each in grant.patterns))
                for grant in OF_PROJECTS
            ),
            *OF_ADMINS,
            Grant(PLACEMENT, (*BOOK_WRITES, "snapshot", "revisions")),
        ),
        reads=(DEAD_QUEUE,),
        listens=(Grant(EVENTS, FACTS),),
        asks=True,
        operates=True,
    ),
)
ROLES_BY_NAME = {role.name: role for role in ROLES}


class Application(Struct, frozen=True):
    """A client program with its own user: it speaks for its projects, or as an admin for all."""

    name: str
    projects: tuple[str, ...] = ()
    admin: bool = False

    def __post_init__(self) -> None:
        if not APPLICATION_NAME.fullmatch(self.name):
            raise ValueError(f"an application's name is {APPLICATION_NAME.pattern}, not {self.name!r}")
        for project in self.projects:
            if project == NO_PROJECT or not PROJECT_NAME.fullmatch(project):
                raise ValueError(f"a project's name is {PROJECT_NAME.pattern} and not '-': {project!r}")
        if self.admin == bool(self.projects):
            raise ValueError(f"application {self.name!r} must either be an admin or have projects, not both")

    @property
    def user(self) -> str:
        return f"{APPLICATION_USER}{self.name}"

    @property
    def role(self) -> Role:
        """The application's rights as a role, with keys that name its projects."""
        if self.admin:
            words: tuple[str, ...] = ("*",)
            heard = (Grant(EVENTS, ("build.#", "instance.#")),)
        else:
            words = self.projects
            heard = (Grant(FEED, self.projects),)
        said = tuple(
            Grant(
                grant.exchange,
                tuple(each.replace("{project}", word) for each in grant.patterns for word in words),
            )
            for grant in OF_PROJECTS
        )
        return Role(
            self.name,
            writes=(*said, *(OF_ADMINS if self.admin else ())),
            listens=heard,
            asks=True,
            site=Site.API,
        )


class Objects(Struct, frozen=True):
    """The objects that one broker has."""

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    limits: Limits = Limits()


class Destination(Struct, frozen=True):
    """The destination of one message."""

    exchange: str
    routing_key: str
    kind: Kind


def objects_of(
    cells: Iterable[str],
    sites: Iterable[Site] = EVERY_SITE,
    *,
    create_foreign: bool = False,
    limits: Limits | None = None,
) -> Objects:
    """All objects on a broker that serves these sites and cells.

    Queues are bound to exchanges of other programs where these exist; the exchanges are created only with
    `create_foreign`.
    """
    wanted, names = {*sites}, tuple(cells)
    if wanted & {Site.API, Site.CELL}:
        wanted.add(Site.BOTH)
    exchanges = [
        structs.replace(exchange, name=name, foreign=exchange.foreign and not create_foreign)
        for exchange in EXCHANGES
        if exchange.site in wanted
        for name in _names_for(exchange.name, names)
    ]
    queues = [
        _queue_in_cell(queue, cell)
        for queue in QUEUES
        if queue.site in wanted
        for cell in (names if "{cell}" in queue.name else ("",))
    ]
    return Objects(tuple(exchanges), tuple(queues), limits or Limits())


def destination_of(message: Message) -> Destination:
    """The destination of a message. An answer goes to its asker instead, which the bus knows."""
    return _destination(type(message), end_of(message))


def end_of(message: Message) -> str:
    """The cell or project that ends the routing key of a message. Messages of equal type and end have the same
    destination.
    """
    kind = type(message)
    end_in = _ENDS.get(kind)
    if end_in is None:
        end_in = _ENDS[kind] = _end_by(ROUTES[type_of(kind)].scope)
    return end_in(message)


def _end_by(scope: Scope) -> Callable[[Any], str]:
    """A test checks that each message has the field of its scope."""
    match scope:
        case Scope.CELL:
            return operator.attrgetter("cell")
        case Scope.PROJECT:
            return _project_in
        case Scope.NONE:
            return _no_end


def _project_in(message: Any) -> str:
    project: str = message.project or NO_PROJECT
    return project


def _no_end(_message: object) -> str:
    return ""


def project_of_key(routing_key: str) -> str:
    """The project that ends a routing key; empty if it names none."""
    name, _, end = routing_key.rpartition(".")
    route = ROUTES.get(name)
    return end if route is not None and route.scope is Scope.PROJECT and end != NO_PROJECT else ""


# A cache by class: looking up the type's name for each message would cost as much as everything else here.
_ENDS: dict[type[Message], Callable[[Any], str]] = {}


@functools.lru_cache(maxsize=100_000)
def _destination(kind_of_message: type[Message], end: str) -> Destination:
    name = type_of(kind_of_message)
    route = ROUTES[name]
    exchange = in_cell(route.exchange, end) if route.scope is Scope.CELL else route.exchange
    return Destination(exchange, f"{name}.{end}" if end else name, route.kind)


def in_cell(text: str, cell: str) -> str:
    return text.replace("{cell}", cell)


def answers_queue(user: str, process: str) -> Queue:
    """The queue for answers to one process, under its user's name so that no other user can read them."""
    name = f"answers.{user}.{process}"
    return Queue(name, QueueKind.ANSWERS, (Binding(REPLY, name),), Site.BOTH)


def feed_queue(user: str, process: str, grants: Iterable[Grant]) -> Queue:
    """The feed queue of one process. It outlives a short absence of its reader, and drops its oldest when it is full."""
    bindings = tuple(Binding(grant.exchange, pattern) for grant in grants for pattern in grant.patterns)
    return Queue(f"feed.{user}.{process}", QueueKind.FEED, bindings, Site.BOTH)


@functools.lru_cache(maxsize=10_000)
def retry_exchange_of(queue: str) -> str:
    """The retry exchange that returns a message to this queue: the exchange of the role that reads the queue."""
    if queue in INBOXES:
        raise ValueError(f"queue {queue!r} is an inbox: messages of other programs are not sent again")
    for role in ROLES:
        for read in role.reads:
            before, of_a_cell, after = read.partition("{cell}")
            if of_a_cell and queue.startswith(before) and queue.endswith(after):
                cell = queue.removeprefix(before).removesuffix(after)
                return f"{RETRY}{role.name}.{cell}"
            if read == queue:
                return f"{RETRY}{role.name}"
    raise ValueError(f"no role reads the queue {queue!r}")


def is_retry_exchange(name: str) -> bool:
    return name.startswith(RETRY)


def user_of(role: str, cell: str = "") -> str:
    """The broker's user for a role; a cell's user has the cell in its name."""
    return f"moor-{role}-{cell}" if cell else f"moor-{role}"


class BrokerUser(Struct, frozen=True):
    """The meaning of a broker's user name: a role, with the cell if the role belongs to one; or an application."""

    role: str
    cell: str = ""
    application: str = ""

    @property
    def is_worker(self) -> bool:
        return not self.application and not ROLES_BY_NAME[self.role].operates


@functools.lru_cache(maxsize=10_000)
def broker_user_of(user: str) -> BrokerUser | None:
    """The role or application of a user; None for an unknown user."""
    if user.startswith(APPLICATION_USER):
        name = user.removeprefix(APPLICATION_USER)
        return BrokerUser("", application=name) if APPLICATION_NAME.fullmatch(name) else None
    for role in ROLES:
        if not role.per_cell:
            if user == user_of(role.name):
                return BrokerUser(role.name)
            continue
        of_cells = f"{user_of(role.name)}-"
        if user.startswith(of_cells) and CELL_NAME.fullmatch(cell := user.removeprefix(of_cells)):
            return BrokerUser(role.name, cell)
    return None


def cell_of_user(user: str) -> str | None:
    """The only cell that a user may speak for; None for a user that belongs to no cell."""
    speaker = broker_user_of(user)
    return speaker.cell or None if speaker else None


def _names_for(name: str, cells: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(in_cell(name, cell) for cell in cells) if "{cell}" in name else (name,)


def _queue_in_cell(queue: Queue, cell: str) -> Queue:
    name = in_cell(queue.name, cell)
    bindings = tuple(
        Binding(in_cell(binding.exchange, cell), in_cell(binding.pattern, cell)) for binding in queue.bindings
    )
    may_be_retried = queue.kind in (QueueKind.WORK, QueueKind.QUESTIONS)
    return structs.replace(
        queue,
        name=name,
        bindings=(*bindings, Binding(retry_exchange_of(name), name)) if may_be_retried else bindings,
    )
