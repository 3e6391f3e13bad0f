"""A cell's instances in SQL: on PostgreSQL for several conductors, on SQLite for a single process.

The tables must exist: `kit.sql.upgrade(url, "cell_conductor")` creates them. A batch takes a constant number of
statements. Cells may share a database: each store sees the rows of one cell only.

The messages of an instance stay on its row. The row does not record which are confirmed: most rows are not written
again for long, and writing them for this alone would be a third of all writes. Instead each transaction that sends
messages writes one note with their keys, which is deleted when they are confirmed. A message without a note counts as
confirmed.
"""

import re
import struct
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from msgspec import Struct, structs
from sqlalchemy import Connection

from bus.message import Message
from bus.messages.cell import AdoptInCell, PlaceInCell
from bus.workers.handlers import OutboxKey
from cell_conductor.core.rows import SPAWNS, CellHost, HeardHost, Instance, OutboxMessage, Pending, choices_of
from cell_conductor.core.transition import spawn_order
from cell_conductor.tables import cell_heard_hosts, cell_hosts, cell_instances, cell_notes
from engine.flavors import InstanceId
from engine.inventories import Choice, ProviderId
from kit.clock import microseconds, moment, now
from kit.errors import Transient
from kit.sql import (
    ONCE,
    POOL_SIZE,
    Database,
    DatabaseSettings,
    PostgresTransaction,
    RowColumns,
    Transaction,
    Values,
    among,
    insert,
    open_database,
    read_once,
    write_once,
)

# The key of a message: the bytes of its instance's id, and its sequence there.
MessageKey = tuple[bytes, int]

# Messages sent more recently may still be under way and need not be sent again yet.
JUST_SAID = timedelta(seconds=5)
# How many notes, each with the messages of a batch, are read at once.
NOTES_PAGE = 20
# How many rows that wait are read at once.
WAITING_PAGE = 500
# A host that is silent for so long has left the cell.
SILENT_KEPT = timedelta(days=30)

# Encodes and decodes the rows of instances, in pieces by how often they change, and nothing twice; and the notes of messages.
#
# The order to place the instance never changes and is the largest piece, so it is stored separately, once. The host of
# the instance and its remaining alternates are nearly always choices of that order, and an unconfirmed spawn order
# follows from the row. So the rest of the row only stores the index of a choice, and that there is a spawn order.


# The index of a choice in the order, the chosen host first; or a choice that is not in the order.
ChoiceRef = int | Choice


class StoredMessage(Struct, array_like=True, gc=False):
    """An unconfirmed message as a row stores it. If `message` is None, it is the spawn order that can be derived from the
    row.
    """

    sequence: int
    at: datetime
    message: OutboxMessage | None


class Body(Struct, array_like=True, gc=False):
    """The part of an instance's row that changes.

    `placed_at` is the time at which the row's order was issued, and identifies that order. `alternates` are those
    that were not tried yet; None stands for all alternates of the order.
    """

    instance: Instance
    placed_at: datetime | None
    host: ChoiceRef | None
    alternates: tuple[ChoiceRef, ...] | None
    outbox: tuple[StoredMessage, ...]


_encode = msgspec.msgpack.Encoder(uuid_format="bytes").encode
decode_body = msgspec.msgpack.Decoder(Body).decode
decode_order = msgspec.msgpack.Decoder(PlaceInCell | AdoptInCell).decode
_NOTED = struct.Struct(">16sQ")


def encode_body(row: Instance) -> bytes:
    order, host = row.order, row.host
    choices = choices_of(order)
    body = Body(
        structs.replace(row, order=None, host=None, alternates=(), outbox=()),
        None if order is None else order.issued_at,
        None if host is None else _reference(choices, host),
        None
        if order is not None and row.alternates is order.alternates
        else tuple([_reference(choices, each) for each in row.alternates]),
        tuple(
            [
                StoredMessage(each.sequence, each.at, _unless_derivable(row, each.message))
                for each in row.outbox
            ]
        ),
    )
    return _encode(body)


def encode_order(order: PlaceInCell) -> bytes:
    return _encode(order)


def column_values(row: Instance, body: bytes, *, has_order: bool) -> Values:
    """The values of a row's columns, without the cell.

    The order to place the instance is written only once, so it is left out for a row that has it.
    """
    due_at = row.due_at
    return (
        row.id,
        row.state,
        microseconds(due_at) if due_at else None,
        body,
        encode_order(row.order) if row.order is not None and not has_order else None,
    )


def assemble_row(body: Body, order: PlaceInCell | None) -> Instance:
    choices, host = choices_of(order), body.host
    row = structs.replace(
        body.instance,
        order=order,
        host=None if host is None else _choice(choices, host),
        alternates=choices[1:]
        if body.alternates is None
        else tuple([_choice(choices, each) for each in body.alternates]),
    )
    return structs.replace(row, outbox=tuple([_pending(row, each) for each in body.outbox]))


def _unless_derivable(row: Instance, message: OutboxMessage) -> OutboxMessage | None:
    """The message, or None if the row is enough to derive it."""
    # Not by `isinstance`, which msgspec makes slow for messages of other types.
    if type(message) not in SPAWNS or row.order is None or row.host is None:
        return message
    return None if message == spawn_order(row, row.order, row.host) else message


def _pending(row: Instance, kept: StoredMessage) -> Pending:
    message = kept.message
    if message is None:
        assert row.order is not None, "an instance to be spawned was placed"
        assert row.host is not None, "an attempt has a host"
        message = spawn_order(row, row.order, row.host)
    return Pending(kept.sequence, kept.at, message)


def _reference(choices: tuple[Choice, ...], choice: Choice) -> ChoiceRef:
    for number, each in enumerate(choices):
        # It was taken from the order, so it is nearly always the same object.
        if each is choice or each == choice:
            return number
    return choice


def _choice(choices: tuple[Choice, ...], reference: ChoiceRef) -> Choice:
    return choices[reference] if isinstance(reference, int) else reference


def encode_note(said: Sequence[MessageKey]) -> bytes:
    return b"".join([_NOTED.pack(*each) for each in said])


def decode_note(note: bytes) -> set[MessageKey]:
    return set(_NOTED.iter_unpack(note))


def without_confirmed(row: Instance, unconfirmed: Collection[MessageKey]) -> Instance:
    """The row without its confirmed messages."""
    if not row.outbox:
        return row
    id_ = row.id.bytes
    outbox = tuple([each for each in row.outbox if (id_, each.sequence) in unconfirmed])
    return row if len(outbox) == len(row.outbox) else structs.replace(row, outbox=outbox)


# How many rows are cached. If a cell builds more at the same time, some are read from the database a second time.
CACHED_ROWS_MAX = 10_000


class RowCache:
    """A cache of the rows of instances that are being built, by their encoded bodies. A transaction that reads such a
    body from the database takes the row from here: it need not decode the body, nor read the order to place it, which
    is stored apart. Nor need it read the notes of unconfirmed messages: this process wrote those of all messages here.
    """

    def __init__(self) -> None:
        self._rows: dict[bytes, Instance] = {}
        # The notes of this process that are not deleted, and how many of them name a message.
        self._notes: dict[int, Sequence[MessageKey]] = {}
        self._unconfirmed: dict[MessageKey, int] = {}

    def row_of(self, body: bytes) -> Instance | None:
        """The row that was encoded so, without its confirmed messages."""
        row = self._rows.get(body)
        return None if row is None else without_confirmed(row, self._unconfirmed)

    def replace(self, before: bytes | None, body: bytes, row: Instance) -> None:
        """Cache a row that was committed, by its encoded body. The body from before, which no row has any more, is
        dropped. The row's messages must be in notes of this process: another one would not tell when it confirms a message.
        """
        if before is not None:
            self._rows.pop(before, None)
        if row.order is not None and row.state in ("building", "swapping"):
            self._rows[body] = row
            if len(self._rows) > CACHED_ROWS_MAX:
                del self._rows[next(iter(self._rows))]

    @property
    def notes(self) -> set[int]:
        """The notes of this process that are not deleted, as far as it knows."""
        return set(self._notes)

    def noted(self, number: int, said: Sequence[MessageKey]) -> None:
        """This process has committed this note."""
        self._notes[number] = said
        for key in said:
            if key in self._unconfirmed:
                self._unconfirmed[key] += 1
            else:
                self._unconfirmed[key] = 1

    def confirmed(self, numbers: Iterable[int]) -> None:
        """These notes are deleted. Those that another process wrote are none of ours."""
        for number in numbers:
            for key in self._notes.pop(number, ()):
                self._unconfirmed[key] -= 1
                if not self._unconfirmed[key]:
                    del self._unconfirmed[key]


# The statements on rows and notes that run most often.


_OF_CELL = ("cell",)
_ROW = RowColumns(cell_instances, "id", "state", "due_us", "body", "placed", shared=_OF_CELL)

LOAD = RowColumns(cell_instances, "body", shared=_OF_CELL).lock()
# The rows that have been due for longest, of a cell, by a time, at most so many.
DUE = RowColumns(cell_instances).statement(
    "SELECT body FROM cell_instances WHERE cell = $1 AND due_us <= $2 ORDER BY due_us LIMIT $3 FOR UPDATE SKIP LOCKED",
    # The writer has the file to itself.
    "SELECT body FROM cell_instances WHERE cell = ?1 AND due_us <= ?2 ORDER BY due_us LIMIT ?3",
    ("body",),
)
# The notes of a cell after this number, at most so many, by the index of their numbers. Notes come and go with each batch:
# an index scan skips those that an earlier one found gone, and a scan of the table would read them all.
NOTES = RowColumns(cell_notes).statement(
    "SELECT number, said FROM cell_notes WHERE cell = $1 AND number > $2 ORDER BY number LIMIT $3",
    "SELECT number, said FROM cell_notes WHERE cell = ?1 AND number > ?2 ORDER BY number LIMIT ?3",
    ("number", "said"),
)
CLEAR = RowColumns(cell_notes).delete_unlocked("number")

ADD = _ROW.insert("ON CONFLICT (id, cell) DO NOTHING")
REPLACE = _ROW.update(placed="coalesce(kept.placed, new.placed)")
NOTE = RowColumns(cell_notes, shared=("cell", "at_us", "said")).insert(returning=("number",))

# A round trip to PostgreSQL costs as much as twenty rows, so it gets all three at once: $1 is the cell, then come the columns of known
# rows, those of new rows, and the note.
WRITE_ON_POSTGRESQL = """
WITH kept AS (KNOWN), added AS (NEW RETURNING 1), noted AS (
    INSERT INTO cell_notes (cell, at_us, said) SELECT $1, $12::bigint, $13::bytea WHERE $13::bytea IS NOT NULL
    RETURNING number
)
SELECT (SELECT count(*) FROM added), (SELECT number FROM noted)
""".replace("KNOWN", REPLACE.on_postgresql).replace(
    "NEW", re.sub(r"\$([2-6])", lambda place: f"${int(place[1]) + 5}", ADD.on_postgresql)
)


# Statements on a cell's instances and notes that run rarely, written once for both databases.


def read(
    connection: Connection,
    cell: str,
    instances: Sequence[InstanceId],
    after: InstanceId | None,
    limit: int | None,
) -> list[Instance]:
    """The rows of these instances, or of all if none are named, that follow `after` in the order of their ids."""
    query = sa.select(cell_instances.c.body, cell_instances.c.placed).where(cell_instances.c.cell == cell)
    if instances:
        query = query.where(among(connection, cell_instances.c.id, instances))
    if after is not None:
        query = query.where(cell_instances.c.id > after)
    return _rows(connection, query.order_by(cell_instances.c.id).limit(limit))


def _rows(connection: Connection, query: sa.Select[Any]) -> list[Instance]:
    return [
        assemble_row(decode_body(body), decode_order(placed) if placed else None)
        for body, placed in connection.execute(query)
    ]


def read_notes(
    connection: Connection, cell: str, before_us: int | None, after: int, limit: int
) -> list[tuple[int, bytes]]:
    """A page of the notes of unconfirmed messages that follow the number `after`, in the order of their numbers.

    With `before_us`, only notes written before this time, in microseconds, are read.
    """
    query = sa.select(cell_notes.c.number, cell_notes.c.said).where(
        cell_notes.c.cell == cell, cell_notes.c.number > after
    )
    query = query.order_by(cell_notes.c.number).limit(limit)
    if before_us is not None:
        query = query.where(cell_notes.c.at_us < before_us)
    return [(number, said) for number, said in connection.execute(query)]


def read_waiting(
    connection: Connection, cell: str, until_us: int, after: tuple[int, InstanceId] | None, limit: int
) -> list[Instance]:
    """Rows that are due by `until_us`, the earliest first, without their messages."""
    query = sa.select(cell_instances.c.body, cell_instances.c.placed)
    query = query.where(cell_instances.c.cell == cell, cell_instances.c.due_us <= until_us)
    if after is not None:
        due_us, id_ = after
        later = sa.and_(cell_instances.c.due_us == due_us, cell_instances.c.id > id_)
        query = query.where(sa.or_(cell_instances.c.due_us > due_us, later))
    found = _rows(connection, query.order_by(cell_instances.c.due_us, cell_instances.c.id).limit(limit))
    return [without_confirmed(row, frozenset()) for row in found]


def read_orders(
    connection: Connection, cell: str, instances: Sequence[InstanceId]
) -> dict[InstanceId, PlaceInCell]:
    query = sa.select(cell_instances.c.id, cell_instances.c.placed)
    query = query.where(cell_instances.c.cell == cell, among(connection, cell_instances.c.id, instances))
    return {id_: decode_order(placed) for id_, placed in connection.execute(query)}


def forget(connection: Connection, cell: str, instances: Sequence[InstanceId]) -> None:
    connection.execute(
        sa.delete(cell_instances).where(
            cell_instances.c.cell == cell, among(connection, cell_instances.c.id, instances)
        )
    )


# Reads and writes the modes that operators have set for hosts, and which hosts conductors have heard. Both change rarely, so
# both databases share the statements.


_encode_host = msgspec.json.Encoder().encode
_host = msgspec.json.Decoder(CellHost).decode


def read_hosts(connection: Connection, cell: str) -> list[CellHost]:
    return [
        _host(body)
        for body in connection.scalars(sa.select(cell_hosts.c.body).where(cell_hosts.c.cell == cell))
    ]


def count_writes(connection: Connection, cell: str) -> int:
    return int(
        connection.scalar(sa.select(sa.func.sum(cell_hosts.c.writes)).where(cell_hosts.c.cell == cell)) or 0
    )


def lock_hosts(connection: Connection, cell: str, hosts: Sequence[ProviderId]) -> list[CellHost]:
    query = sa.select(cell_hosts.c.body).where(
        cell_hosts.c.cell == cell, among(connection, cell_hosts.c.id, list(hosts))
    )
    return [_host(body) for body in connection.scalars(query.order_by(cell_hosts.c.id).with_for_update())]


def save_host(connection: Connection, cell: str, host: CellHost, before: CellHost | None) -> bool:
    """Write the row of a host. False if it was missing before, and another process has inserted it by now."""
    id_, body = host.word.host, _encode_host(host)
    if before is not None:
        query = sa.update(cell_hosts).where(cell_hosts.c.cell == cell, cell_hosts.c.id == id_)
        connection.execute(query.values(writes=cell_hosts.c.writes + 1, body=body))
        return True
    statement = (
        insert(connection, cell_hosts).values(id=id_, cell=cell, writes=1, body=body).on_conflict_do_nothing()
    )
    return connection.execute(statement).rowcount == 1


def read_heard_hosts(connection: Connection, cell: str, before_us: int) -> list[HeardHost]:
    connection.execute(
        sa.delete(cell_heard_hosts).where(
            cell_heard_hosts.c.cell == cell, cell_heard_hosts.c.silent_since_us < before_us
        )
    )
    query = sa.select(cell_heard_hosts.c.id, cell_heard_hosts.c.silent_since_us).where(
        cell_heard_hosts.c.cell == cell
    )
    return [
        HeardHost(id_, None if since_us is None else moment(since_us))
        for id_, since_us in connection.execute(query)
    ]


def save_heard_hosts(connection: Connection, cell: str, hosts: Sequence[HeardHost]) -> None:
    # In the order of ids, so that two processes cannot deadlock.
    rows = [
        {
            "id": host.id,
            "cell": cell,
            "silent_since_us": None if host.silent_since is None else microseconds(host.silent_since),
        }
        for host in sorted(hosts, key=lambda host: host.id)
    ]
    statement = insert(connection, cell_heard_hosts)
    upsert = statement.on_conflict_do_update(
        index_elements=[*cell_heard_hosts.primary_key],
        set_={"silent_since_us": statement.excluded.silent_since_us},
    )
    connection.execute(upsert, rows)


class Loaded(Struct, frozen=True, gc=False):
    body: bytes
    row: Instance


class ConductorTransaction:
    """One transaction on the rows of a cell: all of its writes take effect, or none. What it has written is cached after its commit."""

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
        """The existing rows of these instances, locked."""
        found = await self._as_rows(
            [body for (body,) in await LOAD.fetch(self._transaction, instances, self._cell)]
        )
        return {row.id: row for row in found}

    async def take_due(self, now: datetime, limit: int) -> Mapping[InstanceId, Instance]:
        """The rows that have been due for longest, locked. Rows locked by another process are skipped."""
        due = await DUE.fetch(self._transaction, ONCE, self._cell, microseconds(now), limit)
        return {row.id: row for row in await self._as_rows([body for (body,) in due])}

    async def save(
        self, rows: Sequence[Instance], forgotten: Sequence[InstanceId], said: Sequence[MessageKey]
    ) -> OutboxKey | None:
        """Save rows: loaded ones are replaced, others are new (`Transient` if another process created them first).

        The rows in `forgotten` are deleted. `said` names the messages on these rows that are sent now. Returns the key of
        the note that lists them until they are confirmed; None if there are none.
        """
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
            await self._transaction.run(forget, self._cell, forgotten)
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
        """The existing rows of these hosts, locked."""
        locked = {host.word.host: host for host in await self._transaction.run(lock_hosts, self._cell, hosts)}
        self._hosts |= locked
        return locked

    async def save_hosts(self, hosts: Sequence[CellHost]) -> None:
        """Save rows of hosts: loaded ones are replaced, others are new (`Transient` if another process created them first)."""
        for host in hosts:
            before = self._hosts.get(host.word.host)
            if not await self._transaction.run(save_host, self._cell, host, before):
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
        orders = await self._transaction.run(read_orders, self._cell, placed) if placed else {}
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


class ConductorStore:
    """The rows of one cell. For the conductor's worker it is also the outbox, from which unconfirmed messages are sent
    again.
    """

    def __init__(
        self,
        url: str | Database,
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
        """A transaction: commits at the end, rolls back on an exception. Any step may raise `Transient`: try again."""
        async with self._database.writing() as transaction:
            ours = ConductorTransaction(transaction, self._cell, self._cache, self._clock)
            yield ours
            await ours.write_cleared()
        ours.committed()

    async def clear(self, tx: ConductorTransaction, said: Sequence[OutboxKey]) -> None:
        """Delete the notes with these keys, since their messages are confirmed.

        This is a part of the transaction, and is done as its last step, whenever it is called.
        """
        tx.clear(said)

    async def pending(self, after: OutboxKey | None = None) -> Sequence[tuple[OutboxKey, Message]]:
        """A page of unconfirmed messages with their keys, after the given key; empty at the end.

        The first reading of a process has all of them. Later readings leave out those that were sent just now.
        """
        number: int = after or 0
        found: list[tuple[OutboxKey, Message]] = []
        while not found and (said := await self._noted(number)):
            found = await self._pending_of(said)
            number = said[-1][0]
        return found

    async def _noted(self, after: int) -> list[tuple[int, Collection[MessageKey]]]:
        before_us = microseconds(self._clock() - JUST_SAID) if self._has_started else None
        notes = await read_once(self._database, read_notes, self._cell, before_us, after, NOTES_PAGE)
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
        """The rows of these instances, or of all if none are named, that follow `after` in the order of their ids. Not
        locked.

        Each row has all messages that it stores, also the confirmed ones.
        """
        return await read_once(self._database, read, self._cell, instances, after, limit)

    async def host_writes(self) -> int:
        """How often rows of hosts were written, by all processes. While this number is the same, `hosts` returns the
        same.
        """
        return await read_once(self._database, count_writes, self._cell)

    async def hosts(self) -> Sequence[CellHost]:
        """All hosts of the cell whose mode an operator has ever set."""
        return await read_once(self._database, read_hosts, self._cell)

    async def heard_hosts(self) -> Sequence[HeardHost]:
        """The hosts of the cell that conductors have heard, without those that have been silent for `SILENT_KEPT`, which are
        deleted.
        """
        before_us = microseconds(self._clock() - SILENT_KEPT)
        return await write_once(self._database, read_heard_hosts, self._cell, before_us)

    async def save_heard_hosts(self, hosts: Sequence[HeardHost]) -> None:
        """Save these rows, in a transaction of their own. The last write of a row wins: a conductor that finds it wrong
        writes it again.
        """
        await write_once(self._database, save_heard_hosts, self._cell, hosts)

    async def waiting(
        self, until: datetime, after: tuple[datetime, InstanceId] | None = None
    ) -> tuple[Instance, ...]:
        """A page of the rows that are due by `until`, the earliest first, after the given row; empty at the end.

        They are not locked, and have no messages.
        """
        behind = None if after is None else (microseconds(after[0]), after[1])
        return tuple(
            await read_once(
                self._database,
                read_waiting,
                self._cell,
                microseconds(until),
                behind,
                WAITING_PAGE,
            )
        )

    async def close(self) -> None:
        await self._database.close()
