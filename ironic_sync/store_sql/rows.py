"""A node's columns, the statements on nodes that run most often, and how a node's row is encoded."""

from collections.abc import Iterable

import msgspec
from msgspec import structs
from sqlalchemy import BigInteger, Boolean, Column, String

from bus.message import ProviderId
from bus.moments import microseconds
from bus.sql import RowColumns, Values
from ironic_sync.core.ring import Owned
from ironic_sync.core.rows import NodeRow
from ironic_sync.tables import ironic_nodes

_READ = ("owner", "epoch", "version", "body")
_ROW = RowColumns(
    ironic_nodes,
    *("id", "cell", "owner", "epoch", "version", "holds_instance", "due_us", "needs_report", "needs_read"),
    "body",
)
LOAD = RowColumns(ironic_nodes, *_READ).lock()
ADD = _ROW.insert("ON CONFLICT (id) DO NOTHING", returning=("id",), version="new.version + 1")
# A row that was not loaded in this transaction is locked by this; if another daemon writes it first, its version is
# looked at again.
REPLACE = _ROW.update("kept.version = new.version", returning=("id",), version="kept.version + 1")

# PostgreSQL leaves out rows that another transaction has locked, until the next look: a daemon that stands still in a
# transaction must not keep the others from all its nodes. On SQLite a writer has the file to itself.
_MOVE = RowColumns(
    ironic_nodes,
    *("id", "owner", "epoch"),
    *(Column("to_owner", String), Column("only_free", Boolean), Column("above", BigInteger)),
)
GIVE = _MOVE.statement(
    f"""
    WITH moving AS MATERIALIZED (
        SELECT kept.id, new.to_owner, new.above
        FROM {_MOVE.new}
        CROSS JOIN LATERAL (
            SELECT id FROM ironic_nodes
            WHERE id = new.id AND owner = new.owner AND epoch = new.epoch AND NOT (new.only_free AND holds_instance)
            FOR UPDATE SKIP LOCKED
        ) AS kept
    )
    UPDATE ironic_nodes AS node
    SET owner = moving.to_owner, epoch = greatest(node.epoch, moving.above) + 1, version = node.version + 1,
        needs_read = true
    FROM moving
    WHERE node.id = ANY (ARRAY[moving.id])
    RETURNING node.id, node.owner, node.epoch, node.holds_instance
    """,  # noqa: S608 - of constants
    """
    UPDATE ironic_nodes SET owner = ?4, epoch = max(epoch, ?6) + 1, version = version + 1, needs_read = 1
    WHERE id = ?1 AND owner = ?2 AND epoch = ?3 AND NOT (?5 AND holds_instance)
    RETURNING id, owner, epoch, holds_instance
    """,
    returning=("id", "owner", "epoch", "holds_instance"),
)
_VERSION = RowColumns(ironic_nodes, "id", "version")
FORGET = _VERSION.statement(
    f"""
    WITH old AS MATERIALIZED (
        SELECT kept.id
        FROM {_VERSION.new}
        CROSS JOIN LATERAL (
            SELECT id FROM ironic_nodes WHERE id = new.id AND version = new.version FOR UPDATE SKIP LOCKED
        ) AS kept
    )
    DELETE FROM ironic_nodes USING old WHERE ironic_nodes.id = old.id
    """,  # noqa: S608
    "DELETE FROM ironic_nodes WHERE id = ? AND version = ?",
)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(NodeRow).decode


def values(row: NodeRow) -> Values:
    """The values of a row's columns. The version is the one that was read."""
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


def row_of(stored: Values) -> NodeRow:
    """The row, from its owner, epoch, version and body."""
    owner, epoch, version, body = stored
    return structs.replace(_decode(body), owner=owner, epoch=epoch, version=version)


def rows_of(stored: Iterable[Values]) -> tuple[NodeRow, ...]:
    return tuple(map(row_of, stored))


def owned_of(found: Iterable[Values]) -> tuple[Owned, ...]:
    """The owners of nodes, from rows of id, owner, epoch and whether the node holds an instance."""
    return tuple(
        Owned(ProviderId(id_), owner, epoch, bool(holds_instance))
        for id_, owner, epoch, holds_instance in found
    )
