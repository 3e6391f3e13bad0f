"""Long answers in pieces, which are sent one after another so that other requests are answered in between.

To join a hundred megabytes into one text, and to copy that to the socket, would block the process for a quarter of a
second.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

PIECE_BYTES = 256 * 1024
# Rows that are written between two turns of the event loop: about two milliseconds.
_ROWS_AT_ONCE = 200

_encode = msgspec.json.Encoder().encode
Row = TypeVar("Row")


class Pieces(Struct, frozen=True):
    """The body of an answer as pieces of JSON text, at least one."""

    of: tuple[bytes, ...]


def pieces_of(parts: Iterable[bytes], size: int = PIECE_BYTES) -> Pieces:
    """Join short parts to pieces of at least `size` bytes; only the last piece may be shorter."""
    return Pieces((*_joined(parts, size),))


def with_commas(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The parts with a comma between each two."""
    for number, part in enumerate(parts):
        if number:
            yield b","
        yield part


async def rows_in_turns(
    before: bytes, states: Sequence[Row], row: Callable[[Row], object], after: bytes
) -> Pieces:
    """Encode a list of any length as JSON between `before` and `after`. Other requests run while it is encoded."""
    texts = []
    for start in range(0, len(states), _ROWS_AT_ONCE):
        if start:
            await asyncio.sleep(0)
        texts.append(b",".join([_encode(row(state)) for state in states[start : start + _ROWS_AT_ONCE]]))
    return pieces_of((before, *with_commas(texts), after))


def _joined(parts: Iterable[bytes], size: int) -> Iterator[bytes]:
    some: list[bytes] = []
    length = 0
    for part in parts:
        some.append(part)
        length += len(part)
        if length >= size:
            yield b"".join(some)
            some, length = [], 0
    yield b"".join(some)
