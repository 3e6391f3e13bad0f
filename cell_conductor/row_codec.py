"""Encodes and decodes the rows of instances, in pieces by how often they change, and nothing twice; and the notes of messages.

The order to place the instance never changes and is the largest piece, so it is stored separately, once. The host of
the instance and its remaining alternates are nearly always choices of that order, and an unconfirmed spawn order
follows from the row. So the rest of the row only stores the index of a choice, and that there is a spawn order.
"""

import struct
from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec
from msgspec import Struct, structs

from bus.messages.cell import AdoptInCell, Choice, PlaceInCell
from bus.moments import microseconds
from bus.sql import Values
from cell_conductor.core.instance import SPAWNS, Instance, OutboxMessage, Pending, choices_of, spawn_order
from cell_conductor.store import MessageKey, without_confirmed

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
