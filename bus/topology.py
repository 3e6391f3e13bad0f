"""The topology: exchanges, queues, roles with their rights, and where each message goes.

All of it follows from the routes that message types state (bus/message.py), and from the tables here. Brokers get their
exchanges and queues from them. Users and their permissions are generated from them (bus/definitions.py). The publisher looks
up where a message goes. The reader looks up whether a message counts that has arrived (bus/workers/authority.py).

The tables promise that cells never send to the API level. Tests, the simulation and the broker check that promise.

A pattern is an AMQP topic pattern. `{cell}` in a pattern or name is replaced by the cell's name.
"""

import functools
import operator
from collections.abc import Callable, Iterable

from msgspec import Struct, structs

from bus.message import (
    API,
    CELL,
    EVENTS,
    PLACEMENT,
    REPLY,
    Kind,
    Message,
    QueueName,
    RoleName,
    Route,
    Scope,
    type_of,
)
from bus.messages import ALL, TYPES
from bus.queues import (
    API_QUEUES,
    APPLICATION,
    APPLICATION_NAME,
    APPLICATION_USER,
    CELL0,
    CELL_NAME,
    DEAD,
    DEAD_LETTERS,
    DEAD_QUEUE,
    DELIVERIES_MAX_LEAST,
    EVERY_SITE,
    FEED,
    IRONIC,
    IRONIC_EVENTS,
    IRONIC_TOPIC,
    NO_PROJECT,
    PROJECT_NAME,
    RETRY,
    Binding,
    Exchange,
    Grant,
    Limits,
    Objects,
    Queue,
    QueueKind,
    Site,
    answers_queue,
    application_exchange,
    application_queue,
    feed_queue,
    in_cell,
    inbox_queue,
    is_retry_exchange,
    matches,
    properties_of,
)

__all__ = [
    "API",
    "API_QUEUES",
    "APPLICATION_NAME",
    "CELL",
    "CELL0",
    "CELL_NAME",
    "DEAD",
    "DEAD_LETTERS",
    "DEAD_QUEUE",
    "DELIVERIES_MAX_LEAST",
    "EVENTS",
    "EVERY_SITE",
    "EXCHANGES",
    "FACTS",
    "FEED",
    "INBOXES",
    "IRONIC",
    "IRONIC_EVENTS",
    "IRONIC_INBOX",
    "IRONIC_TOPIC",
    "LOCAL",
    "NO_PROJECT",
    "OF_ADMINS",
    "PLACEMENT",
    "QUEUES",
    "REJECTION",
    "REPLY",
    "RETRY",
    "ROLES",
    "ROLES_BY_NAME",
    "Application",
    "Binding",
    "BrokerUser",
    "Destination",
    "Exchange",
    "Grant",
    "Kind",
    "Limits",
    "Objects",
    "Queue",
    "QueueKind",
    "Role",
    "Route",
    "Scope",
    "Site",
    "answers_queue",
    "application_exchange",
    "application_queue",
    "broker_user_of",
    "destination_of",
    "destination_of_like",
    "feed_queue",
    "in_cell",
    "inbox_queue",
    "is_named",
    "is_retry_exchange",
    "kind_of",
    "objects_of",
    "objects_of_application",
    "of_projects",
    "project_of_key",
    "properties_of",
    "reader_of_end",
    "retry_exchange_of",
    "user_of",
]

# Operators may choose other names for it, and for Ironic's exchange.
IRONIC_INBOX = inbox_queue(IRONIC_EVENTS, IRONIC, (IRONIC_TOPIC,))

EXCHANGES: tuple[Exchange, ...] = (
    Exchange(API, Site.API),
    Exchange(PLACEMENT),
    Exchange(CELL, Site.CELL),
    Exchange(EVENTS),
    Exchange(REPLY),
    Exchange(FEED, Site.API),
    Exchange(f"{RETRY}scheduler"),
    Exchange(f"{RETRY}keeper", Site.API),
    Exchange(f"{RETRY}placement"),
    Exchange(f"{RETRY}ironic.{{cell}}", Site.CELL),
    Exchange(f"{RETRY}conductor.{{cell}}", Site.CELL),
    Exchange(f"{RETRY}compute.{{cell}}", Site.CELL),
    Exchange(DEAD),
    # Declared exactly as Ironic does.
    Exchange(IRONIC, Site.IRONIC, durable=False, foreign=True),
)


def _key(kind: type[Message], end: str) -> str:
    """The routing key of messages of this type, as a pattern with this end."""
    return type_of(kind) if kind.SCOPE is Scope.NONE else f"{type_of(kind)}.{end}"


def _queue(name: QueueName, kind: QueueKind, site: Site = Site.API) -> Queue:
    end = "{cell}" if "{cell}" in name else "*"
    taken = (each for each in ALL if each.ROUTE.to == name)
    return Queue(name, kind, tuple(Binding(each.ROUTE.exchange, _key(each, end)) for each in taken), site)


QUEUES: tuple[Queue, ...] = (
    _queue("scheduler.requests", QueueKind.WORK),
    _queue("scheduler.questions", QueueKind.QUESTIONS),
    # Events that schedulers must not miss, however long they are down: how instances end, and facts about hosts.
    _queue("scheduler.events", QueueKind.WORK, Site.BOTH),
    _queue("placement.work", QueueKind.WORK, Site.BOTH),
    # Separate queues for claims, searches and other questions: many searches do not delay claims. Computes ask this one, too:
    # from the broker of their cell they cannot reach that of the other questions.
    _queue("placement.claims", QueueKind.QUESTIONS, Site.BOTH),
    _queue("placement.searches", QueueKind.QUESTIONS),
    _queue("placement.questions", QueueKind.QUESTIONS),
    _queue("conductor.{cell}.work", QueueKind.WORK, Site.CELL),
    _queue("compute.{cell}.work", QueueKind.WORK, Site.CELL),
    _queue("conductor.{cell}.questions", QueueKind.QUESTIONS, Site.CELL),
    _queue("compute.{cell}.questions", QueueKind.QUESTIONS, Site.CELL),
    IRONIC_INBOX,
    _queue("ironic.{cell}.work", QueueKind.WORK, Site.CELL),
    _queue("keeper.requests", QueueKind.WORK),
    _queue("keeper.questions", QueueKind.QUESTIONS),
    # Apart from requests: a sender of events can reach, by a header of RabbitMQ, each queue that takes events.
    _queue("keeper.events", QueueKind.WORK),
    Queue(DEAD_QUEUE, QueueKind.DEAD, (Binding(DEAD, "#"),), Site.BOTH),
)

# Nothing is returned to these queues, neither by a worker's retry nor from the dead letters.
INBOXES = frozenset(queue.name for queue in QUEUES if queue.kind is QueueKind.INBOX)


def _rights(role: RoleName, end: str, *wide: Grant) -> tuple[Grant, ...]:
    """The right to send all messages that name this role as a sender, under keys with this end.

    `wide` are rights to more than one key. They cover only messages that name this role; a test checks that.
    """
    keys: dict[str, list[str]] = {}
    for kind in ALL:
        key, exchange = _key(kind, end), kind.ROUTE.exchange
        covered = (each for grant in wide if grant.exchange == exchange for each in grant.patterns)
        if role in kind.ROUTE.by and not any(matches(pattern, key) for pattern in covered):
            keys.setdefault(exchange, []).append(key)
    return (*wide, *(Grant(exchange, tuple(patterns)) for exchange, patterns in keys.items()))


def _heard(role: RoleName, end: str) -> tuple[str, ...]:
    return tuple(_key(kind, end) for kind in ALL if role in kind.ROUTE.heard_by)


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


# All events, listed by name instead of `#`: a cell can forward answers meant for it to the events exchange, but not
# under these keys.
FACTS = (
    "build.#",
    "instance.#",
    "host.#",
    "node.#",
    "providers.changed",
    "inventory.refused.*",
    "aggregate.changed",
    "campaign.changed",
    "question.changed",
    "movement.changed",
)
# What an application may send for its projects; and what only admin applications may ask.
_OF_A_PROJECT = _rights("application", "{project}", Grant(API, ("group.*.{project}",)))
OF_ADMINS = _rights("admin", "*")


def of_projects(*projects: str) -> tuple[Grant, ...]:
    """The rights of an application to send messages for these projects; `*` stands for all projects."""
    return tuple(
        Grant(
            grant.exchange,
            tuple(each.replace("{project}", project) for each in grant.patterns for project in projects),
        )
        for grant in _OF_A_PROJECT
    )


ROLES: tuple[Role, ...] = (
    Role(
        "scheduler",
        writes=_rights("scheduler", "*", Grant(EVENTS, ("instance.#", "build.#")), Grant(FEED, ("*",))),
        reads=(*API_QUEUES, *(application_queue(each, "*") for each in API_QUEUES), "scheduler.events"),
        listens=(Grant(EVENTS, (*FACTS, *_heard("scheduler", "*"))),),
        asks=True,
        answers=True,
    ),
    Role(
        "placement",
        writes=_rights("placement", "*"),
        reads=("placement.work", "placement.claims", "placement.searches", "placement.questions"),
        answers=True,
    ),
    Role(
        "conductor",
        writes=_rights("conductor", "{cell}", Grant(EVENTS, ("instance.*.{cell}",))),
        reads=("conductor.{cell}.work", "conductor.{cell}.questions"),
        listens=(Grant(EVENTS, _heard("conductor", "{cell}")),),
        asks=True,
        answers_to=("operator",),
        per_cell=True,
        site=Site.CELL,
    ),
    Role(
        "compute",
        writes=_rights("compute", "{cell}"),
        reads=("compute.{cell}.work", "compute.{cell}.questions"),
        asks=True,
        answers_to=("operator",),
        per_cell=True,
        site=Site.CELL,
    ),
    Role(
        "ironic",
        writes=_rights("ironic", "*", Grant(EVENTS, ("node.#",))),
        reads=(IRONIC_EVENTS, "ironic.{cell}.work"),
        asks=True,
    ),
    # An operator's client may send each of these messages about moves and hosts, too.
    Role(
        "keeper",
        writes=_rights("keeper", "*"),
        reads=("keeper.requests", "keeper.questions", "keeper.events"),
        asks=True,
        answers=True,
        site=Site.API,
    ),
    # The broker allows an operator everything; but only these messages of an operator count.
    Role(
        "operator",
        writes=(*_rights("operator", "*"), *of_projects("*"), *OF_ADMINS),
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
        return user_of(self.role.name)

    @property
    def exchange(self) -> str:
        return application_exchange(self.name)

    @property
    def role(self) -> Role:
        """The application's rights as a role, with keys that name its projects."""
        says = (*of_projects("*"), *OF_ADMINS) if self.admin else of_projects(*self.projects)
        by_its_own = (Grant(self.exchange, each.patterns) for each in says if each.exchange == API)
        heard = Grant(EVENTS, ("build.#", "instance.#")) if self.admin else Grant(FEED, self.projects)
        return Role(
            f"{APPLICATION}{self.name}",
            writes=(*says, *by_its_own),
            listens=(heard,),
            asks=True,
            site=Site.API,
        )


# On the bus of `moor up`, a client connects as this application, unless it needs an operator's rights.
LOCAL = Application("local", admin=True)


def user_of(role: str, cell: str = "") -> str:
    """The broker's user for a role; a cell's user has the cell in its name."""
    return f"moor-{role}-{cell}" if cell else f"moor-{role}"


class BrokerUser(Struct, frozen=True):
    """The role or the application that a broker's user stands for; with its cell if the role belongs to one."""

    role: str
    cell: str = ""
    application: str = ""

    @property
    def is_worker(self) -> bool:
        return not self.application and not ROLES_BY_NAME[self.role].operates


@functools.lru_cache(maxsize=10_000)
def broker_user_of(user: str) -> BrokerUser | None:
    """The role or the application to which a broker's user belongs; None for an unknown user."""
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
            return None if cell == CELL0 else BrokerUser(role.name, cell)
    return None


# The exchanges and queues that one broker must have.
#
# They follow from the cells that it serves, and its sites: whether it serves the API level, cells, or Ironic.


def objects_of(
    cells: Iterable[str],
    sites: Iterable[Site] = EVERY_SITE,
    *,
    create_foreign: bool = False,
    limits: Limits | None = None,
) -> Objects:
    """All exchanges and queues of a broker that serves these sites and cells.

    Queues are also bound to exchanges of other programs, if these exist. With `create_foreign`, these exchanges are
    created.
    """
    wanted, names = {*sites}, tuple(cells)
    if wanted & {Site.API, Site.CELL}:
        wanted.add(Site.BOTH)
    exchanges = [
        structs.replace(
            exchange, name=in_cell(exchange.name, cell), foreign=exchange.foreign and not create_foreign
        )
        for exchange in EXCHANGES
        if exchange.site in wanted
        for cell in (names if "{cell}" in exchange.name else ("",))
    ]
    queues = [
        _queue_in_cell(queue, cell)
        for queue in QUEUES
        if queue.site in wanted
        for cell in (names if "{cell}" in queue.name else ("",))
    ]
    return Objects(tuple(exchanges), tuple(queues), limits or Limits())


def objects_of_application(application: Application, *, limits: Limits | None = None) -> Objects:
    """An application's own exchange, and its own queues behind it: they take what those for all take from the API's exchange.

    So a flood of one application does not delay what another one sends. The exchange is its own, too: by the keys in a CC
    header, a writer to an exchange reaches every queue that is bound to it.
    """
    queues = (
        Queue(
            application_queue(queue.name, application.name),
            queue.kind,
            tuple(Binding(application.exchange, each.pattern) for each in queue.bindings),
        )
        for queue in QUEUES
        if queue.name in API_QUEUES
    )
    exchange = Exchange(application.exchange, Site.API)
    return Objects((exchange,), tuple(_queue_in_cell(queue, "") for queue in queues), limits or Limits())


@functools.lru_cache(maxsize=10_000)
def retry_exchange_of(queue: str) -> str:
    """The exchange through which workers return a message to this queue. Each role that reads queues has one of its own."""
    if queue in INBOXES:
        raise ValueError(f"queue {queue!r} is an inbox: messages of other programs are not sent again")
    for role in ROLES:
        for read in role.reads:
            if is_named(queue, read):
                return (
                    f"{RETRY}{role.name}.{queue.split('.')[1]}" if "{cell}" in read else f"{RETRY}{role.name}"
                )
    raise ValueError(f"no role reads the queue {queue!r}")


def is_named(queue: str, pattern: str, cell: str = "") -> bool:
    """Whether a queue has a name of this pattern: one of the table, or of all queues of applications. Without `cell`, in any cell."""
    return matches(in_cell(pattern, cell or "*"), queue)


@functools.cache
def kind_of(queue: str) -> QueueKind | None:
    """The kind of a queue of this name: one of the table, of a cell, or of an application. None for any other name."""
    for each in QUEUES:
        is_own = each.name in API_QUEUES and is_named(queue, application_queue(each.name, "*"))
        if is_own or is_named(queue, each.name):
            return each.kind
    return None


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


# An invalid request is answered by this type, whatever was asked.
REJECTION = "build.rejected"


class Destination(Struct, frozen=True):
    exchange: str
    routing_key: str
    kind: Kind


def destination_of(message: Message) -> Destination:
    """The exchange and the routing key of a message that is no answer. An answer goes to the queue of its asker."""
    kind = type(message)
    return destination_of_like(kind, reader_of_end(kind)(message))


@functools.cache
def reader_of_end(kind: type[Message]) -> Callable[[Message], str]:
    """Returns a function that reads the end of a message of this type: the cell or project that ends its routing key. It is empty if none
    does, or if the message names no project. Messages of equal type and end have the same destination.

    It is made once for each type, since a message takes it often.
    """
    return operator.attrgetter(kind.SCOPE.value)


@functools.lru_cache(maxsize=10_000)
def project_of_key(routing_key: str) -> str:
    """The project that ends a routing key; empty if it names none."""
    name, _, end = routing_key.rpartition(".")
    kind = TYPES.get(name)
    return end if kind is not None and kind.SCOPE is Scope.PROJECT and end != NO_PROJECT else ""


@functools.lru_cache(maxsize=100_000)
def destination_of_like(kind: type[Message], end: str) -> Destination:
    """The destination of messages of this type with this end (`reader_of_end`)."""
    if kind.SCOPE is Scope.PROJECT:
        end = end or NO_PROJECT
    name = type_of(kind)
    return Destination(in_cell(kind.ROUTE.exchange, end), f"{name}.{end}" if end else name, kind.ROUTE.kind)


def routes() -> dict[str, Route]:
    """For each type of message: where it goes, and which roles may send it."""
    return {name: kind.ROUTE for name, kind in TYPES.items()}
