"""The messages on the bus, one file per subject. Each type says in its class what it is; the lists of types follow from them."""

from bus.message import Message, type_of
from bus.messages import (
    audit,
    books,
    build,
    catalog,
    cell,
    cloud,
    hosts,
    keeping,
    moves,
    placement,
    planning,
    policies,
    projects,
    questions,
    together,
)

_SUBJECTS = (
    build,
    moves,
    cell,
    cloud,
    hosts,
    planning,
    catalog,
    projects,
    placement,
    together,
    books,
    audit,
    keeping,
    questions,
    policies,
)

# Every message type; one that has no tag of its own is only a base of others.
ALL: tuple[type[Message], ...] = tuple(
    kind
    for module in _SUBJECTS
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Message) and kind.__module__ == module.__name__
    if type_of(kind) != kind.__name__
)
# The same, by its name on the wire.
TYPES: dict[str, type[Message]] = {type_of(kind): kind for kind in ALL}
