"""Ids for the requests that we make ourselves."""

import os
import time
from uuid import UUID

from msgspec import convert

from bus.messages.build import RequestId

_UUID7 = 0x7 << 76 | 0b10 << 62
_RANDOM_BITS = (1 << 76) - 1 & ~(0b11 << 62)


def new_request_ids(count: int) -> list[RequestId]:
    """Make new request ids, as uuid7: 48 bits are the time in milliseconds, and 74 are random.

    So the ids of one time begin alike, and databases store their rows together.
    """
    since = time.time_ns() // 1_000_000 << 80 | _UUID7
    chance = os.urandom(10 * count)
    # Half as dear as UUID(int=...).
    return [
        RequestId(
            convert((since | int.from_bytes(chance[place : place + 10]) & _RANDOM_BITS).to_bytes(16), UUID)
        )
        for place in range(0, len(chance), 10)
    ]
