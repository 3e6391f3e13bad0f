"""The exchanges and queues of the API level and of each cell."""

from collections.abc import Iterable

from bus.topology.routes import (
    AGGREGATE_ORDERS,
    AUDIT_QUESTIONS,
    AUDIT_WRITES,
    BOOK_QUESTIONS,
    BOOK_WRITES,
    GROUP_ORDERS,
    STORED_NAME_ORDERS,
)
from bus.topology.values import (
    API,
    CELL,
    DEAD,
    DEAD_QUEUE,
    EVENTS,
    FEED,
    IRONIC,
    IRONIC_EVENTS,
    IRONIC_TOPIC,
    PLACEMENT,
    REPLY,
    RETRY,
    Binding,
    Exchange,
    Grant,
    Queue,
    QueueKind,
    Site,
)


def inbox_queue(name: str, exchange: str, topics: Iterable[str]) -> Queue:
    """An inbox for these topics of another program's exchange.

    The routing keys of oslo.messaging are `<topic>.<level>`. The inbox takes every level by `<topic>.*`. A list of
    levels would easily lack one: there are more than Ironic uses, and `warning` is `warn` in a key. A binding to `#`
    would take everything, also Ironic's RPC, which has the same exchange.
    """
    return Queue(
        name, QueueKind.INBOX, tuple(Binding(exchange, f"{topic}.*") for topic in topics), Site.IRONIC
    )


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
    Exchange(f"{RETRY}placement"),
    Exchange(f"{RETRY}ironic.{{cell}}", Site.CELL),
    Exchange(f"{RETRY}conductor.{{cell}}", Site.CELL),
    Exchange(f"{RETRY}compute.{{cell}}", Site.CELL),
    Exchange(DEAD),
    # Declared exactly as Ironic does.
    Exchange(IRONIC, Site.IRONIC, durable=False, foreign=True),
)

QUEUES: tuple[Queue, ...] = (
    Queue(
        "scheduler.requests",
        QueueKind.WORK,
        (
            Binding(API, "build.request.*"),
            Binding(API, "move.*.*"),
            Binding(API, "instance.delete.*"),
            Binding(API, "instance.rebuild.*"),
            *(Binding(API, key) for key in (*GROUP_ORDERS, *AGGREGATE_ORDERS)),
            Binding(API, "host.set"),
            Binding(API, "application.set"),
            *(Binding(API, key) for key in STORED_NAME_ORDERS),
            Binding(API, "instance.adopt"),
            Binding(API, "instance.give_back"),
            Binding(API, "instance.mend"),
        ),
    ),
    Queue(
        "scheduler.questions",
        QueueKind.QUESTIONS,
        (
            Binding(API, "instance.query.*"),
            Binding(API, "history.query.*"),
            Binding(API, "migration.query"),
            Binding(API, "console.query.*"),
            Binding(API, "cell.query"),
            Binding(API, "overview.query"),
            Binding(API, "tiles.query"),
            Binding(API, "group.query.*"),
            Binding(API, "flavor.query.*"),
            Binding(API, "image.query.*"),
            Binding(API, "device.profile.query.*"),
            Binding(API, "aggregate.query"),
            Binding(API, "host.query"),
            Binding(API, "plan.query.*"),
            Binding(API, "reasons.query"),
            Binding(API, "capability.query"),
            Binding(API, "drain.query"),
            Binding(API, "explain.query.*"),
            Binding(API, "application.query"),
        ),
    ),
    # Events that schedulers must not miss, however long they are down: how instances end, and facts about hosts.
    Queue(
        "scheduler.events",
        QueueKind.WORK,
        (
            Binding(EVENTS, "instance.active.*"),
            Binding(EVENTS, "instance.moved.*"),
            Binding(EVENTS, "instance.spent.*"),
            Binding(EVENTS, "instance.error.*"),
            Binding(EVENTS, "instance.deleted.*"),
            Binding(EVENTS, "host.state.*"),
            Binding(EVENTS, "host.cleaned.*"),
        ),
        Site.BOTH,
    ),
    Queue(
        "placement.work",
        QueueKind.WORK,
        (
            Binding(PLACEMENT, "inventory.report.*"),
            Binding(PLACEMENT, "host.reshape.*"),
            Binding(PLACEMENT, "release.*"),
            *(Binding(PLACEMENT, key) for key in (*BOOK_WRITES, *AUDIT_WRITES)),
        ),
        Site.BOTH,
    ),
    # Separate queues for claims, searches and other questions: many searches do not delay claims.
    Queue(
        "placement.claims",
        QueueKind.QUESTIONS,
        (
            *(Binding(PLACEMENT, key) for key in ("claim.*", "swap.*", "claims")),
            # Of computes, which cannot reach the other questions' queue from the broker of their cell.
            Binding(PLACEMENT, "host.shape.query.*"),
        ),
        Site.BOTH,
    ),
    Queue(
        "placement.searches",
        QueueKind.QUESTIONS,
        (Binding(PLACEMENT, "candidates"),),
    ),
    Queue(
        "placement.questions",
        QueueKind.QUESTIONS,
        (
            Binding(PLACEMENT, "snapshot"),
            Binding(PLACEMENT, "revisions"),
            Binding(PLACEMENT, "members"),
            *(Binding(PLACEMENT, key) for key in (*BOOK_QUESTIONS, *AUDIT_QUESTIONS)),
        ),
    ),
    Queue(
        "conductor.{cell}.work",
        QueueKind.WORK,
        (
            Binding(CELL, "place.{cell}"),
            Binding(CELL, "adopt.{cell}"),
            Binding(CELL, "remove.{cell}"),
            Binding(CELL, "give_back.{cell}"),
            Binding(CELL, "rebuild.{cell}"),
            Binding(CELL, "move.{cell}"),
            Binding(CELL, "settle.{cell}"),
            Binding(CELL, "alternates.{cell}"),
            Binding(CELL, "spawned.{cell}"),
            Binding(CELL, "spawn.failed.{cell}"),
            Binding(CELL, "destroyed.{cell}"),
            Binding(CELL, "stopped.{cell}"),
            Binding(CELL, "deploy.progress.{cell}"),
            Binding(CELL, "redeployed.{cell}"),
            Binding(CELL, "host.mode.{cell}"),
            Binding(CELL, "host.holds.{cell}"),
            Binding(CELL, "host.not_here.{cell}"),
        ),
        Site.CELL,
    ),
    Queue(
        "compute.{cell}.work",
        QueueKind.WORK,
        tuple(
            Binding(CELL, f"{key}.{{cell}}")
            for key in (
                *("spawn", "respawn", "destroy", "stop", "start", "receive", "host.check"),
                *("adopt.guest", "leave"),
            )
        ),
        Site.CELL,
    ),
    Queue(
        "conductor.{cell}.questions",
        QueueKind.QUESTIONS,
        (Binding(CELL, "cell.books.query.{cell}"),),
        Site.CELL,
    ),
    Queue(
        "compute.{cell}.questions",
        QueueKind.QUESTIONS,
        (Binding(CELL, "host.books.query.{cell}"), Binding(CELL, "console.tell.{cell}")),
        Site.CELL,
    ),
    IRONIC_INBOX,
    Queue(
        "ironic.{cell}.work",
        QueueKind.WORK,
        tuple(Binding(CELL, f"{key}.{{cell}}") for key in ("deploy", "undeploy", "redeploy")),
        Site.CELL,
    ),
    Queue(DEAD_QUEUE, QueueKind.DEAD, (Binding(DEAD, "#"),), Site.BOTH),
)

# Nothing is returned to these queues, neither by a worker's retry nor from the dead letters.
INBOXES = frozenset(queue.name for queue in QUEUES if queue.kind is QueueKind.INBOX)


def answers_queue(user: str, process: str) -> Queue:
    """The queue for answers to one process, under its user's name so that no other user can read them."""
    name = f"answers.{user}.{process}"
    return Queue(name, QueueKind.ANSWERS, (Binding(REPLY, name),), Site.BOTH)


def feed_queue(user: str, process: str, grants: Iterable[Grant]) -> Queue:
    """The feed queue of one process. It outlives a short absence of its reader, and drops its oldest when it is full."""
    bindings = tuple(Binding(grant.exchange, pattern) for grant in grants for pattern in grant.patterns)
    return Queue(f"feed.{user}.{process}", QueueKind.FEED, bindings, Site.BOTH)
