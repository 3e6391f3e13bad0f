"""Convert rows to the columns of their tables and back, alike on both databases."""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import msgspec
from msgspec import structs

from bus.message import ProviderId
from bus.moments import microseconds
from ironic_sync.core.ring import Owned
from ironic_sync.core.rows import NodeRow

# As each database takes them, one for each column.
Values = Sequence[Any]
# Owner, epoch, version and body, as they are read.
Stored = Sequence[Any]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(NodeRow).decode


def values(row: NodeRow) -> Values:
    """The values of a row's columns, in the order in which all statements take them. The version is the one that was read."""
    due_at = row.due_at
    return (
        row.id,
        row.cell,
        row.owner,
        row.epoch,
        row.version,
        row.holds_instance,
        microseconds(due_at) if due_at else None,
        row.needs_report,
        row.needs_read,
        # These three are in columns alone, since a node changes its owner without its body.
        _encode(structs.replace(row, owner="", epoch=0, version=0)),
    )


def row_of(stored: Stored) -> NodeRow:
    owner, epoch, version, body = stored
    return structs.replace(_decode(body), owner=owner, epoch=epoch, version=version)


def rows_of(stored: Iterable[Stored]) -> tuple[NodeRow, ...]:
    return tuple(map(row_of, stored))


def owned_of(found: Iterable[Sequence[Any]]) -> tuple[Owned, ...]:
    """The owners of nodes, from rows of id, owner, epoch and whether the node holds an instance."""
    return tuple(
        Owned(ProviderId(id_), owner, epoch, bool(holds_instance))
        for id_, owner, epoch, holds_instance in found
    )


def number(id_: UUID) -> int:
    """The UUID as a number. Both databases sort UUIDs in the order of these numbers."""
    return id_.int
