"""The scheduler's rows in SQL, each statement written once for PostgreSQL and SQLite.

On tables that stand: `bus.sql.upgrade(url, "scheduler_worker")` makes them. A batch is a constant number of statements.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from msgspec import structs
from sqlalchemy import Connection

from bus.handling import Kept
from bus.message import ProviderId
from bus.messages.build import InstanceId, RequestId
from bus.messages.hosts import HostState
from bus.sql import POOL_SIZE, Transaction, among, insert, open_database
from scheduler_worker.instances import NO_REQUEST, InstanceRow, adopted
from scheduler_worker.store import (
    Acceptance,
    InstanceQuery,
    InstancesTaken,
    Known,
    NewRequest,
    OtherContent,
    SchedulerTransaction,
)
from scheduler_worker.tables import hosts, instances, requests

_encode = msgspec.json.Encoder().encode
_row = msgspec.json.Decoder(InstanceRow).decode
_host = msgspec.json.Decoder(HostState).decode
_ids = msgspec.json.Decoder(tuple[InstanceId, ...]).decode


class SqlSchedulerTransaction:
    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def accept(self, new: Sequence[NewRequest]) -> Sequence[Acceptance]:
        return await self._transaction.run(_accept, new)

    async def lock(self, named: Sequence[InstanceId]) -> Mapping[InstanceId, InstanceRow]:
        return await self._transaction.run(_lock, named) if named else {}

    async def save(self, rows: Sequence[InstanceRow]) -> None:
        if rows:
            await self._transaction.run(_save, rows)

    async def lock_hosts(self, ids: Sequence[ProviderId], names: Sequence[str]) -> Sequence[HostState]:
        return await self._transaction.run(_lock_hosts, ids, names)

    async def save_hosts(self, changed: Sequence[HostState], at: datetime) -> None:
        if changed:
            await self._transaction.run(_save_hosts, changed, at)

    async def confirm(self, said: Sequence[Kept]) -> None:
        if said:
            await self._transaction.run(_confirm, said)


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

    async def unsaid(self, before: datetime) -> Sequence[InstanceRow]:
        async with self._database.reading() as transaction:
            return await transaction.run(_unsaid, before)

    async def hosts(self, name: str, after: str, limit: int) -> Sequence[HostState]:
        async with self._database.reading() as transaction:
            return await transaction.run(_hosts, name, after, limit)

    async def hosts_changed(self, since: datetime) -> Sequence[HostState]:
        async with self._database.reading() as transaction:
            return await transaction.run(_hosts_changed, since)

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
    same = {id_ for id_, request in by_id.items() if standing[id_][0] == request.digest}
    _insert_rows(connection, [row for id_ in ours for row in by_id[id_].rows])
    rows = _lock(connection, [instance for id_ in same for instance in standing[id_][1]])
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
    values = [
        {"id": request.id, "digest": request.digest, "instances": _encode([row.id for row in request.rows])}
        for request in new
    ]
    statement = insert(connection, requests).on_conflict_do_nothing().returning(requests.c.id)
    return sorted(connection.scalars(statement, values), key=lambda id_: id_.int) if values else []


def _insert_rows(connection: Connection, rows: Sequence[InstanceRow]) -> None:
    if rows:
        values = [_values(row) for row in sorted(rows, key=lambda row: row.id.int)]
        connection.execute(insert(connection, instances).on_conflict_do_nothing(), values)


def _withdraw(connection: Connection, refused: Sequence[RequestId]) -> None:
    if refused:
        connection.execute(sa.delete(instances).where(among(connection, instances.c.request_id, refused)))
        connection.execute(sa.delete(requests).where(among(connection, requests.c.id, refused)))


# Instances

_COLUMNS = (instances.c.body, instances.c.unsaid)


def _values(row: InstanceRow) -> dict[str, Any]:
    told = row.told
    return {
        "id": row.id,
        "request_id": told.request_id,
        "state": told.state,
        "changed_at": told.changed_at or row.issued_at,
        "due_at": row.ends_by if row.is_open else None,
        "unsaid": told.sequence if row.unsaid else None,
        "body": _encode(row),
    }


def _read(connection: Connection, query: sa.Select[tuple[bytes, int | None]]) -> list[InstanceRow]:
    return [_row_of(found.body, found.unsaid) for found in connection.execute(query)]


def _row_of(body: bytes, unsaid: int | None) -> InstanceRow:
    row = _row(body)
    # What was confirmed is only written into its column.
    return row if row.unsaid == (unsaid is not None) else structs.replace(row, unsaid=unsaid is not None)


def _lock(connection: Connection, named: Collection[InstanceId]) -> dict[InstanceId, InstanceRow]:
    query = sa.select(*_COLUMNS).where(among(connection, instances.c.id, list(named)))
    return {row.id: row for row in _read(connection, query.order_by(instances.c.id).with_for_update())}


def _save(connection: Connection, rows: Sequence[InstanceRow]) -> None:
    if not rows:
        return
    statement = insert(connection, instances)
    written = {
        name: statement.excluded[name]
        for name in ("request_id", "state", "changed_at", "due_at", "unsaid", "body")
    }
    values = [_values(row) for row in sorted(rows, key=lambda row: row.id.int)]
    connection.execute(statement.on_conflict_do_update(index_elements=[instances.c.id], set_=written), values)


def _confirm(connection: Connection, said: Sequence[Kept]) -> None:
    confirmed = sorted({(kept.entity, kept.sequence) for kept in said})
    connection.execute(
        sa.update(instances)
        .where(instances.c.id == sa.bindparam("said_by"), instances.c.unsaid <= sa.bindparam("up_to"))
        .values(unsaid=None),
        [{"said_by": UUID(entity), "up_to": sequence} for entity, sequence in confirmed],
    )


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


def _unsaid(connection: Connection, before: datetime) -> list[InstanceRow]:
    return _read(
        connection,
        sa.select(*_COLUMNS).where(instances.c.unsaid.is_not(None), instances.c.changed_at < before),
    )


# Hosts


def _lock_hosts(connection: Connection, ids: Sequence[ProviderId], names: Sequence[str]) -> list[HostState]:
    query = sa.select(hosts.c.body).where(
        sa.or_(among(connection, hosts.c.id, list(ids)), among(connection, hosts.c.name, list(names)))
    )
    return [_host(body) for body in connection.scalars(query.order_by(hosts.c.id).with_for_update())]


def _save_hosts(connection: Connection, changed: Sequence[HostState], at: datetime) -> None:
    statement = insert(connection, hosts)
    written = {name: statement.excluded[name] for name in ("name", "cell", "enabled", "changed_at", "body")}
    values = [
        {
            "id": host.id,
            "name": host.name,
            "cell": host.cell,
            "enabled": host.enabled,
            "changed_at": at,
            "body": _encode(host),
        }
        for host in sorted(changed, key=lambda host: host.id.int)
    ]
    connection.execute(statement.on_conflict_do_update(index_elements=[hosts.c.id], set_=written), values)


def _hosts(connection: Connection, name: str, after: str, limit: int) -> list[HostState]:
    query = sa.select(hosts.c.body).where(hosts.c.name == name if name else hosts.c.name > after)
    return [_host(body) for body in connection.scalars(query.order_by(hosts.c.name, hosts.c.id).limit(limit))]


def _hosts_changed(connection: Connection, since: datetime) -> list[HostState]:
    return [
        _host(body) for body in connection.scalars(sa.select(hosts.c.body).where(hosts.c.changed_at >= since))
    ]
