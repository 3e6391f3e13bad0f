"""Bytes that RabbitMQ passes on, and that the library's decoders could not read."""

import struct
import time
from typing import cast

import pamqp.frame
import pytest
from aiormq.abc import AbstractChannel, DeliveredMessage
from pamqp import commands
from pamqp.header import ContentHeader

from bus.rabbit.parcels import delivery_of
from bus.rabbit.undocumented import decode_leniently, table
from tests.narrowing import must_be

decode_leniently()

NO_CHANNEL = cast("AbstractChannel", None)
CONTENT_TYPE, HEADERS, REPLY_TO, TIMESTAMP, USER = 1 << 15, 1 << 13, 1 << 9, 1 << 6, 1 << 4


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce"


def short(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def long(kind: bytes, value: bytes) -> bytes:
    return kind + struct.pack(">I", len(value)) + value


def header_of(flags: int, *properties: bytes) -> ContentHeader:
    payload = struct.pack(">HHQH", 60, 0, 0, flags) + b"".join(properties)
    return must_be(ContentHeader, pamqp.frame.unmarshal(frame(2, payload))[2])


def deliver(
    exchange: bytes = b"e", key: bytes = b"k", *, redelivered: bool = False
) -> commands.Basic.Deliver:
    """The bytes of a delivery, with its class and method."""
    payload = struct.pack(">HH", 60, 60) + short(b"tag") + struct.pack(">QB", 7, redelivered)
    return must_be(
        commands.Basic.Deliver, pamqp.frame.unmarshal(frame(1, payload + short(exchange) + short(key)))[2]
    )


def nested(depth: int) -> bytes:
    inner = b""
    for _ in range(depth):
        inner = short(b"a") + long(b"F", inner)
    return struct.pack(">I", len(inner)) + inner


@pytest.mark.parametrize("data", [b"", b"\0\0", b"\0\0\0\x09\x01a", b"\0\0\0\x03\x01aS", b"\0\0\0\x03\x01a?"])
def test_a_table_that_is_cut_off_is_an_error_of_the_connection(data: bytes) -> None:
    with pytest.raises(ValueError, match="table"):
        table(data)


def test_decoding_takes_time_linear_in_the_bytes() -> None:
    for entries in (nested(15_000), _many(12_000)):
        begun = time.process_time()
        table(entries)
        # The library's decoder took quadratic time (seconds), or exhausted the stack.
        assert time.process_time() - begun < 2


def _many(count: int) -> bytes:
    entries = b"".join(short(b"%05d" % n) + b"t\x01" for n in range(count))
    return struct.pack(">I", len(entries)) + entries


def test_a_delivery_is_read_whatever_its_sender_wrote_around_it() -> None:
    header = header_of(
        CONTENT_TYPE | HEADERS | REPLY_TO | TIMESTAMP | USER,
        short(b"\xff" * 255),
        nested(2_000),
        short(b"answers.\xed\xa0\x80"),
        b"\xff" * 8,
        short(b"moor-client"),
    )

    delivery = delivery_of("q", DeliveredMessage(deliver(b"e", b"\xff" * 255), header, b"body", NO_CHANNEL))

    assert (delivery.tag, delivery.sender, delivery.parcel.headers) == (7, "moor-client", {})
    assert delivery.parcel.routing_key == "\\xff" * 255
    assert delivery.parcel.reply_to == r"answers.\xed\xa0\x80"
