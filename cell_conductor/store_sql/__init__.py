"""A cell's instances in SQL: on PostgreSQL for several conductors, on SQLite for a single process.

The tables must exist: `bus.sql.upgrade(url, "cell_conductor")` creates them. A batch takes a constant number of
statements.

    rows.py              the columns of an instance, and the hot statements (their values: row_codec.py)
    rare_statements.py   statements that run rarely; hosts.py those about hosts
"""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from operator import itemgetter
from uuid import UUID

from msgspec import Struct

from bus.clock import now
from bus.errors import Transient
from bus.message import Message, ProviderId
from bus.messages.build import InstanceId
from bus.moments import microseconds
from bus.sql import (
    ONCE,
    POOL_SIZE,
    DatabaseSettings,
    PostgresTransaction,
    Transaction,
    Values,
    open_database,
    read_once,
    write_once,
)
from bus.workers.handling import OutboxKey
from cell_conductor.core.host_states import CellHost, HeardHost
from cell_conductor.core.instance import Instance
from cell_conductor.row_codec import (
    RowCache,
    assemble_row,
    column_values,
    decode_body,
    decode_note,
    encode_body,
    encode_note,
)
from cell_conductor.store import (
    JUST_SAID,
    NOTES_PAGE,
    SILENT_KEPT,
    WAITING_PAGE,
    ConductorTransaction,
    MessageKey,
    without_confirmed,
)
from cell_conductor.store_sql import hosts as hosts_sql
from cell_conductor.store_sql import rare_statements
from cell_conductor.store_sql.rows import ADD, CLEAR, DUE, LOAD, NOTE, NOTES, REPLACE, WRITE_ON_POSTGRESQL


class Loaded(Struct, frozen=True, gc=False):
    body: bytes
    row: Instance


class SqlConductorTransaction:
    """One transaction on the rows of a cell. What it has written is cached after its commit."""

    def __init__(
        self,
        transaction: Transaction,
        cell: str,
        cache: RowCache,
        clock: Callable[[], datetime],
    ) -> None:
        self._transaction = transaction
        self._cell = cell
        self._cache = cache
        self._clock = clock
        self._loaded: dict[int, Loaded] = {}
        # What the transaction has written in place of what: for the cache.
        self._written: list[tuple[bytes | None, Loaded]] = []
        # Rows with messages that another process has noted: they are not cached.
        self._noted_elsewhere: set[int] = set()
        self._notes: list[tuple[int, Sequence[MessageKey]]] = []
        self._cleared: set[int] = set()
        self._hosts: dict[ProviderId, CellHost] = {}

    async def load(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Instance]:
        found = await self._as_rows(
            [body for (body,) in await LOAD.fetch(self._transaction, instances, self._cell)]
        )
        return {row.id: row for row in found}

    async def take_due(self, now: datetime, limit: int) -> Mapping[InstanceId, Instance]:
        due = await DUE.fetch(self._transaction, ONCE, self._cell, microseconds(now), limit)
        return {row.id: row for row in await self._as_rows([body for (body,) in due])}

    async def save(
        self, rows: Sequence[Instance], forgotten: Sequence[InstanceId], said: Sequence[MessageKey]
    ) -> OutboxKey | None:
        gone = {each.int for each in forgotten}
        known: list[Values] = []
        # In the order of ids: two processes that add the same new rows wait for each other, but cannot deadlock.
        new: list[tuple[int, Values]] = []
        for row in rows:
            number = row.id.int
            if number in gone:
                continue
            body, before = encode_body(row), self._loaded.get(number)
            if before is None:
                new.append((number, column_values(row, body, has_order=False)))
            else:
                known.append(column_values(row, body, has_order=before.row.order is not None))
            if number not in self._noted_elsewhere:
                self._written.append((before.body if before else None, Loaded(body, row)))
            self._loaded[number] = Loaded(body, row)
        note = None
        if said or known or new:
            new_rows = [values for _, values in sorted(new, key=itemgetter(0))]
            note = await self._write(known, new_rows, encode_note(said) if said else None)
        if forgotten:
            await self._transaction.run(rare_statements.forget, self._cell, forgotten)
        if note is None:
            return None
        self._notes.append((note, said))
        return OutboxKey(note)

    async def _write(self, known: Sequence[Values], new: Sequence[Values], said: bytes | None) -> int | None:
        """Replace known rows, add new ones, and add a note of the messages sent. Returns the note's number."""
        transaction, cell, at_us, note = self._transaction, self._cell, microseconds(self._clock()), None
        if isinstance(transaction, PostgresTransaction):
            ((added, note),) = await transaction.fetch(
                WRITE_ON_POSTGRESQL, cell, *REPLACE.arrays(known), *ADD.arrays(new), at_us, said
            )
        else:
            await REPLACE.change(transaction, known, cell)
            added = await ADD.change(transaction, new, cell)
            if said is not None:
                ((note,),) = await NOTE.fetch(transaction, ONCE, cell, at_us, said)
        if added < len(new):
            raise Transient(f"{len(new) - added} of {len(new)} new instances have a row already")
        return note

    async def lock_hosts(self, hosts: Sequence[ProviderId]) -> Mapping[ProviderId, CellHost]:
        locked = {
            host.word.host: host
            for host in await self._transaction.run(hosts_sql.lock_hosts, self._cell, hosts)
        }
        self._hosts |= locked
        return locked

    async def save_hosts(self, hosts: Sequence[CellHost]) -> None:
        for host in hosts:
            before = self._hosts.get(host.word.host)
            if not await self._transaction.run(hosts_sql.save_host, self._cell, host, before):
                raise Transient(f"host {host.word.name} has a row already")
            self._hosts[host.word.host] = host

    def clear(self, said: Iterable[OutboxKey]) -> None:
        self._cleared.update(said)

    async def write_cleared(self) -> None:
        """Delete the notes that were cleared, just before the commit."""
        await CLEAR.fetch(self._transaction, self._cleared)

    def committed(self) -> None:
        self._cache.confirmed(self._cleared)
        for number, said in self._notes:
            self._cache.noted(number, said)
        for before, after in self._written:
            self._cache.replace(before, after.body, after.row)

    async def _as_rows(self, bodies: Sequence[bytes]) -> list[Instance]:
        """The rows that these bytes encode: from the cache, or decoded if another process wrote them."""
        rows = [self._cache.row_of(body) for body in bodies]
        unknown = [body for body, row in zip(bodies, rows, strict=True) if row is None]
        read = iter(await self._read(unknown) if unknown else ())
        found = [row or next(read) for row in rows]
        self._loaded |= {row.id.int: Loaded(body, row) for row, body in zip(found, bodies, strict=True)}
        return found

    async def _read(self, stored: Sequence[bytes]) -> list[Instance]:
        bodies = [decode_body(body) for body in stored]
        placed = [body.instance.id for body in bodies if body.placed_at is not None]
        orders = (
            await self._transaction.run(rare_statements.read_orders, self._cell, placed) if placed else {}
        )
        found = [assemble_row(body, orders.get(body.instance.id)) for body in bodies]
        if any(row.outbox for row in found):
            unconfirmed = await self._unconfirmed()
            found = [without_confirmed(row, unconfirmed) for row in found]
            self._noted_elsewhere.update([row.id.int for row in found if row.outbox])
        return found

    async def _unconfirmed(self) -> set[MessageKey]:
        """The messages that all notes of the cell name."""
        unconfirmed: set[MessageKey] = set()
        ours, after = self._cache.notes, 0
        while True:
            notes = await NOTES.fetch(self._transaction, ONCE, self._cell, after, NOTES_PAGE)
            unconfirmed.update(*[decode_note(note) for _, note in notes])
            ours -= {number for number, _ in notes}
            if len(notes) < NOTES_PAGE:
                # Another process has sent and confirmed what these name.
                self._cache.confirmed(ours)
                return unconfirmed
            after = notes[-1][0]


class SqlConductorStore:
    def __init__(
        self,
        url: str,
        cell: str,
        *,
        clock: Callable[[], datetime] = now,
        pool_size: int = POOL_SIZE,
        settings: DatabaseSettings | None = None,
    ) -> None:
        self._database = open_database(url, pool_size=pool_size, settings=settings)
        self._cell = cell
        self._clock = clock
        self._cache = RowCache()
        self._has_started = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[ConductorTransaction]:
        async with self._database.writing() as transaction:
            ours = SqlConductorTransaction(transaction, self._cell, self._cache, self._clock)
            yield ours
            await ours.write_cleared()
        ours.committed()

    async def clear(self, tx: ConductorTransaction, said: Sequence[OutboxKey]) -> None:
        assert isinstance(tx, SqlConductorTransaction), "a transaction of another store"
        tx.clear(said)

    async def pending(self, after: OutboxKey | None = None) -> Sequence[tuple[OutboxKey, Message]]:
        number: int = after or 0
        found: list[tuple[OutboxKey, Message]] = []
        while not found and (said := await self._noted(number)):
            found = await self._pending_of(said)
            number = said[-1][0]
        return found

    async def _noted(self, after: int) -> list[tuple[int, Collection[MessageKey]]]:
        before_us = microseconds(self._clock() - JUST_SAID) if self._has_started else None
        notes = await read_once(
            self._database, rare_statements.read_notes, self._cell, before_us, after, NOTES_PAGE
        )
        self._has_started |= len(notes) < NOTES_PAGE
        return [(number, decode_note(note)) for number, note in notes]

    async def _pending_of(
        self, said: Sequence[tuple[int, Collection[MessageKey]]]
    ) -> list[tuple[OutboxKey, Message]]:
        ids = [InstanceId(UUID(bytes=id_)) for id_ in sorted({id_ for _, each in said for id_, _ in each})]
        rows = {row.id.bytes: row for row in await self.read(ids)}
        found = [
            (number, pending.message)
            for number, each in said
            for id_ in sorted({id_ for id_, _ in each} & rows.keys())
            for pending in without_confirmed(rows[id_], each).outbox
        ]
        if over := {number for number, _ in said} - {number for number, _ in found}:
            # These messages are no longer on their rows: they were withdrawn.
            async with self.transaction() as tx:
                await self.clear(tx, [*map(OutboxKey, over)])
        return [(OutboxKey(number), message) for number, message in found]

    async def read(
        self, instances: Sequence[InstanceId], after: InstanceId | None = None, limit: int | None = None
    ) -> Sequence[Instance]:
        return await read_once(self._database, rare_statements.read, self._cell, instances, after, limit)

    async def host_writes(self) -> int:
        return await read_once(self._database, hosts_sql.count_writes, self._cell)

    async def hosts(self) -> Sequence[CellHost]:
        return await read_once(self._database, hosts_sql.read_hosts, self._cell)

    async def heard_hosts(self) -> Sequence[HeardHost]:
        before_us = microseconds(self._clock() - SILENT_KEPT)
        return await write_once(self._database, hosts_sql.read_heard_hosts, self._cell, before_us)

    async def save_heard_hosts(self, hosts: Sequence[HeardHost]) -> None:
        await write_once(self._database, hosts_sql.save_heard_hosts, self._cell, hosts)

    async def waiting(
        self, until: datetime, after: tuple[datetime, InstanceId] | None = None
    ) -> tuple[Instance, ...]:
        behind = None if after is None else (microseconds(after[0]), after[1])
        return tuple(
            await read_once(
                self._database,
                rare_statements.read_waiting,
                self._cell,
                microseconds(until),
                behind,
                WAITING_PAGE,
            )
        )

    async def close(self) -> None:
        await self._database.close()
