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


def _is_message(kind: object, module: str) -> bool:
    """Whether this is a type of messages that the module defines, and not a base of such types."""
    if not isinstance(kind, type) or not issubclass(kind, Message) or kind.__module__ != module:
        return False
    return "ROUTE" in vars(kind) or issubclass(kind, AnswerMessage) or type_of(kind) != kind.__name__


# Every message type.
ALL: tuple[type[Message], ...] = tuple(
    kind for module in _SUBJECTS for kind in vars(module).values() if _is_message(kind, module.__name__)
)
# The same, by its name on the wire.
TYPES: dict[str, type[Message]] = {type_of(kind): kind for kind in ALL}


def problems_of(kind: type[Message]) -> Iterator[str]:
    """What is wrong with what a message type says about itself."""
    if type_of(kind) == kind.__name__ or TYPES[type_of(kind)] is not kind:
        yield f"its tag is {type_of(kind)!r}, must be one of its own: tag='...' in its class line"
    if issubclass(kind, AnswerMessage):
        return
    route, fields = kind.ROUTE, kind.__struct_fields__
    if "ROUTE" not in vars(kind):
        yield "it has no ROUTE of its own"
    ends = {Scope.CELL: "cell", Scope.PROJECT: "project"}.get(kind.SCOPE, "")
    if (ends and ends not in fields) or ("cell" in fields and ends != "cell"):
        yield f"its SCOPE is {kind.SCOPE.value!r}, and its fields are {', '.join(fields)}"
    if route.to not in get_args(QueueName) and (route.to or route.kind is not Kind.EVENT):
        yield f"it goes to the queue {route.to!r}, must be one of {', '.join(get_args(QueueName))}"
    if not route.by or not {*route.by, *route.heard_by} <= {*get_args(RoleName)}:
        yield f"it is sent by {route.by}, and heard by {route.heard_by}: roles are {', '.join(get_args(RoleName))}"
    if route.kind is Kind.QUESTION and not issubclass(TYPES.get(route.answer, Message), AnswerMessage):
        yield f"it is answered by {route.answer!r}, which is no answer"
    if route.answer and route.answer not in TYPES:
        yield f"it is answered by {route.answer!r}, which is no message"


_problems = tuple(f"{kind.__name__}: {problem}" for kind in ALL for problem in problems_of(kind))
if _problems:
    raise TypeError("; ".join(_problems))
