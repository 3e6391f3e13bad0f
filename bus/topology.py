"""Who may say what to whom, as data: exchanges, queues, routes of messages, roles and their rights.

From this one table the objects are declared, users and permissions are generated (bus/permissions.py), messages find
their way, each message is judged when it arrives (bus/authority.py), and the promise that cells never call up is checked:
statically, in simulation, and by the broker.

A pattern is an AMQP topic pattern; `{cell}` in a pattern or name stands for the cell's name. Some keys, roles and queues
are for messages that do not exist yet (moves, groups, aggregates), so that rights need not change with them.
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
# What applications hear: events of their own projects, by the project as the key.
FEED = "moor.feed"
# An item that must be tried again goes back to its queue, and one that cannot be handled goes to the dead letters, by
# the name of its queue: so nobody needs the default exchange, which is a back door into every queue.
# Each role has an exchange of its own for retries, in each cell: RabbitMQ judges a parcel by its routing key, but also
# routes it by those in its CC header, so a user who may write to an exchange reaches every queue that is bound to it.
RETRY = "moor.retry."
DEAD = "moor.dead"
# Brings what an inbox dropped to its second queue, by the inbox's name.
MISSED = "moor.missed"
IRONIC = "ironic"
IRONIC_TOPIC = "ironic_versioned_notifications"
IRONIC_EVENTS = "ironic.events"

DEAD_QUEUE = "dead"
CELL_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
# Where instances are that no cell has: no cell may be called so.
CELL0 = "cell0"
APPLICATION_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
APPLICATION_USER = "moor-app-"
PROJECT_NAME = re.compile(r"[a-z0-9_-]{1,64}")
# In a key, where a message names no project: such a message is for the instances of all projects.
NO_PROJECT = "-"
DELIVERIES_MAX_LEAST = 20


class Site(Enum):
    """On which broker an object stands. By default all are one broker, and hold everything once.

    IRONIC is the broker on which Ironic publishes its notifications, often one of its own; nothing else of ours is there.
    """

    API = "api"
    CELL = "cell"
    BOTH = "both"
    IRONIC = "ironic"


EVERY_SITE = (Site.API, Site.CELL, Site.IRONIC)


class QueueKind(Enum):
    """What a queue promises. WORK loses nothing; QUESTIONS and ANSWERS may, since whoever asks repeats (the queue of
    questions itself outlives a restart of the broker, since who answers has no right to declare it); a FEED drops
    its oldest, and its reader sees the gap; DEAD keeps what could not be handled until a person decides, and takes no
    more when it is full.

    An INBOX takes what a program of somebody else's publishes, such as Ironic. Unread, it drops its oldest, so that it never
    holds up that program; what it drops goes to a MISSED queue, which holds one message: the reader of the inbox learns
    from it that something was dropped.
    """

    WORK = "work"
    QUESTIONS = "questions"
    ANSWERS = "answers"
    FEED = "feed"
    DEAD = "dead"
    INBOX = "inbox"
    MISSED = "missed"


class Kind(Enum):
    """What a message is. Orders and questions must find a queue; an event may have no listener."""

    ORDER = "order"
    QUESTION = "question"
    ANSWER = "answer"
    EVENT = "event"

    @property
    def must_be_routed(self) -> bool:
        return self in (Kind.ORDER, Kind.QUESTION)

    @property
    def is_kept(self) -> bool:
        """Written to disk by the broker; questions and answers are asked again instead."""
        return self in (Kind.ORDER, Kind.EVENT)


class Exchange(Struct, frozen=True):
    name: str
    site: Site = Site.BOTH
    durable: bool = True
    # Not ours: bound to where it exists, and created only when a person asks for it.
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
    """An inbox for these topics of a foreign exchange, and the queue that tells what it dropped.

    oslo.messaging's keys are `<topic>.<level>`. `*` takes every level: there are more than Ironic uses, and `warning` is
    `warn` in a key. Never `#`: the same exchange carries Ironic's RPC.
    """
    return (
        Queue(name, QueueKind.INBOX, tuple(Binding(exchange, f"{topic}.*") for topic in topics), Site.IRONIC),
        Queue(missed_queue(name), QueueKind.MISSED, (Binding(MISSED, name),), Site.IRONIC),
    )


class Limits(Struct, frozen=True):
    """How much a queue may hold, how often it delivers one message, how long an unread one of a process lives."""

    work_length_max: int = 100_000
    questions_length_max: int = 20_000
    feed_length_max: int = 10_000
    # A full queue of dead letters takes no more: what is to be buried stays unacknowledged in its own queue until then.
    dead_length_max: int = 100_000
    # An inbox: about an hour of a busy Ironic. It keeps to the smaller of the two.
    inbox_length_max: int = 50_000
    inbox_bytes_max: int = 256 * 1024 * 1024
    # The last resort, for what kills every worker: one that lives has buried it at half of that, with a better reason.
    deliveries_max: int = 40
    unused_expires_ms: int = 60_000

    def __post_init__(self) -> None:
        if self.deliveries_max < DELIVERIES_MAX_LEAST:
            raise ValueError(
                f"deliveries_max is {self.deliveries_max}, must be at least {DELIVERIES_MAX_LEAST}: a consumer that dies takes a delivery "
                "from everything it had prefetched, innocent or not"
            )


class Grant(Struct, frozen=True):
    """May use these keys on that exchange."""

    exchange: str
    patterns: tuple[str, ...]


class Role(Struct, frozen=True):
    """Who a process is to the broker. Its rights are these and what follows from them, nothing else.

    It reads its queues, may put their items back or bury them, and may bind its inboxes again to what they hear; with `asks`
    it has an answer queue per process, with `listens` feeds of its own; only who `answers` may write to answer queues.
    """

    name: str
    writes: tuple[Grant, ...] = ()
    reads: tuple[str, ...] = ()
    listens: tuple[Grant, ...] = ()
    asks: bool = False
    answers: bool = False
    per_cell: bool = False
    # Where it has a user: who is of the API level has none on a cell's own broker.
    site: Site = Site.BOTH
    # May declare, and look into and move dead letters: a person's, or the deployment's.
    operates: bool = False


class Scope(Enum):
    """What ends the routing key of a message, after its type."""

    NONE = "none"
    CELL = "cell"
    # The project that the message names; `-` if it names none.
    PROJECT = "project"


class Route(Struct, frozen=True):
    """Where messages of a type go: the exchange, and a key that is the type, ended by what its scope says. A question, or
    an order whose sender may wait for its outcome, is answered by messages of the type `answer`.
    """

    exchange: str
    kind: Kind
    scope: Scope = Scope.NONE
    answer: str = ""


# What is written into placement's books by name, and asked of them beside providers: for the API level, not for cells.
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
# A request that makes no sense is answered by this instead, whatever was asked.
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
    # As Ironic itself declares it.
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
    # What schedulers must not miss, however long they are away: how instances end, and what hosts are.
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
    # Claims, searches and the rest apart: a queue full of searches is not in the way of claims.
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

# Everything that is a fact, by name: a cell can lead the answers to it to the events, but under no such key.
FACTS = (
    "build.#",
    "instance.#",
    "host.#",
    "node.#",
    "providers.changed",
    "inventory.refused.*",
)
# What an application says for a project, by what precedes the project in the key; and what one asks that serves all.
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

# Nothing is put back into these: not by a worker that tries it again, and not from the dead letters.
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
    # A broker lets it do everything; what counts of what it says is this.
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
    """A program of somebody's, with a user of its own: it speaks for its projects, or as an admin for all."""

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
            raise ValueError(f"application {self.name!r} is either an admin or has projects")

    @property
    def user(self) -> str:
        return f"{APPLICATION_USER}{self.name}"

    @property
    def role(self) -> Role:
        """Its rights, as those of a role: keys that name its projects."""
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
    """What is to stand on one broker."""

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    limits: Limits = Limits()


class Address(Struct, frozen=True):
    """Where one message goes."""

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
    """All that stands on a broker that serves these sites and cells.

    Foreign exchanges are bound to where they exist, and only made here if `create_foreign` says that nobody else will.
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


def address_of(message: Message) -> Address:
    """Where a message goes; an answer goes to its asker instead, whom the bus knows."""
    return _address(type(message), end_of(message))


def end_of(message: Message) -> str:
    """The cell or project that ends the key of a message: messages of one type and end have one address."""
    kind = type(message)
    end_in = _ENDS.get(kind)
    if end_in is None:
        end_in = _ENDS[kind] = _end_by(ROUTES[type_of(kind)].scope)
    return end_in(message)


def _end_by(scope: Scope) -> Callable[[Any], str]:
    """A test sees that each message has the field of its scope."""
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
    """The project that ends a key; empty if it names none."""
    name, _, end = routing_key.rpartition(".")
    route = ROUTES.get(name)
    return end if route is not None and route.scope is Scope.PROJECT and end != NO_PROJECT else ""


# Looking a message's type up by its name at each message would cost as much as all else here.
_ENDS: dict[type[Message], Callable[[Any], str]] = {}


@functools.lru_cache(maxsize=100_000)
def _address(kind_of_message: type[Message], end: str) -> Address:
    name = type_of(kind_of_message)
    route = ROUTES[name]
    exchange = in_cell(route.exchange, end) if route.scope is Scope.CELL else route.exchange
    return Address(exchange, f"{name}.{end}" if end else name, route.kind)


def in_cell(text: str, cell: str) -> str:
    return text.replace("{cell}", cell)


def answers_queue(user: str, process: str) -> Queue:
    """Where the answers to one process arrive, under its user's name so that no other user can read them."""
    name = f"answers.{user}.{process}"
    return Queue(name, QueueKind.ANSWERS, (Binding(REPLY, name),), Site.BOTH)


def feed_queue(user: str, process: str, grants: Iterable[Grant]) -> Queue:
    """What one process listens to; it survives a short absence, and drops its oldest when nobody reads."""
    bindings = tuple(Binding(grant.exchange, pattern) for grant in grants for pattern in grant.patterns)
    return Queue(f"feed.{user}.{process}", QueueKind.FEED, bindings, Site.BOTH)


@functools.lru_cache(maxsize=10_000)
def retry_exchange_of(queue: str) -> str:
    """The exchange that brings an item back to this queue: that of the role that reads it."""
    if queue in INBOXES:
        raise ValueError(f"the queue {queue!r} holds what others say, which nobody here says again")
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
    """The broker's user for a role; a cell's has the cell in its name."""
    return f"moor-{role}-{cell}" if cell else f"moor-{role}"


class Speaker(Struct, frozen=True):
    """Who a user of the broker is: a role of the table, in a cell if it is a cell's; or an application."""

    role: str
    cell: str = ""
    application: str = ""

    @property
    def is_worker(self) -> bool:
        return not self.application and not ROLES_BY_NAME[self.role].operates


@functools.lru_cache(maxsize=10_000)
def speaker_of(user: str) -> Speaker | None:
    """None for a user that the table does not know."""
    if user.startswith(APPLICATION_USER):
        name = user.removeprefix(APPLICATION_USER)
        return Speaker("", application=name) if APPLICATION_NAME.fullmatch(name) else None
    for role in ROLES:
        if not role.per_cell:
            if user == user_of(role.name):
                return Speaker(role.name)
            continue
        of_cells = f"{user_of(role.name)}-"
        if user.startswith(of_cells) and CELL_NAME.fullmatch(cell := user.removeprefix(of_cells)):
            return Speaker(role.name, cell)
    return None


def cell_of_user(user: str) -> str | None:
    """The one cell that a user may speak for; None if the user is not a cell's."""
    speaker = speaker_of(user)
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
