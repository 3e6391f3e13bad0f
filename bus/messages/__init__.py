"""The messages on the bus, one file per subject. Each type says in its class what it is; the lists of types follow from them."""

from collections.abc import Iterator
from typing import get_args

from bus.message import AnswerMessage, Kind, Message, QueueName, RoleName, Scope, type_of
from bus.messages import (
    administration,
    audit,
    build,
    cell,
    cloud,
    hosts,
    moves,
    placement,
    planning,
    stored_names,
)

_SUBJECTS = (build, moves, cell, cloud, hosts, planning, stored_names, placement, administration, audit)


_DEFINED = tuple(
    kind
    for module in _SUBJECTS
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Message) and kind.__module__ == module.__name__
)


def _is_base(kind: type[Message]) -> bool:
    """Whether this type is only a base of message types: it has no tag of its own."""
    return type_of(kind) == kind.__name__


# Every message type.
ALL: tuple[type[Message], ...] = tuple(kind for kind in _DEFINED if not _is_base(kind))
# The same, by its name on the wire.
TYPES: dict[str, type[Message]] = {type_of(kind): kind for kind in ALL}


def problems_of(kind: type[Message]) -> Iterator[str]:
    """The mistakes in the tag and the route of a message type."""
    if _is_base(kind) and not kind.__subclasses__():
        yield "it has no tag: tag='...' in its class line"
    if TYPES.get(type_of(kind), kind) is not kind:
        yield f"its tag {type_of(kind)!r} is that of another type, too"
    if _is_base(kind) or issubclass(kind, AnswerMessage):
        return
    stated_by = next((each for each in kind.__mro__ if "ROUTE" in vars(each)), None)
    # What another message says of itself may not be so for this one.
    if stated_by is None or (stated_by is not kind and not _is_base(stated_by)):
        yield "neither it nor a base that is no message states a ROUTE"
    else:
        yield from _problems_of_route(kind)


def _problems_of_route(kind: type[Message]) -> Iterator[str]:
    route, fields = kind.ROUTE, kind.__struct_fields__
    ends = {Scope.CELL: "cell", Scope.PROJECT: "project"}.get(kind.SCOPE, "")
    # A question may name a cell by which it chooses; the cell of any other message is the one that its sender speaks for.
    is_of_cell = "cell" in fields and route.kind is not Kind.QUESTION
    if (ends and ends not in fields) or (is_of_cell and ends != "cell"):
        yield f"its SCOPE is {kind.SCOPE.value!r}, and its fields are {', '.join(fields)}"
    if route.to not in get_args(QueueName) and (route.to or route.kind is not Kind.EVENT):
        yield f"it goes to the queue {route.to!r}, must be one of {', '.join(get_args(QueueName))}"
    if not route.by or not {*route.by, *route.heard_by} <= {*get_args(RoleName)}:
        yield f"it is sent by {route.by}, and heard by {route.heard_by}: roles are {', '.join(get_args(RoleName))}"
    if route.kind is Kind.QUESTION and not issubclass(TYPES.get(route.answer, Message), AnswerMessage):
        yield f"it is answered by {route.answer!r}, which is no answer"
    if route.answer and route.answer not in TYPES:
        yield f"it is answered by {route.answer!r}, which is no message"


_problems = tuple(f"{kind.__name__}: {problem}" for kind in _DEFINED for problem in problems_of(kind))
if _problems:
    raise TypeError("; ".join(_problems))
