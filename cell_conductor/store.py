"""The conductor's interface to its database. Two implementations, one contract suite: store_sql/, and tests/memory_stores.

Cells may share a database: each store sees the rows of one cell only.

The messages of an instance stay on its row. The row does not record which are confirmed: most rows are not written
again for long, and writing them for this alone would be a third of all writes. Instead each transaction that sends
messages writes one note with their keys, which is deleted when they are confirmed. A message without a note counts as
confirmed.
"""

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Protocol

import msgspec
from msgspec import Struct, structs

from bus.message import Message
from bus.messages.cell import AdoptInCell, PlaceInCell
from bus.workers.handling import OutboxKey
from cell_conductor.core.host_states import CellHost, HeardHost
from cell_conductor.core.instance import SPAWNS, Instance, OutboxMessage, Pending, choices_of, spawn_order
from engine.flavors import InstanceId
from engine.inventories import Choice, ProviderId
from kit.sql import Values
from kit.times import microseconds

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


class ConductorTransaction(Protocol):
    """One transaction on a cell's tables: all of its writes take effect, or none."""

    async def load(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Instance]:
        """The existing rows of these instances, locked."""

    async def take_due(self, now: datetime, limit: int) -> Mapping[InstanceId, Instance]:
        """The rows that have been due for longest, locked. Rows locked by another process are skipped."""

    async def save(
        self, rows: Sequence[Instance], forgotten: Sequence[InstanceId], said: Sequence[MessageKey]
    ) -> OutboxKey | None:
        """Save rows: loaded ones are replaced, others are new (`Transient` if another process created them first).

        The rows in `forgotten` are deleted. `said` names the messages on these rows that are sent now. Returns the key of
        the note that lists them until they are confirmed; None if there are none.
        """

    async def lock_hosts(self, hosts: Sequence[ProviderId]) -> Mapping[ProviderId, CellHost]:
        """The existing rows of these hosts, locked."""

    async def save_hosts(self, hosts: Sequence[CellHost]) -> None:
        """Save rows of hosts: loaded ones are replaced, others are new (`Transient` if another process created them first)."""


class ConductorStore(Protocol):
    """The rows of one cell. For the conductor's worker it is also the outbox, from which unconfirmed messages are sent
    again.
    """

    def transaction(self) -> AbstractAsyncContextManager[ConductorTransaction]:
        """A transaction: commits at the end, rolls back on an exception. Any step may raise `Transient`: try again."""

    async def clear(self, tx: ConductorTransaction, said: Sequence[OutboxKey]) -> None:
        """Delete the notes with these keys, since their messages are confirmed.

        This is a part of the transaction, and is done as its last step, whenever it is called.
        """

    async def pending(self, after: OutboxKey | None = None) -> Sequence[tuple[OutboxKey, Message]]:
        """A page of unconfirmed messages with their keys, after the given key; empty at the end.

        The first reading of a process has all of them. Later readings leave out those that were sent just now.
        """

    async def read(
        self, instances: Sequence[InstanceId], after: InstanceId | None = None, limit: int | None = None
    ) -> Sequence[Instance]:
        """The rows of these instances, or of all if none are named, that follow `after` in the order of their ids. Not
        locked.

        Each row has all messages that it stores, also the confirmed ones.
        """

    async def host_writes(self) -> int:
        """How often rows of hosts were written, by all processes. While this number is the same, `hosts` returns the
        same.
        """

    async def hosts(self) -> Sequence[CellHost]:
        """All hosts of the cell whose mode an operator has ever set."""

    async def heard_hosts(self) -> Sequence[HeardHost]:
        """The hosts of the cell that conductors have heard, without those that have been silent for `SILENT_KEPT`, which are
        deleted.
        """

    async def save_heard_hosts(self, hosts: Sequence[HeardHost]) -> None:
        """Save these rows, in a transaction of their own. The last write of a row wins: a conductor that finds it wrong
        writes it again.
        """

    async def waiting(
        self, until: datetime, after: tuple[datetime, InstanceId] | None = None
    ) -> tuple[Instance, ...]:
        """A page of the rows that are due by `until`, the earliest first, after the given row; empty at the end.

        They are not locked, and have no messages.
        """

    async def close(self) -> None: ...


def without_confirmed(row: Instance, unconfirmed: Collection[MessageKey]) -> Instance:
    """The row without its confirmed messages."""
    if not row.outbox:
        return row
    id_ = row.id.bytes
    left = tuple([each for each in row.outbox if (id_, each.sequence) in unconfirmed])
    return row if len(left) == len(row.outbox) else structs.replace(row, outbox=left)


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
