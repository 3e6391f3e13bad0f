"""Rows of aggregates: few, read and written whole."""

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection

from bus.errors import Transient
from bus.message import AggregateId
from bus.messages.aggregates import Aggregate
from bus.sql.types import Id
from scheduler_worker.core.aggregates.kept import KeptAggregate
from scheduler_worker.tables import aggregates as table

_SAVE = sa.text(
    "INSERT INTO aggregates_metadata (id, name, body) VALUES (:id, :name, :body) "
    "ON CONFLICT (id) DO UPDATE SET name = excluded.name, body = excluded.body"
).bindparams(sa.bindparam("id", type_=Id))

_encode = msgspec.json.Encoder().encode
_aggregate = msgspec.json.Decoder(KeptAggregate).decode
# Two arbitrary numbers: "moor", and the purpose. Placement's log has another purpose.
_ORDER = sa.text("SELECT pg_advisory_xact_lock(1836019570, 2)")


def lock_orders(connection: Connection) -> None:
    """Lock orders about aggregates (PostgreSQL): until the transaction ends, no other worker follows one."""
    connection.execute(_ORDER)


def lock_aggregates(connection: Connection) -> list[KeptAggregate]:
    return _in_order(connection.scalars(sa.select(table.c.body).order_by(table.c.id).with_for_update()))


def find_aggregates(connection: Connection) -> list[Aggregate]:
    found = _in_order(connection.scalars(sa.select(table.c.body)))
    return [each.told for each in found if not each.deleted_us]


def _in_order(bodies: "sa.ScalarResult[bytes]") -> list[KeptAggregate]:
    # Sorted here: a database's order of texts depends on its locale.
    return sorted(map(_aggregate, bodies), key=lambda each: each.name)


def save_aggregate(connection: Connection, aggregate: KeptAggregate) -> None:
    # No aggregate has a name that begins with a blank, so a deleted one gives up its name.
    name = f" {aggregate.id}" if aggregate.deleted_us else aggregate.name
    try:
        with connection.begin_nested():
            connection.execute(_SAVE, {"id": aggregate.id, "name": name, "body": _encode(aggregate)})
    except sa.exc.IntegrityError as taken:
        raise Transient(f"another worker has just created an aggregate {aggregate.name!r}") from taken


def forget_aggregate(connection: Connection, aggregate: AggregateId) -> None:
    connection.execute(sa.delete(table).where(table.c.id == aggregate))
