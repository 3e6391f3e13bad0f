"""An instance as its row keeps it: in pieces, by how often they change, and nothing twice.

The order to place it never changes, and is most of what is known; so it is a piece of its own, written once. The host
that has the instance, and the alternates that are left, are choices of the order, nearly always; and an order to spawn
that is still to be heard says what these say. So elsewhere stands only which choice, and that there is such an order.
"""

from collections.abc import Mapping
from datetime import datetime

import msgspec
from msgspec import Struct, structs

from bus.messages.cell import Choice, PlaceInCell, SpawnInstance
from cell_conductor.core.instance import Instance, Pending, Word, spawning

# A choice of the order by its number, the chosen one being the first; or what is none of them.
Place = int | Choice


class Kept(Struct, array_like=True, gc=False):
    """A word that is not confirmed. Without a message: the order to spawn what the row says."""

    sequence: int
    at: datetime
    message: Word | None


class Body(Struct, array_like=True, gc=False):
    """`placed_at` is when the order was issued: which tells it from another for the same instance."""

    instance: Instance
    placed_at: datetime | None
    host: Place | None
    alternates: tuple[Place, ...]
    outbox: tuple[Kept, ...]


_encode = msgspec.msgpack.Encoder(uuid_format="bytes").encode
_body = msgspec.msgpack.Decoder(Body).decode
order_of = msgspec.msgpack.Decoder(PlaceInCell).decode


def body_of(packed: bytes, unsaid_from: int | None) -> Body:
    """As it was written; but that all its words were confirmed since then is noted beside it."""
    body = _body(packed)
    if unsaid_from is None:
        body.outbox = ()
    return body


def encoded_body(row: Instance) -> bytes:
    choices, host = _choices(row.order), row.host
    body = Body(
        structs.replace(row, order=None, host=None, alternates=(), outbox=()),
        None if row.order is None else row.order.issued_at,
        None if host is None else _place(choices, host),
        tuple([_place(choices, each) for each in row.alternates]) if row.alternates else (),
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
        alternates=tuple([_choice(choices, each) for each in body.alternates]) if body.alternates else (),
    )
    if not body.outbox:
        return row
    return structs.replace(row, outbox=tuple([_pending(row, each) for each in body.outbox]))


def _unless_clear(row: Instance, message: Word) -> Word | None:
    """The message, if it does not follow from the row."""
    if not isinstance(message, SpawnInstance) or row.order is None or row.host is None:
        return message
    return None if message == spawning(row, row.order, row.host) else message


def _pending(row: Instance, kept: Kept) -> Pending:
    message = kept.message
    if message is None:
        assert row.order is not None, "who is to be spawned was placed"
        assert row.host is not None, "an attempt has a host"
        message = spawning(row, row.order, row.host)
    return Pending(kept.sequence, kept.at, message)


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


# How many orders are remembered: of these, a cell may be building as many at once before it reads some a second time.
ORDERS_MAX = 10_000


class Orders:
    """The orders of what is being built, in memory: they never change, so they are not read at each step."""

    def __init__(self) -> None:
        self._orders: dict[int, PlaceInCell] = {}

    def of(self, body: Body) -> PlaceInCell | None:
        """This row's order, if it is here."""
        order = self._orders.get(body.instance.id.int)
        return order if order is not None and order.issued_at == body.placed_at else None

    def remember(self, rows: Mapping[int, Instance]) -> None:
        """As these rows stand now, committed."""
        for number, row in rows.items():
            if row.order is not None and row.state in ("building", "swapping"):
                self._orders[number] = row.order
            else:
                self._orders.pop(number, None)
        while len(self._orders) > ORDERS_MAX:
            del self._orders[next(iter(self._orders))]
