"""An instance as its row keeps it: in pieces, by how often they change, and nothing twice.

The order to place it never changes, and is most of what is known; so it is a piece of its own, written once. The host
that has the instance, and the alternates that are left, are choices of the order, nearly always; and an order to spawn
that is still to be heard says what these say. So elsewhere stands only which choice, and that there is such an order.
"""

from datetime import datetime

import msgspec
from msgspec import Struct, structs

from bus.messages.cell import Choice, PlaceInCell
from cell_conductor.core.instance import SPAWNS, Instance, Pending, Word, spawning

# A choice of the order by its number, the chosen one being the first; or what is none of them.
Place = int | Choice


class Kept(Struct, array_like=True, gc=False):
    """A word that is not confirmed. Without a message: the order to spawn what the row says."""

    sequence: int
    at: datetime
    message: Word | None


class Body(Struct, array_like=True, gc=False):
    """`placed_at` is when the order was issued: which tells it from another for the same instance. Without alternates:
    those of the order, all of them.
    """

    instance: Instance
    placed_at: datetime | None
    host: Place | None
    alternates: tuple[Place, ...] | None
    outbox: tuple[Kept, ...]


_encode = msgspec.msgpack.Encoder(uuid_format="bytes").encode
body_of = msgspec.msgpack.Decoder(Body).decode
order_of = msgspec.msgpack.Decoder(PlaceInCell).decode


def encoded_body(row: Instance) -> bytes:
    order, host = row.order, row.host
    choices = _choices(order)
    body = Body(
        structs.replace(row, order=None, host=None, alternates=(), outbox=()),
        None if order is None else order.issued_at,
        None if host is None else _place(choices, host),
        None
        if order is not None and row.alternates is order.alternates
        else tuple([_place(choices, each) for each in row.alternates]),
        tuple([Kept(each.sequence, each.at, _unless_clear(row, each.message)) for each in row.outbox]),
    )
    return _encode(body)


def encoded_order(order: PlaceInCell) -> bytes:
    return _encode(order)


def decoded(body: Body, order: PlaceInCell | None) -> Instance:
    choices, host = _choices(order), body.host
    row = structs.replace(
        body.instance,
        order=order,
        host=None if host is None else _choice(choices, host),
        alternates=_alternates(choices, body.alternates),
    )
    return structs.replace(row, outbox=tuple([_pending(row, each) for each in body.outbox]))


def _unless_clear(row: Instance, message: Word) -> Word | None:
    """The message, if it does not follow from the row."""
    if not isinstance(message, SPAWNS) or row.order is None or row.host is None:
        return message
    return None if message == spawning(row, row.order, row.host) else message


def _pending(row: Instance, kept: Kept) -> Pending:
    message = kept.message
    if message is None:
        assert row.order is not None, "who is to be spawned was placed"
        assert row.host is not None, "an attempt has a host"
        message = spawning(row, row.order, row.host)
    return Pending(kept.sequence, kept.at, message)


def _alternates(choices: tuple[Choice, ...], places: tuple[Place, ...] | None) -> tuple[Choice, ...]:
    return choices[1:] if places is None else tuple([_choice(choices, each) for each in places])


def _choices(order: PlaceInCell | None) -> tuple[Choice, ...]:
    return () if order is None else (order.chosen, *order.alternates)


def _place(choices: tuple[Choice, ...], choice: Choice) -> Place:
    for number, each in enumerate(choices):
        # Taken from there, so nearly always the very same.
        if each is choice or each == choice:
            return number
    return choice


def _choice(choices: tuple[Choice, ...], place: Place) -> Choice:
    return choices[place] if isinstance(place, int) else place


# How many rows are remembered: of these, a cell may be building as many at once before it reads some a second time.
REMEMBERED_MAX = 10_000


class Remembered:
    """The rows of what is being built, by the bodies that were written of them: who reads such a body back has the row,
    and need not read its order.
    """

    def __init__(self) -> None:
        self._rows: dict[bytes, Instance] = {}

    def row_of(self, body: bytes) -> Instance | None:
        return self._rows.get(body)

    def replace(self, before: bytes | None, body: bytes, row: Instance) -> None:
        """It is written so now, committed; and what it was read as is no more."""
        if before is not None:
            self._rows.pop(before, None)
        if row.order is not None and row.state in ("building", "swapping"):
            self._rows[body] = row
            if len(self._rows) > REMEMBERED_MAX:
                del self._rows[next(iter(self._rows))]
