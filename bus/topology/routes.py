"""The route of each message type, and the destination of one message."""

import functools
import operator
from collections.abc import Callable

from msgspec import Struct

from bus.message import Message, type_of
from bus.topology.values import API, CELL, EVENTS, NO_PROJECT, PLACEMENT, REPLY, Kind, Route, Scope

# Writes by name to placement's books, and questions about more than providers: for the API level, not for cells.
BOOK_WRITES = (
    *("provider.create", "provider.update", "provider.delete"),
    *("inventory.set", "inventory.put", "inventory.drop", "traits.set", "aggregates.set"),
    *("trait.create", "trait.delete", "class.create", "class.rename", "class.delete"),
    *("allocations.set", "allocations.delete", "reshape", "quota.set"),
)
GROUP_ORDERS = ("group.create.*", "group.delete.*")
AGGREGATE_ORDERS = ("aggregate.set", "aggregate.delete")
# Orders about what is stored under names, for the requests of all projects.
STORED_NAME_ORDERS = (
    *("flavor.create", "flavor.delete", "image.create", "image.set", "image.delete"),
    *("device.profile.create", "device.profile.delete"),
)
# An audit's: questions to placement, and writes that mend what it found.
AUDIT_QUESTIONS = ("books.query", "contradictions.query")
AUDIT_WRITES = ("books.recount", "books.mend")
BOOK_QUESTIONS = ("consumer.query", "holders.query", "usages.query.*", "quota.query.*", "names.query")

_ANSWER = Route(REPLY, Kind.ANSWER)
_CELL_EVENT = Route(EVENTS, Kind.EVENT, Scope.CELL)
_CELL_ORDER = Route(CELL, Kind.ORDER, Scope.CELL)
_CELL_BOOKS = Route(CELL, Kind.QUESTION, Scope.CELL, "cell.books.found")
_HOST_BOOKS = Route(CELL, Kind.QUESTION, Scope.CELL, "host.books.found")

ROUTES: dict[str, Route] = {
    "build.request": Route(API, Kind.ORDER, Scope.PROJECT, "build.accepted"),
    "build.rejected": Route(EVENTS, Kind.EVENT),
    "build.accepted": Route(EVENTS, Kind.EVENT),
    "instance.delete": Route(API, Kind.ORDER, Scope.PROJECT, "instance.found"),
    "instance.rebuild": Route(API, Kind.ORDER, Scope.PROJECT, "instance.found"),
    "instance.adopt": Route(API, Kind.ORDER, answer="instance.found"),
    "instance.give_back": Route(API, Kind.ORDER, answer="instance.found"),
    "move.request": Route(API, Kind.ORDER, Scope.PROJECT, "instance.found"),
    "move.end": Route(API, Kind.ORDER, Scope.PROJECT, "instance.found"),
    "history.query": Route(API, Kind.QUESTION, Scope.PROJECT, "history.found"),
    "history.found": _ANSWER,
    "migration.query": Route(API, Kind.QUESTION, answer="migration.found"),
    "migration.found": _ANSWER,
    "instance.query": Route(API, Kind.QUESTION, Scope.PROJECT, "instance.found"),
    "instance.found": _ANSWER,
    "instance.waiting": _CELL_EVENT,
    "instance.placed": _CELL_EVENT,
    "instance.active": _CELL_EVENT,
    "instance.moved": _CELL_EVENT,
    "instance.spent": _CELL_EVENT,
    "instance.error": _CELL_EVENT,
    "instance.deleted": _CELL_EVENT,
    "place": _CELL_ORDER,
    "adopt": _CELL_ORDER,
    "remove": _CELL_ORDER,
    "give_back": _CELL_ORDER,
    "rebuild": _CELL_ORDER,
    "move": _CELL_ORDER,
    "settle": _CELL_ORDER,
    "alternates": _CELL_ORDER,
    "spawn": _CELL_ORDER,
    "adopt.guest": _CELL_ORDER,
    "leave": _CELL_ORDER,
    "respawn": _CELL_ORDER,
    "destroy": _CELL_ORDER,
    "stop": _CELL_ORDER,
    "start": _CELL_ORDER,
    "receive": _CELL_ORDER,
    "deploy": _CELL_ORDER,
    "undeploy": _CELL_ORDER,
    "redeploy": _CELL_ORDER,
    "deploy.progress": _CELL_ORDER,
    "spawned": _CELL_ORDER,
    "spawn.failed": _CELL_ORDER,
    "destroyed": _CELL_ORDER,
    "stopped": _CELL_ORDER,
    "redeployed": _CELL_ORDER,
    "conductor.beat": _CELL_EVENT,
    "cell.query": Route(API, Kind.QUESTION, answer="cell.found"),
    "cell.found": _ANSWER,
    "worker.beat": _CELL_EVENT,
    "overview.query": Route(API, Kind.QUESTION, answer="overview.found"),
    "overview.found": _ANSWER,
    "tiles.query": Route(API, Kind.QUESTION, answer="tiles.found"),
    "tiles.found": _ANSWER,
    "console.query": Route(API, Kind.QUESTION, Scope.PROJECT, "console.found"),
    "console.tell": _CELL_ORDER,
    "console.told": _CELL_EVENT,
    "console.found": _ANSWER,
    "host.state": _CELL_EVENT,
    "host.beat": _CELL_EVENT,
    "host.metrics": _CELL_EVENT,
    "host.images": _CELL_EVENT,
    "host.changed": _CELL_EVENT,
    "host.cleaned": _CELL_EVENT,
    "host.mode": _CELL_ORDER,
    "host.check": _CELL_ORDER,
    "host.holds": _CELL_ORDER,
    "host.not_here": _CELL_ORDER,
    "host.set": Route(API, Kind.ORDER, answer="host.was_set"),
    "host.was_set": _ANSWER,
    "host.query": Route(API, Kind.QUESTION, answer="host.found"),
    "host.found": _ANSWER,
    "plan.query": Route(API, Kind.QUESTION, Scope.PROJECT, "plan.found"),
    "plan.found": _ANSWER,
    "reasons.query": Route(API, Kind.QUESTION, answer="reasons.found"),
    "reasons.found": _ANSWER,
    "drain.query": Route(API, Kind.QUESTION, answer="drain.found"),
    "drain.found": _ANSWER,
    "explain.query": Route(API, Kind.QUESTION, Scope.PROJECT, "explain.found"),
    "explain.found": _ANSWER,
    "capability.query": Route(API, Kind.QUESTION, answer="capability.found"),
    "capability.found": _ANSWER,
    "group.create": Route(API, Kind.ORDER, Scope.PROJECT, "group.found"),
    "group.delete": Route(API, Kind.ORDER, Scope.PROJECT, "group.found"),
    "group.query": Route(API, Kind.QUESTION, Scope.PROJECT, "group.found"),
    "group.found": _ANSWER,
    "flavor.create": Route(API, Kind.ORDER, answer="flavor.found"),
    "flavor.delete": Route(API, Kind.ORDER, answer="flavor.found"),
    "flavor.query": Route(API, Kind.QUESTION, Scope.PROJECT, "flavor.found"),
    "flavor.found": _ANSWER,
    "image.create": Route(API, Kind.ORDER, answer="image.found"),
    "image.set": Route(API, Kind.ORDER, answer="image.found"),
    "image.delete": Route(API, Kind.ORDER, answer="image.found"),
    "image.query": Route(API, Kind.QUESTION, Scope.PROJECT, "image.found"),
    "image.found": _ANSWER,
    "device.profile.create": Route(API, Kind.ORDER, answer="device.profile.found"),
    "device.profile.delete": Route(API, Kind.ORDER, answer="device.profile.found"),
    "device.profile.query": Route(API, Kind.QUESTION, Scope.PROJECT, "device.profile.found"),
    "device.profile.found": _ANSWER,
    "application.set": Route(API, Kind.ORDER, answer="application.was_set"),
    "application.was_set": _ANSWER,
    "application.query": Route(API, Kind.QUESTION, answer="application.found"),
    "application.found": _ANSWER,
    "aggregate.set": Route(API, Kind.ORDER, answer="aggregate.was_set"),
    "aggregate.was_set": _ANSWER,
    "aggregate.delete": Route(API, Kind.ORDER, answer="aggregate.was_deleted"),
    "aggregate.was_deleted": _ANSWER,
    "aggregate.query": Route(API, Kind.QUESTION, answer="aggregate.found"),
    "aggregate.found": _ANSWER,
    "aggregate.changed": Route(EVENTS, Kind.EVENT),
    "claim": Route(PLACEMENT, Kind.QUESTION, Scope.CELL, "claim.answered"),
    "swap": Route(PLACEMENT, Kind.QUESTION, Scope.CELL, "claim.answered"),
    "release": Route(PLACEMENT, Kind.ORDER, Scope.CELL, "claim.answered"),
    "claim.answered": _ANSWER,
    "claims": Route(PLACEMENT, Kind.QUESTION, answer="claims.answered"),
    "claims.answered": _ANSWER,
    "inventory.report": Route(PLACEMENT, Kind.ORDER, Scope.CELL, "report.answered"),
    "report.answered": _ANSWER,
    "inventory.refused": _CELL_EVENT,
    "host.shape.query": Route(PLACEMENT, Kind.QUESTION, Scope.CELL, "host.shape.found"),
    "host.shape.found": _ANSWER,
    "host.reshape": Route(PLACEMENT, Kind.ORDER, Scope.CELL, "host.reshaped"),
    "host.reshaped": _ANSWER,
    "snapshot": Route(PLACEMENT, Kind.QUESTION, answer="snapshot.page"),
    "snapshot.page": _ANSWER,
    "revisions": Route(PLACEMENT, Kind.QUESTION, answer="revisions.page"),
    "revisions.page": _ANSWER,
    "members": Route(PLACEMENT, Kind.QUESTION, answer="members.page"),
    "members.page": _ANSWER,
    "providers.changed": Route(EVENTS, Kind.EVENT),
    **dict.fromkeys(BOOK_WRITES, Route(PLACEMENT, Kind.ORDER, answer="write.answered")),
    "write.answered": _ANSWER,
    "candidates": Route(PLACEMENT, Kind.QUESTION, answer="candidates.found"),
    "candidates.found": _ANSWER,
    "consumer.query": Route(PLACEMENT, Kind.QUESTION, answer="consumer.found"),
    "consumer.found": _ANSWER,
    "holders.query": Route(PLACEMENT, Kind.QUESTION, answer="holders.found"),
    "holders.found": _ANSWER,
    "usages.query": Route(PLACEMENT, Kind.QUESTION, Scope.PROJECT, "usages.found"),
    "usages.found": _ANSWER,
    "quota.query": Route(PLACEMENT, Kind.QUESTION, Scope.PROJECT, "quota.found"),
    "quota.found": _ANSWER,
    "names.query": Route(PLACEMENT, Kind.QUESTION, answer="names.found"),
    "names.found": _ANSWER,
    "books.query": Route(PLACEMENT, Kind.QUESTION, answer="books.found"),
    "books.found": _ANSWER,
    "contradictions.query": Route(PLACEMENT, Kind.QUESTION, answer="contradictions.found"),
    "contradictions.found": _ANSWER,
    **dict.fromkeys(AUDIT_WRITES, Route(PLACEMENT, Kind.ORDER, answer="write.answered")),
    "instance.mend": Route(API, Kind.ORDER, answer="instance.found"),
    "cell.books.query": _CELL_BOOKS,
    "cell.books.found": _ANSWER,
    "host.books.query": _HOST_BOOKS,
    "host.books.found": _ANSWER,
}
# An invalid request is answered by this type, whatever was asked.
REJECTION = "build.rejected"


_END_FIELDS = {Scope.CELL: "cell", Scope.PROJECT: "project", Scope.NONE: "NOTHING"}


class Destination(Struct, frozen=True):
    exchange: str
    routing_key: str
    kind: Kind


def destination_of(message: Message) -> Destination:
    """The exchange and the routing key of a message that is no answer. An answer goes to the queue of its asker."""
    return destination_of_like(type(message), end_of(message))


def end_of(message: Message) -> str:
    """The cell or project that ends the routing key of a message; empty if none does, or if it names no project.

    Messages of equal type and end have the same destination.
    """
    return reader_of_end(type(message))(message)


@functools.cache
def reader_of_end(kind: type[Message]) -> Callable[[Message], str]:
    """Returns `end_of` for messages of one type. It is made once for each type, since a message takes it often."""
    return operator.attrgetter(end_field_of(kind))


def end_field_of(kind: type[Message]) -> str:
    """The attribute that `end_of` reads. A test checks that messages of each type have it."""
    return _END_FIELDS[ROUTES[type_of(kind)].scope]


@functools.lru_cache(maxsize=10_000)
def project_of_key(routing_key: str) -> str:
    """The project that ends a routing key; empty if it names none."""
    name, _, end = routing_key.rpartition(".")
    route = ROUTES.get(name)
    return end if route is not None and route.scope is Scope.PROJECT and end != NO_PROJECT else ""


@functools.lru_cache(maxsize=100_000)
def destination_of_like(kind_of_message: type[Message], end: str) -> Destination:
    """The destination of messages of this type with this end (`end_of`)."""
    name = type_of(kind_of_message)
    route = ROUTES[name]
    if route.scope is Scope.PROJECT:
        end = end or NO_PROJECT
    exchange = in_cell(route.exchange, end) if route.scope is Scope.CELL else route.exchange
    return Destination(exchange, f"{name}.{end}" if end else name, route.kind)


def in_cell(text: str, cell: str) -> str:
    return text.replace("{cell}", cell)
