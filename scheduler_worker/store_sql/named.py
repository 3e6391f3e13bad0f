"""Rows that have a name: flavors, images and device profiles that requests may name, server groups, applications, hosts,
aggregates and cells.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import Connection, Row, Table

from bus.messages.catalog import NamedImage
from bus.messages.cloud import InstanceCount
from bus.messages.projects import KnownApplication
from engine.flavors import DeviceProfile, Flavor
from engine.hosts import Aggregate, HostState
from engine.inventories import AggregateId, GroupId, ProviderId, ServerGroup, rules_as_text, rules_in
from kit.errors import Transient
from kit.sql import RowColumns, Transaction, among, begins_with, insert
from kit.sql.statements import Id, Moment
from scheduler_worker import tables
from scheduler_worker.core.aggregates import KeptAggregate
from scheduler_worker.core.hosts import HostLoad, with_load
from scheduler_worker.core.instances.rows import DELETED
from scheduler_worker.store_sql.values import (
    GroupQuery,
    HostQuery,
    HostVersion,
    KnownCell,
    KnownGroup,
    Named,
    NameQuery,
    WorkCounts,
)
from scheduler_worker.store_sql.waiting import count_open_moves
from scheduler_worker.tables import device_profiles, flavors, groups, images, instances, waiting

_TABLES: Mapping[type[Any], Table] = {Flavor: flavors, NamedImage: images, DeviceProfile: device_profiles}
_encode = msgspec.json.Encoder(order="deterministic").encode


def create_named(connection: Connection, named: Named) -> Named:
    kind = type(named)
    table, body = _table_of(kind)
    row = {"name": named.name, body.name: _encode(named)}
    connection.execute(insert(connection, table).values(row).on_conflict_do_nothing())
    stored = _one(connection, kind, sa.select(body).where(table.c.name == named.name))
    if stored is None:
        raise Transient(f"{named.name!r} was deleted at this moment: the order is tried again")
    return stored


def lock_named(connection: Connection, kind: type[Named], name: str) -> Named | None:
    table, body = _table_of(kind)
    return _one(connection, kind, sa.select(body).where(table.c.name == name).with_for_update())


def save_named(connection: Connection, named: Named) -> None:
    table, body = _table_of(type(named))
    changed = sa.update(table).where(table.c.name == named.name)
    connection.execute(changed.values({body.name: _encode(named)}))


def delete_named(connection: Connection, kind: type[Named], name: str) -> Named | None:
    table, body = _table_of(kind)
    return _one(connection, kind, sa.delete(table).where(table.c.name == name).returning(body))


def find_named(connection: Connection, kind: type[Named], query: NameQuery) -> Sequence[Named]:
    table, body = _table_of(kind)
    # All stores sort by bytes.
    bytewise = sa.collate(table.c.name, "C" if connection.dialect.name == "postgresql" else "BINARY")
    found = sa.select(body)
    if query.names is not None:
        found = found.where(among(connection, table.c.name, query.names))
    if query.after:
        found = found.where(bytewise > query.after)
    rows = connection.execute(found.order_by(bytewise).limit(query.limit))
    return [msgspec.json.decode(each, type=kind) for (each,) in rows]


def _table_of(kind: type[Named]) -> tuple[Table, sa.Column[bytes]]:
    table = _TABLES[kind]
    _, body = table.columns
    return table, body


def _one(connection: Connection, kind: type[Named], statement: sa.Executable) -> Named | None:
    body = connection.execute(statement).scalar_one_or_none()
    return None if body is None else msgspec.json.decode(body, type=kind)


# Rows of server groups.


_CREATE = sa.text(
    "INSERT INTO known_groups (id, project, name, policy, max_per_host, rules) "
    "VALUES (:id, :project, :name, :policy, :max_per_host, :rules) ON CONFLICT (id) DO NOTHING"
).bindparams(sa.bindparam("id", type_=groups.c.id.type))


def create_group(connection: Connection, group: KnownGroup) -> KnownGroup | None:
    definition = group.definition
    connection.execute(
        _CREATE,
        {
            "id": definition.id,
            "project": group.project,
            "name": group.name,
            "policy": definition.policy,
            "max_per_host": definition.max_per_host,
            "rules": rules_as_text(definition.rules),
        },
    )
    row = connection.execute(sa.select(groups).where(groups.c.id == definition.id)).one()
    return None if row.deleted_at is not None else _group(row)


def count_groups(connection: Connection, project: str, new: GroupId, limit: int) -> int:
    if connection.scalar(sa.select(groups.c.id).where(groups.c.id == new)) is not None:
        return 0
    some = sa.select(groups.c.id).where(groups.c.project == project).limit(limit)
    return int(connection.scalar(sa.select(sa.func.count()).select_from(some.subquery())) or 0)


def delete_group(connection: Connection, group: GroupId, project: str, at: datetime) -> KnownGroup | None:
    deleted = (
        sa.update(groups).where(groups.c.id == group, groups.c.deleted_at.is_(None)).values(deleted_at=at)
    )
    if project:
        deleted = deleted.where(groups.c.project == project)
    row = connection.execute(deleted.returning(*groups.c)).first()
    return None if row is None else _group(row)


def find_groups(connection: Connection, query: GroupQuery) -> Sequence[KnownGroup]:
    found = sa.select(groups).where(groups.c.deleted_at.is_(None)).order_by(groups.c.id).limit(query.limit)
    if query.ids is not None:
        found = found.where(among(connection, groups.c.id, query.ids))
    if query.after is not None:
        found = found.where(groups.c.id > query.after)
    if query.project:
        found = found.where(groups.c.project == query.project)
    if query.name:
        found = found.where(groups.c.name == query.name)
    if query.id_prefix:
        found = found.where(begins_with(groups.c.id, query.id_prefix))
    return [_group(row) for row in connection.execute(found)]


def prune_groups(connection: Connection, before: datetime) -> None:
    connection.execute(sa.delete(groups).where(groups.c.deleted_at < before))


def _group(row: Row[Any]) -> KnownGroup:
    return KnownGroup(
        definition=ServerGroup(
            id=GroupId(row.id),
            policy=row.policy,
            max_per_host=row.max_per_host,
            rules=rules_in(row.rules),
        ),
        name=row.name,
        project=row.project,
    )


# Rows of applications: few, read and written whole.


_SAVE = sa.text(
    "INSERT INTO known_applications (name, body) VALUES (:name, :body) "
    "ON CONFLICT (name) DO UPDATE SET body = excluded.body"
)

_LATEST = sa.text(
    "INSERT INTO application_orders (name, sent_at) VALUES (:name, :sent_at) "
    "ON CONFLICT (name) DO UPDATE SET sent_at = excluded.sent_at "
    "WHERE application_orders.sent_at <= excluded.sent_at RETURNING name"
).bindparams(sa.bindparam("sent_at", type_=Moment()))

_encode_applications = msgspec.json.Encoder().encode
_application = msgspec.json.Decoder(KnownApplication).decode


def set_application(
    connection: Connection, name: str, sent_at: datetime, application: KnownApplication | None
) -> KnownApplication | None:
    if connection.execute(_LATEST, {"name": name, "sent_at": sent_at}).first() is not None:
        if application is None:
            connection.execute(sa.delete(tables.applications).where(tables.applications.c.name == name))
        else:
            connection.execute(_SAVE, {"name": name, "body": _encode_applications(application)})
    body = connection.scalar(sa.select(tables.applications.c.body).where(tables.applications.c.name == name))
    return None if body is None else _application(body)


def find_applications(connection: Connection) -> list[KnownApplication]:
    found = [_application(body) for body in connection.scalars(sa.select(tables.applications.c.body))]
    # Sorted here: a database's order of texts depends on its locale.
    return sorted(found, key=lambda each: each.name)


# Rows of hosts, one for each, read and written whole; and beside a row the host's load by its last report.
#
# A load is so many numbers, the greatest first: so a later load is greater, byte by byte, in both databases.


_SAVE_HOSTS = RowColumns(
    tables.hosts, "id", "name", "cell", "changed_at", "body", "sequence", free_texts=("name", "cell")
).insert(
    "ON CONFLICT (id) DO UPDATE SET name = excluded.name, cell = excluded.cell, changed_at = excluded.changed_at,"
    " body = excluded.body, sequence = excluded.sequence, load = NULL"
)
_SAVE_HOST_LOADS = RowColumns(tables.hosts, "id", "sequence", "load").update(
    "kept.sequence = new.sequence AND coalesce(kept.load, '') <= new.load"
)
_HOST_COLUMNS = (tables.hosts.c.body, tables.hosts.c.load)
# The epoch and the sequence of the report; the instances, the builds under way, the failed builds.
_LOAD = struct.Struct(">QQQQQ")

_encode_host = msgspec.json.Encoder().encode
_host = msgspec.json.Decoder(HostState).decode


def lock_hosts(connection: Connection, ids: Sequence[ProviderId], names: Sequence[str]) -> list[HostState]:
    query = sa.select(*_HOST_COLUMNS).where(
        sa.or_(
            among(connection, tables.hosts.c.id, list(ids)),
            among(connection, tables.hosts.c.name, list(names)),
        )
    )
    return _hosts(connection.execute(query.order_by(tables.hosts.c.id).with_for_update()))


def _hosts(rows: Iterable[Any]) -> list[HostState]:
    return [_host(body) if load is None else _with_load(_host(body), load) for body, load in rows]


def _with_load(host: HostState, load: bytes) -> HostState:
    return with_load(host, HostLoad(host.id, host.sequence, *_LOAD.unpack(load)))


async def save_hosts(transaction: Transaction, changed: Sequence[HostState], at: datetime) -> None:
    hosts = sorted(changed, key=lambda host: host.id.int)
    rows = [(host.id, host.name, host.cell, at, _encode_host(host), host.sequence) for host in hosts]
    await _SAVE_HOSTS.change(transaction, rows)


async def save_loads(transaction: Transaction, loads: Sequence[HostLoad]) -> int:
    rows = [
        (each.host, each.row, _LOAD.pack(*each[2:])) for each in sorted(loads, key=lambda load: load.host.int)
    ]
    return await _SAVE_HOST_LOADS.change(transaction, rows)


def find_versions(connection: Connection, changed_since: datetime) -> list[tuple[ProviderId, HostVersion]]:
    query = sa.select(tables.hosts.c.id, tables.hosts.c.changed_at, tables.hosts.c.sequence)
    found = connection.execute(query.where(tables.hosts.c.changed_at >= changed_since))
    return [(ProviderId(id_), (changed_at, sequence)) for id_, changed_at, sequence in found]


def find_loads(connection: Connection) -> list[HostLoad]:
    query = sa.select(tables.hosts.c.id, tables.hosts.c.sequence, tables.hosts.c.load).where(
        tables.hosts.c.load.is_not(None)
    )
    return [
        HostLoad(ProviderId(id_), row, *_LOAD.unpack(load)) for id_, row, load in connection.execute(query)
    ]


def forget_hosts(connection: Connection, ids: Sequence[ProviderId]) -> None:
    connection.execute(sa.delete(tables.hosts).where(among(connection, tables.hosts.c.id, list(ids))))


def find_hosts(connection: Connection, wanted: HostQuery) -> list[HostState]:
    query = sa.select(*_HOST_COLUMNS).where(tables.hosts.c.name > wanted.after)
    if wanted.ids is not None:
        query = query.where(among(connection, tables.hosts.c.id, wanted.ids))
    if wanted.name is not None:
        query = query.where(tables.hosts.c.name == wanted.name)
    return _hosts(
        connection.execute(query.order_by(tables.hosts.c.name, tables.hosts.c.id).limit(wanted.limit))
    )


# Rows of aggregates: few, read and written whole.


_AGGREGATES_SAVE = sa.text(
    "INSERT INTO aggregates_metadata (id, name, body) VALUES (:id, :name, :body) "
    "ON CONFLICT (id) DO UPDATE SET name = excluded.name, body = excluded.body"
).bindparams(sa.bindparam("id", type_=Id))

_encode_aggregates = msgspec.json.Encoder().encode
_aggregate = msgspec.json.Decoder(KeptAggregate).decode
# Two arbitrary numbers: "moor", and the purpose. Placement's log has another purpose.
_ORDER = sa.text("SELECT pg_advisory_xact_lock(1836019570, 2)")


def lock_orders(connection: Connection) -> None:
    """Lock orders about aggregates (PostgreSQL): until the transaction ends, no other worker follows one."""
    connection.execute(_ORDER)


def lock_aggregates(connection: Connection) -> list[KeptAggregate]:
    return _in_order(
        connection.scalars(
            sa.select(tables.aggregates.c.body).order_by(tables.aggregates.c.id).with_for_update()
        )
    )


def find_aggregates(connection: Connection) -> list[Aggregate]:
    found = _in_order(connection.scalars(sa.select(tables.aggregates.c.body)))
    return [each.told for each in found if not each.deleted_us]


def _in_order(bodies: "sa.ScalarResult[bytes]") -> list[KeptAggregate]:
    # Sorted here: a database's order of texts depends on its locale.
    return sorted(map(_aggregate, bodies), key=lambda each: each.name)


def save_aggregate(connection: Connection, aggregate: KeptAggregate) -> None:
    # No aggregate has a name that begins with a blank, so a deleted one gives up its name.
    name = f" {aggregate.id}" if aggregate.deleted_us else aggregate.name
    try:
        with connection.begin_nested():
            connection.execute(
                _AGGREGATES_SAVE, {"id": aggregate.id, "name": name, "body": _encode_aggregates(aggregate)}
            )
    except sa.exc.IntegrityError as taken:
        raise Transient(f"another worker has just created an aggregate {aggregate.name!r}") from taken


def forget_aggregate(connection: Connection, aggregate: AggregateId) -> None:
    connection.execute(sa.delete(tables.aggregates).where(tables.aggregates.c.id == aggregate))


# Rows of cells, and counts of what is in them.


_CELLS_SAVE = sa.text(
    "INSERT INTO known_cells (name, heard_at) VALUES (:name, :heard_at) "
    "ON CONFLICT (name) DO UPDATE SET heard_at = excluded.heard_at "
    "WHERE known_cells.heard_at < excluded.heard_at"
).bindparams(sa.bindparam("heard_at", type_=Moment()))


def save_cells(connection: Connection, cells: Sequence[KnownCell]) -> None:
    """Write these cells in the order of their names, as every worker locks them."""
    ordered = sorted(cells, key=lambda each: each.name)
    connection.execute(_CELLS_SAVE, [{"name": each.name, "heard_at": each.heard_at} for each in ordered])


def find_cells(connection: Connection) -> list[KnownCell]:
    found = [
        KnownCell(*row) for row in connection.execute(sa.select(tables.cells.c.name, tables.cells.c.heard_at))
    ]
    # Sorted here: a database's order of texts depends on its locale.
    return sorted(found, key=lambda each: each.name)


def count_instances(connection: Connection) -> list[InstanceCount]:
    # It reads all rows. An index by state would cost each boot more than this costs: a row whose indexed columns stay as
    # they are is written without its indexes when it becomes active (scheduler_worker/tables.py).
    query = sa.select(instances.c.state, instances.c.cell, sa.func.count())
    query = query.where(instances.c.state != DELETED).group_by(instances.c.state, instances.c.cell)
    found = [
        InstanceCount(state=state, cell=cell, count=count) for state, cell, count in connection.execute(query)
    ]
    return sorted(found, key=lambda each: (each.state, each.cell))


def count_work(connection: Connection) -> WorkCounts:
    count, oldest = connection.execute(sa.select(sa.func.count(), sa.func.min(waiting.c.since))).one()
    return WorkCounts(count, oldest, count_open_moves(connection))
