"""The scheduler's rows in SQL: reads are written once for PostgreSQL and SQLite, the few hot writes for each of them.

On tables that stand: `bus.sql.upgrade(url, "scheduler_worker")` makes them. A batch is a constant number of statements:
on PostgreSQL each takes the batch as arrays, a column an array; on SQLite a piece of work is one hop to its thread.
"""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import sqlalchemy as sa
from msgspec import structs
from sqlalchemy import Connection

from bus.errors import Transient
from bus.handling import Kept
from bus.message import ProviderId
from bus.messages.build import InstanceId, RequestId
from bus.messages.hosts import HostState
from bus.sql import POOL_SIZE, SqliteTransaction, Transaction, among, columns_of, driver_of, open_database
from scheduler_worker.instances import DELETED, NO_REQUEST, InstanceRow, adopted
from scheduler_worker.store import (
    Acceptance,
    InstanceQuery,
    InstancesTaken,
    Known,
    NewRequest,
    OtherContent,
    SchedulerTransaction,
)
from scheduler_worker.tables import hosts, instances, moment_text, requests

_encode = msgspec.json.Encoder().encode
# Half as long as JSON: what does not fit into a quarter of PostgreSQL's page is squeezed, which costs more than the write.
_encode_row = msgspec.msgpack.Encoder(uuid_format="bytes").encode
_row = msgspec.msgpack.Decoder(InstanceRow).decode
_host = msgspec.json.Decoder(HostState).decode
_ids = msgspec.json.Decoder(tuple[InstanceId, ...]).decode

Values = tuple[Any, ...]


class Write(NamedTuple):
    """The same for each of the two: for rows as columns of which the first few are `plain` (bus/sql/statements.py), and
    for rows one after the other.
    """

    plain: int
    postgres: str
    sqlite: str


_ADD_REQUESTS = Write(
    1,
    """
    INSERT INTO build_requests (id, digest, instances)
    SELECT * FROM unnest($1::text::uuid[], $2::bytea[], $3::bytea[])
    ON CONFLICT DO NOTHING RETURNING id
    """,
    "INSERT INTO build_requests (id, digest, instances) VALUES (?, ?, ?) ON CONFLICT DO NOTHING RETURNING id",
)
_ADD_INSTANCES = Write(
    6,
    """
    INSERT INTO requested_instances (id, request_id, state, changed_at, due_at, unsaid, body)
    SELECT * FROM unnest($1::text::uuid[], $2::text::uuid[], $3::text::text[], $4::text::timestamptz[], $5::text::timestamptz[], $6::text::bigint[],
                         $7::bytea[])
    ON CONFLICT DO NOTHING
    """,
    """
    INSERT INTO requested_instances (id, request_id, state, changed_at, due_at, unsaid, body)
    VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO NOTHING
    """,
)
_ADD_UNSEEN = Write(6, f"{_ADD_INSTANCES.postgres} RETURNING id", f"{_ADD_INSTANCES.sqlite} RETURNING id")
_KEEP = """
    ON CONFLICT (id) DO UPDATE SET request_id = excluded.request_id, state = excluded.state,
        changed_at = excluded.changed_at, due_at = excluded.due_at, unsaid = excluded.unsaid, body = excluded.body
"""
_SAVE_INSTANCES = Write(
    6,
    _ADD_INSTANCES.postgres.replace("ON CONFLICT DO NOTHING", _KEEP),
    _ADD_INSTANCES.sqlite.replace("ON CONFLICT DO NOTHING", _KEEP),
)
_REPLACE_INSTANCES = Write(
    6,
    """
    UPDATE requested_instances
    SET request_id = new.request_id, state = new.state, changed_at = new.changed_at, due_at = new.due_at,
        unsaid = new.unsaid, body = new.body
    FROM unnest($1::text::uuid[], $2::text::uuid[], $3::text::text[], $4::text::timestamptz[], $5::text::timestamptz[], $6::text::bigint[], $7::bytea[])
         AS new (id, request_id, state, changed_at, due_at, unsaid, body)
    WHERE requested_instances.id = new.id
    """,
    """
    UPDATE requested_instances
    SET request_id = ?2, state = ?3, changed_at = ?4, due_at = ?5, unsaid = ?6, body = ?7
    WHERE id = ?1
    """,
)
_CONFIRM = Write(
    2,
    """
    UPDATE requested_instances SET unsaid = NULL
    FROM unnest($1::text::uuid[], $2::text::bigint[]) AS said (id, sequence)
    WHERE requested_instances.id = said.id AND requested_instances.unsaid <= said.sequence
    """,
    "UPDATE requested_instances SET unsaid = NULL WHERE id = ? AND unsaid <= ?",
)
_SAVE_HOSTS = Write(
    1,
    """
    INSERT INTO known_hosts (id, name, cell, enabled, changed_at, body)
    SELECT * FROM unnest($1::text::uuid[], $2::text[], $3::text[], $4::boolean[], $5::timestamptz[], $6::bytea[])
    ON CONFLICT (id) DO UPDATE SET name = excluded.name, cell = excluded.cell, enabled = excluded.enabled,
        changed_at = excluded.changed_at, body = excluded.body
    """,
    """
    INSERT INTO known_hosts (id, name, cell, enabled, changed_at, body) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET name = excluded.name, cell = excluded.cell, enabled = excluded.enabled,
        changed_at = excluded.changed_at, body = excluded.body
    """,
)


class SqlSchedulerTransaction:
    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        # These are there: to replace a row costs less than to find out by inserting it.
        self._locked: set[InstanceId] = set()
        # These were not, and nothing can lock what is not there.
        self._missing: set[InstanceId] = set()

    async def accept(self, new: Sequence[NewRequest]) -> Sequence[Acceptance]:
        return await self._transaction.run(_accept, new)

    async def lock(self, named: Sequence[InstanceId]) -> Mapping[InstanceId, InstanceRow]:
        if not named:
            return {}
        found = await self._transaction.run(_lock, named)
        self._locked |= found.keys()
        self._missing |= set(named) - found.keys()
        return found

    async def save(self, rows: Sequence[InstanceRow]) -> None:
        if rows:
            await self._do_last(partial(_save, rows=rows, locked=self._locked, missing=self._missing))

    async def lock_hosts(self, ids: Sequence[ProviderId], names: Sequence[str]) -> Sequence[HostState]:
        return await self._transaction.run(_lock_hosts, ids, names)

    async def save_hosts(self, changed: Sequence[HostState], at: datetime) -> None:
        if changed:
            await self._do_last(partial(_save_hosts, changed=changed, at=at))

    async def confirm(self, said: Sequence[Kept]) -> None:
        if said:
            await self._do_last(partial(_confirm, said=said))

    async def _do_last(self, work: Callable[[Connection], None]) -> None:
        """On SQLite with what comes next, if only the commit: it costs no hop to its thread."""
        if isinstance(self._transaction, SqliteTransaction):
            self._transaction.later(work)
        else:
            await self._transaction.run(work)


class SqlSchedulerStore:
    def __init__(self, url: str, *, pool_size: int = POOL_SIZE) -> None:
        self._database = open_database(url, pool_size=pool_size)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[SchedulerTransaction]:
        async with self._database.writing() as transaction:
            yield SqlSchedulerTransaction(transaction)

    async def instances(self, query: InstanceQuery) -> Sequence[InstanceRow]:
        async with self._database.reading() as transaction:
            return await transaction.run(_instances, query)

    async def overdue(self, now: datetime, limit: int) -> Sequence[InstanceId]:
        async with self._database.reading() as transaction:
            return await transaction.run(_overdue, now, limit)

    async def unsaid(self, before: datetime, after: InstanceId | None, limit: int) -> Sequence[InstanceRow]:
        async with self._database.reading() as transaction:
            return await transaction.run(_unsaid, before, after, limit)

    async def hosts(self, name: str, after: str, limit: int) -> Sequence[HostState]:
        async with self._database.reading() as transaction:
            return await transaction.run(_hosts, name, after, limit)

    async def hosts_changed(self, since: datetime) -> Sequence[HostState]:
        async with self._database.reading() as transaction:
            return await transaction.run(_hosts_changed, since)

    async def hosts_of(self, ids: Sequence[ProviderId]) -> Sequence[HostState]:
        async with self._database.reading() as transaction:
            return await transaction.run(_hosts_of, ids)

    async def prune(self, ended_before: datetime, limit: int) -> int:
        async with self._database.writing() as transaction:
            return await transaction.run(_prune, ended_before, limit)

    async def close(self) -> None:
        await self._database.close()


# Requests


def _accept(connection: Connection, new: Sequence[NewRequest]) -> list[Acceptance]:
    """Two workers that accept the same request meet at its row, and two requests that name the same instance at that:
    both kinds are inserted in the order of their ids, so that nobody waits for who waits for him.
    """
    by_id = {request.id: request for request in sorted(new, key=lambda request: request.id.int)}
    ours = _insert_requests(connection, by_id.values())
    standing = {
        id_: (digest, _ids(body))
        for id_, digest, body in connection.execute(
            sa.select(requests.c.id, requests.c.digest, requests.c.instances).where(
                among(connection, requests.c.id, list(by_id))
            )
        )
    }
    if len(standing) < len(by_id):
        raise Transient("a request was forgotten in the moment it came again")
    same = {id_ for id_, request in by_id.items() if standing[id_][0] == request.digest}
    _insert_rows(connection, [row for id_ in ours for row in by_id[id_].rows])
    named = [instance for id_ in same for instance in standing[id_][1]]
    rows = _lock(connection, named)
    if len(rows) < len(set(named)):
        raise Transient("a request was forgotten in the moment it came again")
    acceptances = {id_: _acceptance(request, rows, is_same=id_ in same) for id_, request in by_id.items()}
    _withdraw(connection, [id_ for id_ in ours if isinstance(acceptances[id_], InstancesTaken)])
    _save(
        connection,
        [
            row
            for each in acceptances.values()
            if isinstance(each, Known)
            for row in each.rows
            if rows[row.id] is not row
        ],
        rows,
    )
    return [acceptances[request.id] for request in new]


def _acceptance(request: NewRequest, rows: Mapping[InstanceId, InstanceRow], *, is_same: bool) -> Acceptance:
    if not is_same:
        return OtherContent()
    mine = [(row, rows[row.id]) for row in request.rows]
    if taken := tuple(there.id for _, there in mine if there.told.request_id not in (request.id, NO_REQUEST)):
        return InstancesTaken(taken)
    return Known(
        tuple(adopted(there, row) if there.told.request_id == NO_REQUEST else there for row, there in mine)
    )


def _insert_requests(connection: Connection, new: Iterable[NewRequest]) -> list[RequestId]:
    """Those that were not there yet."""
    values = [(request.id, request.digest, _encode([row.id for row in request.rows])) for request in new]
    return sorted(
        map(RequestId, _write_returning(connection, _ADD_REQUESTS, values)), key=lambda id_: id_.int
    )


def _insert_rows(connection: Connection, rows: Sequence[InstanceRow]) -> None:
    _write(connection, _ADD_INSTANCES, [_values(row) for row in sorted(rows, key=lambda row: row.id.int)])


def _withdraw(connection: Connection, refused: Sequence[RequestId]) -> None:
    if refused:
        connection.execute(sa.delete(instances).where(among(connection, instances.c.request_id, refused)))
        connection.execute(sa.delete(requests).where(among(connection, requests.c.id, refused)))


# Instances

_COLUMNS = (instances.c.body, instances.c.unsaid)


def _values(row: InstanceRow) -> Values:
    told = row.told
    return (
        row.id,
        told.request_id,
        told.state,
        told.changed_at or row.issued_at,
        row.ends_by if row.is_open else None,
        told.sequence if row.unsaid else None,
        _encode_row(row),
    )


def _read(connection: Connection, query: sa.Select[tuple[bytes, int | None]]) -> list[InstanceRow]:
    return [_row_of(found.body, found.unsaid) for found in connection.execute(query)]


def _row_of(body: bytes, unsaid: int | None) -> InstanceRow:
    row = _row(body)
    # What was confirmed is only written into its column.
    return row if row.unsaid == (unsaid is not None) else structs.replace(row, unsaid=unsaid is not None)


def _lock(connection: Connection, named: Collection[InstanceId]) -> dict[InstanceId, InstanceRow]:
    query = sa.select(*_COLUMNS).where(among(connection, instances.c.id, list(named)))
    return {row.id: row for row in _read(connection, query.order_by(instances.c.id).with_for_update())}


def _save(
    connection: Connection,
    rows: Sequence[InstanceRow],
    locked: Collection[InstanceId],
    missing: Collection[InstanceId] = (),
) -> None:
    _write(connection, _REPLACE_INSTANCES, [_values(row) for row in rows if row.id in locked])
    new = sorted((row for row in rows if row.id not in locked), key=lambda row: row.id.int)
    unseen = [_values(row) for row in new if row.id in missing]
    if len(_write_returning(connection, _ADD_UNSEEN, unseen)) < len(unseen):
        # A delete that found no row would overwrite the request that another worker accepted in that moment.
        raise Transient("an instance that was found missing has a row by now")
    _write(connection, _SAVE_INSTANCES, [_values(row) for row in new if row.id not in missing])


def _confirm(connection: Connection, said: Sequence[Kept]) -> None:
    # Each once, by the last that it said: of two rows that match one, PostgreSQL takes either.
    confirmed: dict[str, int] = {}
    for kept in said:
        confirmed[kept.entity] = max(kept.sequence, confirmed.get(kept.entity, 0))
    _write(connection, _CONFIRM, [(UUID(entity), sequence) for entity, sequence in sorted(confirmed.items())])


def _instances(connection: Connection, query: InstanceQuery) -> list[InstanceRow]:
    rows = sa.select(*_COLUMNS).where(instances.c.request_id != NO_REQUEST)
    if query.instances:
        rows = rows.where(among(connection, instances.c.id, query.instances))
    if query.request_id is not None:
        rows = rows.where(instances.c.request_id == query.request_id)
    if query.after is not None:
        rows = rows.where(instances.c.id > query.after)
    if query.state:
        rows = rows.where(instances.c.state == query.state)
    return _read(connection, rows.order_by(instances.c.id).limit(query.limit))


def _overdue(connection: Connection, now: datetime, limit: int) -> list[InstanceId]:
    late = sa.select(instances.c.id).where(instances.c.due_at <= now).order_by(instances.c.due_at)
    return [InstanceId(id_) for id_ in connection.scalars(late.limit(limit))]


def _unsaid(
    connection: Connection, before: datetime, after: InstanceId | None, limit: int
) -> list[InstanceRow]:
    query = sa.select(*_COLUMNS).where(instances.c.unsaid.is_not(None), instances.c.changed_at < before)
    if after is not None:
        query = query.where(instances.c.id > after)
    return _read(connection, query.order_by(instances.c.id).limit(limit))


def _prune(connection: Connection, before: datetime, limit: int) -> int:
    over = (instances.c.state == DELETED, instances.c.changed_at < before, instances.c.unsaid.is_(None))
    others = instances.alias("others")
    is_wanted = sa.or_(others.c.state != DELETED, others.c.changed_at >= before, others.c.unsaid.is_not(None))
    ended = (
        sa.select(instances.c.request_id)
        .distinct()
        .where(*over, instances.c.request_id != NO_REQUEST)
        .where(~sa.exists().where(others.c.request_id == instances.c.request_id, is_wanted))
        .limit(limit)
    )
    found = sorted(connection.scalars(ended), key=lambda id_: id_.int)
    if found:
        connection.execute(sa.delete(instances).where(among(connection, instances.c.request_id, found)))
        connection.execute(sa.delete(requests).where(among(connection, requests.c.id, found)))
    unseen = sa.select(instances.c.id).where(*over, instances.c.request_id == NO_REQUEST).limit(limit)
    # Its request may have come in this moment: then the row is another by now, and stays.
    forgotten = sa.delete(instances).where(
        instances.c.id.in_(unseen), *over, instances.c.request_id == NO_REQUEST
    )
    return len(found) + connection.execute(forgotten).rowcount


# Hosts


def _lock_hosts(connection: Connection, ids: Sequence[ProviderId], names: Sequence[str]) -> list[HostState]:
    query = sa.select(hosts.c.body).where(
        sa.or_(among(connection, hosts.c.id, list(ids)), among(connection, hosts.c.name, list(names)))
    )
    return [_host(body) for body in connection.scalars(query.order_by(hosts.c.id).with_for_update())]


def _save_hosts(connection: Connection, changed: Sequence[HostState], at: datetime) -> None:
    values = [
        (host.id, host.name, host.cell, host.enabled, at, _encode(host))
        for host in sorted(changed, key=lambda host: host.id.int)
    ]
    _write(connection, _SAVE_HOSTS, values)


def _hosts(connection: Connection, name: str, after: str, limit: int) -> list[HostState]:
    query = sa.select(hosts.c.body).where(hosts.c.name == name if name else hosts.c.name > after)
    return [_host(body) for body in connection.scalars(query.order_by(hosts.c.name, hosts.c.id).limit(limit))]


def _hosts_of(connection: Connection, ids: Sequence[ProviderId]) -> list[HostState]:
    query = sa.select(hosts.c.body).where(among(connection, hosts.c.id, list(ids)))
    return [_host(body) for body in connection.scalars(query)]


def _hosts_changed(connection: Connection, since: datetime) -> list[HostState]:
    return [
        _host(body) for body in connection.scalars(sa.select(hosts.c.body).where(hosts.c.changed_at >= since))
    ]


# Writing many rows at once


def _write(connection: Connection, write: Write, rows: Sequence[Values]) -> None:
    if not rows:
        return
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(write.postgres, columns_of(rows, write.plain))
    else:
        driver_of(connection).executemany(write.sqlite, [_plain(row) for row in rows])


def _write_returning(connection: Connection, write: Write, rows: Sequence[Values]) -> list[UUID]:
    """The ids that it returns; SQLite returns something for one row at a time only."""
    if not rows:
        return []
    if connection.dialect.name == "postgresql":
        return list(connection.exec_driver_sql(write.postgres, columns_of(rows, write.plain)).scalars())
    driver = driver_of(connection)
    found = [driver.execute(write.sqlite, _plain(row)).fetchone() for row in rows]
    return [UUID(each[0]) for each in found if each is not None]


def _plain(row: Values) -> Values:
    """As SQLAlchemy writes and reads it in SQLite: an id is text, and so is a point in time."""
    return tuple([_plain_value(value) for value in row])


def _plain_value(value: Any) -> Any:
    match value:
        case UUID():
            return value.hex
        case datetime():
            return moment_text(value)
        case _:
            return value
