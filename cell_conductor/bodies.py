"""An instance as its row keeps it: whole, and nothing twice.

The host that has it and the alternates that are left are choices of the order, nearly always: they stand there, and here
only which of them. Written out a row would be twice as long, and PostgreSQL would spend more on squeezing such a row
into its page than on all the rest of the write.
"""

import msgspec
from msgspec import Struct, structs

from bus.messages.cell import Choice
from cell_conductor.core.instance import Instance, Pending

# A choice of the order by its number, the chosen one being the first; or what is none of them.
Place = int | Choice


class Body(Struct, array_like=True, gc=False):
    instance: Instance
    host: Place | None
    alternates: tuple[Place, ...]


_encode = msgspec.msgpack.Encoder(uuid_format="bytes").encode
_body_of = msgspec.msgpack.Decoder(Body).decode
outbox_of = msgspec.msgpack.Decoder(tuple[Pending, ...]).decode


def encoded(row: Instance) -> tuple[bytes, bytes | None]:
    """Its body, and what it has to say if it has."""
    choices = _choices(row)
    host = None if row.host is None else _place(choices, row.host)
    body = Body(
        structs.replace(row, host=None, alternates=(), outbox=()),
        host,
        tuple([_place(choices, each) for each in row.alternates]),
    )
    return _encode(body), encoded_outbox(row.outbox)


def encoded_outbox(outbox: tuple[Pending, ...]) -> bytes | None:
    return _encode(outbox) if outbox else None


def decoded(body: bytes, outbox: bytes | None) -> Instance:
    kept = _body_of(body)
    choices = _choices(kept.instance)
    return structs.replace(
        kept.instance,
        host=None if kept.host is None else _choice(choices, kept.host),
        alternates=tuple([_choice(choices, each) for each in kept.alternates]),
        outbox=outbox_of(outbox) if outbox else (),
    )


def _choices(row: Instance) -> tuple[Choice, ...]:
    return () if row.order is None else (row.order.chosen, *row.order.alternates)


def _place(choices: tuple[Choice, ...], choice: Choice) -> Place:
    for number, each in enumerate(choices):
        # Taken from there, so nearly always the very same.
        if each is choice or each == choice:
            return number
    return choice


def _choice(choices: tuple[Choice, ...], place: Place) -> Choice:
    return choices[place] if isinstance(place, int) else place
