"""Who may say what to whom, as data: exchanges, queues, routes of messages, roles and their rights.

From this one table the objects are declared, users and permissions are generated (bus/permissions.py), messages find
their way, and the promise that cells never call up is checked: statically, in simulation, and by the broker.

A pattern is an AMQP topic pattern; `{cell}` in a pattern or name stands for the cell's name.
"""

import functools
from collections.abc import Iterable
from enum import Enum

from msgspec import Struct, structs

from bus.message import Message, type_of

API = "moor.api"
PLACEMENT = "moor.placement"
CELL = "moor.cell.{cell}"
EVENTS = "moor.events"
REPLY = "moor.reply"
# An item that must be tried again goes back to its queue, and one that cannot be handled goes to the dead letters, by
# the name of its queue: so nobody needs the default exchange, which is a back door into every queue.
# A cell has an exchange of its own for it: RabbitMQ judges a parcel by its routing key, but also routes it by those in
# its CC header, so whoever may write to an exchange reaches every queue that is bound to it.
RETRY = "moor.retry"
CELL_RETRY = "moor.retry.{cell}"
DEAD = "moor.dead"
IRONIC = "ironic"

DEAD_QUEUE = "dead"
DELIVERIES_MAX_LEAST = 20


class Site(Enum):
    """On which broker an object stands. By default all are one broker, and hold everything once."""

    API = "api"
    CELL = "cell"
    BOTH = "both"


class QueueKind(Enum):
    """What a queue promises. WORK loses nothing; QUESTIONS and ANSWERS may, since whoever asks repeats (the queue of
    questions itself outlives a restart of the broker, since who answers has no right to declare it); a FEED drops
    its oldest, and its reader sees the gap; DEAD keeps what could not be handled until a person decides.
    """

    WORK = "work"
    QUESTIONS = "questions"
    ANSWERS = "answers"
    FEED = "feed"
    DEAD = "dead"


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


class Limits(Struct, frozen=True):
    """How much a queue may hold, how often it delivers one message, how long an unread one of a process lives."""

    work_length_max: int = 100_000
    questions_length_max: int = 20_000
    feed_length_max: int = 10_000
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

    It reads its queues, may put their items back or bury them; with `asks` it has an answer queue per process, with
    `listens` feeds of its own; only who `answers` may write to answer queues.
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


class Route(Struct, frozen=True):
    """Where messages of a type go: the exchange, and a key that is the type, ended by the cell where it has one."""

    exchange: str
    kind: Kind


# What is written into placement's books by name, and asked of them beside providers: for the API level, not for cells.
BOOK_WRITES = (
    *("provider.create", "provider.update", "provider.delete"),
    *("inventory.set", "inventory.put", "inventory.drop", "traits.set", "aggregates.set"),
    *("trait.create", "trait.delete", "class.create", "class.rename", "class.delete"),
    *("allocations.set", "allocations.delete", "reshape"),
)
BOOK_QUESTIONS = (
    *("candidates", "candidates.more"),
    *("consumer.query", "holders.query", "usages.query", "names.query"),
)

ROUTES: dict[str, Route] = {
    "build.request": Route(API, Kind.ORDER),
    "build.rejected": Route(EVENTS, Kind.EVENT),
    "build.accepted": Route(EVENTS, Kind.EVENT),
    "instance.delete": Route(API, Kind.ORDER),
    "instance.query": Route(API, Kind.QUESTION),
    "instance.found": Route(REPLY, Kind.ANSWER),
    "instance.placed": Route(EVENTS, Kind.EVENT),
    "instance.active": Route(EVENTS, Kind.EVENT),
    "instance.error": Route(EVENTS, Kind.EVENT),
    "instance.deleted": Route(EVENTS, Kind.EVENT),
    "place": Route(CELL, Kind.ORDER),
    "remove": Route(CELL, Kind.ORDER),
    "spawn": Route(CELL, Kind.ORDER),
    "destroy": Route(CELL, Kind.ORDER),
    "spawned": Route(CELL, Kind.ORDER),
    "spawn.failed": Route(CELL, Kind.ORDER),
    "destroyed": Route(CELL, Kind.ORDER),
    "host.state": Route(EVENTS, Kind.EVENT),
    "host.beat": Route(EVENTS, Kind.EVENT),
    "host.set": Route(API, Kind.ORDER),
    "host.was_set": Route(REPLY, Kind.ANSWER),
    "host.query": Route(API, Kind.QUESTION),
    "host.found": Route(REPLY, Kind.ANSWER),
    "claim": Route(PLACEMENT, Kind.QUESTION),
    "swap": Route(PLACEMENT, Kind.QUESTION),
    "release": Route(PLACEMENT, Kind.ORDER),
    "claim.answered": Route(REPLY, Kind.ANSWER),
    "inventory.report": Route(PLACEMENT, Kind.ORDER),
    "report.answered": Route(REPLY, Kind.ANSWER),
    "inventory.refused": Route(EVENTS, Kind.EVENT),
    "snapshot": Route(PLACEMENT, Kind.QUESTION),
    "snapshot.page": Route(REPLY, Kind.ANSWER),
    "revisions": Route(PLACEMENT, Kind.QUESTION),
    "revisions.page": Route(REPLY, Kind.ANSWER),
    "providers.changed": Route(EVENTS, Kind.EVENT),
    **dict.fromkeys(BOOK_WRITES, Route(PLACEMENT, Kind.ORDER)),
    "write.answered": Route(REPLY, Kind.ANSWER),
    **dict.fromkeys(BOOK_QUESTIONS, Route(PLACEMENT, Kind.QUESTION)),
    "candidates.found": Route(REPLY, Kind.ANSWER),
    "consumer.found": Route(REPLY, Kind.ANSWER),
    "holders.found": Route(REPLY, Kind.ANSWER),
    "usages.found": Route(REPLY, Kind.ANSWER),
    "names.found": Route(REPLY, Kind.ANSWER),
}

EXCHANGES: tuple[Exchange, ...] = (
    Exchange(API, Site.API),
    Exchange(PLACEMENT),
    Exchange(CELL, Site.CELL),
    Exchange(EVENTS),
    Exchange(REPLY),
    Exchange(RETRY),
    Exchange(CELL_RETRY, Site.CELL),
    Exchange(DEAD),
    # As Ironic itself declares it.
    Exchange(IRONIC, Site.API, durable=False, foreign=True),
)

QUEUES: tuple[Queue, ...] = (
    Queue(
        "scheduler.requests",
        QueueKind.WORK,
        (
            Binding(API, "build.request"),
            Binding(API, "move.request"),
            Binding(API, "instance.delete"),
            Binding(API, "host.set"),
        ),
    ),
    Queue(
        "scheduler.questions",
        QueueKind.QUESTIONS,
        (Binding(API, "instance.query"), Binding(API, "host.query")),
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
    Queue(
        "placement.questions",
        QueueKind.QUESTIONS,
        (
            Binding(PLACEMENT, "claim.*"),
            Binding(PLACEMENT, "swap.*"),
            Binding(PLACEMENT, "snapshot"),
            Binding(PLACEMENT, "revisions"),
            *(Binding(PLACEMENT, key) for key in BOOK_QUESTIONS),
        ),
        Site.BOTH,
    ),
    Queue(
        "conductor.{cell}.work",
        QueueKind.WORK,
        (
            Binding(CELL, "place.{cell}"),
            Binding(CELL, "remove.{cell}"),
            Binding(CELL, "spawned.{cell}"),
            Binding(CELL, "spawn.failed.{cell}"),
            Binding(CELL, "destroyed.{cell}"),
        ),
        Site.CELL,
    ),
    Queue(
        "compute.{cell}.work",
        QueueKind.WORK,
        (Binding(CELL, "spawn.{cell}"), Binding(CELL, "destroy.{cell}")),
        Site.CELL,
    ),
    Queue("ironic.events", QueueKind.WORK, (Binding(IRONIC, "ironic_versioned_notifications.*"),)),
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

ROLES: tuple[Role, ...] = (
    Role(
        "client",
        writes=(
            Grant(API, ("build.request", "move.request", "instance.delete", "instance.query", "host.query")),
            Grant(PLACEMENT, (*BOOK_QUESTIONS, "snapshot")),
        ),
        listens=(Grant(EVENTS, FACTS),),
        asks=True,
        site=Site.API,
    ),
    Role(
        "scheduler",
        writes=(
            Grant(PLACEMENT, ("claim.*", "release.*", "snapshot", "revisions")),
            Grant(CELL, ("place.*", "remove.*")),
            Grant(EVENTS, ("instance.#", "build.#")),
        ),
        reads=("scheduler.requests", "scheduler.questions", "scheduler.events"),
        listens=(Grant(EVENTS, FACTS),),
        asks=True,
        answers=True,
    ),
    Role(
        "placement",
        writes=(Grant(EVENTS, ("providers.changed", "inventory.refused.*")),),
        reads=("placement.work", "placement.questions"),
        answers=True,
    ),
    Role(
        "cell",
        writes=(
            Grant(PLACEMENT, ("swap.{cell}", "release.{cell}", "inventory.report.{cell}")),
            Grant(
                CELL,
                (
                    "spawn.{cell}",
                    "destroy.{cell}",
                    "spawned.{cell}",
                    "spawn.failed.{cell}",
                    "destroyed.{cell}",
                ),
            ),
            Grant(EVENTS, ("instance.*.{cell}", "host.*.{cell}")),
        ),
        reads=("conductor.{cell}.work", "compute.{cell}.work"),
        asks=True,
        per_cell=True,
        site=Site.CELL,
    ),
    Role(
        "ironic",
        writes=(Grant(PLACEMENT, ("inventory.report.*", "snapshot")), Grant(EVENTS, ("node.#",))),
        reads=("ironic.events",),
        asks=True,
        site=Site.API,
    ),
    Role("operator", reads=(DEAD_QUEUE,), listens=(Grant(EVENTS, FACTS),), asks=True, operates=True),
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
    sites: Iterable[Site] = (Site.API, Site.CELL),
    *,
    create_foreign: bool = False,
    limits: Limits | None = None,
) -> Objects:
    """All that stands on a broker that serves these sites and cells.

    Foreign exchanges are bound to where they exist, and only made here if `create_foreign` says that nobody else will.
    """
    wanted, names = {Site.BOTH, *sites}, tuple(cells)
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
    return _address(type(message), getattr(message, "cell", None))


@functools.lru_cache(maxsize=100_000)
def _address(kind_of_message: type[Message], cell: str | None) -> Address:
    name = type_of(kind_of_message)
    route = ROUTES[name]
    return Address(
        in_cell(route.exchange, cell or ""), name if cell is None else f"{name}.{cell}", route.kind
    )


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


def retry_exchange_of(queue: str) -> str:
    """The exchange that brings an item back to this queue."""
    for each in QUEUES:
        before, of_a_cell, after = each.name.partition("{cell}")
        if of_a_cell and queue.startswith(before) and queue.endswith(after):
            return in_cell(CELL_RETRY, queue.removeprefix(before).removesuffix(after))
    return RETRY


def is_retry_exchange(name: str) -> bool:
    return name == RETRY or name.startswith(in_cell(CELL_RETRY, ""))


def user_of(role: str, cell: str = "") -> str:
    """The broker's user for a role; a cell's has the cell in its name."""
    return f"moor-{role}-{cell}" if cell else f"moor-{role}"


def cell_of_user(user: str) -> str | None:
    """The one cell that a user may speak for; None if the user is not a cell's."""
    return user.removeprefix(_CELL_USER) if user.startswith(_CELL_USER) else None


_CELL_USER = user_of("cell", "x")[:-1]


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
