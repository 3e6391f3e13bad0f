"""The reader of a connection's socket: whose each frame is, in whatever pieces it arrives, and when reading rests."""

import asyncio

import pytest
from pamqp import commands
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.exceptions import UnmarshalingException
from pamqp.frame import FrameTypes, marshal, unmarshal
from pamqp.header import ContentHeader

from bus.broker import Receipt
from bus.message import Parcel
from bus.rabbit.channel import Channel, Listener, RabbitPublishing
from bus.rabbit.wire import (
    HEARTBEAT,
    QUICK_READS_MIN,
    REST_S,
    FrameReader,
)

pytestmark = pytest.mark.asyncio

OURS, THEIRS = 3, 0
BODY = bytes(range(256)) * 20
DELIVERED = (
    marshal(commands.Basic.Deliver("consumer", 7, False, "moor.api", "build.request.shop"), OURS)
    + marshal(ContentHeader(body_size=len(BODY)), OURS)
    + marshal(ContentBody(BODY[:3000]), OURS)
    + marshal(ContentBody(BODY[3000:]), OURS)
)
BLOCKED = marshal(commands.Connection.Blocked("memory"), THEIRS)


class Heard(Listener):
    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.confirmed: list[int | None] = []

    def on_content(self, method: Frame, header: ContentHeader, body: bytes) -> None:  # noqa: ARG002 - as the port has it
        self.bodies.append(body)

    def on_confirm(self, frame: commands.Basic.Ack | commands.Basic.Nack) -> None:
        self.confirmed.append(frame.delivery_tag)


class FakeSocket(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.pauses = 0
        self.is_paused = False
        self.is_closed = False

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        assert not self.is_closed
        self.pauses += 1
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


class NoWire:
    blocked = ""

    content_size_max = 100

    async def until_unblocked(self) -> None: ...

    def send(self, frames: bytes) -> None: ...

    def forget(self, number: int) -> None: ...


def reader_with(heard: Listener) -> tuple[FrameReader, FakeSocket]:
    reader, socket = FrameReader(), FakeSocket()
    reader.set_transport(socket)
    reader.channels[OURS] = Channel(NoWire(), OURS, heard)
    return reader, socket


async def read_by_library(reader: FrameReader) -> bytes:
    reader.feed_eof()
    return await reader.read()


def frames_in(data: bytes) -> list[FrameTypes]:
    found = []
    while data:
        size, _, frame = unmarshal(data)
        found.append(frame)
        data = data[size:]
    return found


@pytest.mark.parametrize("piece", [1, 2, 7, 8, 9, 100, 1_000, 4_096, 100_000])
async def test_frames_go_to_their_channel_and_the_rest_to_the_library_in_whatever_pieces_they_arrive(
    piece: int,
) -> None:
    heard = Heard()
    reader, _ = reader_with(heard)
    other = marshal(commands.Basic.Ack(5), OURS + 1)
    data = BLOCKED + DELIVERED + other + marshal(commands.Basic.Ack(9), OURS) + DELIVERED + BLOCKED

    for start in range(0, len(data), piece):
        reader.feed_data(data[start : start + piece])

    assert heard.bodies == [BODY, BODY]
    assert heard.confirmed == [9]
    # Frames of a closed channel go to the library, which drops them.
    assert (await read_by_library(reader)).replace(HEARTBEAT, b"") == BLOCKED + other + BLOCKED


STRANGE = {
    "another program's greeting": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "another version of AMQP": b"AMQP\x00\x01\x00\x00",
    "an unknown kind of frame": b"\x07" + marshal(commands.Basic.Ack(1), OURS)[1:],
    "a method that nobody knows": b"\x01\x00\x03\x00\x00\x00\x04\x00\xff\x00\xff\xce",
    "a method without its end": marshal(commands.Basic.Ack(1), OURS)[:-1] + b"\x00",
    "a body without its end": marshal(ContentBody(b"x" * 50), OURS)[:-1] + b"\x00",
    "a header that is cut off": b"\x02\x00\x03\x00\x00\x00\x03\x00\x3c\x00\xce",
}


@pytest.mark.parametrize("strange", STRANGE.values(), ids=STRANGE.keys())
@pytest.mark.parametrize("piece", [1, 11, 100_000])
async def test_from_what_cannot_be_read_on_the_library_reads_all_and_channels_get_nothing(
    strange: bytes, piece: int
) -> None:
    heard = Heard()
    reader, _ = reader_with(heard)
    data = DELIVERED + strange + DELIVERED

    for start in range(0, len(data), piece):
        reader.feed_data(data[start : start + piece])

    assert heard.bodies == [BODY]
    left = (await read_by_library(reader)).replace(HEARTBEAT, b"")
    assert left == strange + DELIVERED
    if strange[0] in (1, 2, 3):
        # That is an error to it, and ends the connection.
        with pytest.raises(UnmarshalingException):
            frames_in(left)


@pytest.mark.parametrize(
    ("frame", "receipt"),
    [
        (commands.Basic.Ack(3, multiple=True), Receipt.CONFIRMED),
        (commands.Basic.Nack(3, multiple=True), Receipt.REFUSED),
    ],
    ids=["confirmed", "refused"],
)
async def test_one_frame_answers_for_all_parcels_up_to_its_number(frame: Frame, receipt: Receipt) -> None:
    publishing = RabbitPublishing(NoWire(), "town")
    channel = publishing.channel = Channel(NoWire(), OURS, publishing)
    sent = [asyncio.create_task(publishing.publish(Parcel("e", "k", b"1"))) for _ in range(4)]
    await asyncio.sleep(0)

    channel.take(frame)
    channel.take(commands.Basic.Return())
    channel.take(ContentHeader(body_size=0, properties=commands.Basic.Properties(message_id="4")))
    channel.take(commands.Basic.Ack(4))

    assert await asyncio.gather(*sent) == [receipt, receipt, receipt, Receipt.UNROUTABLE]


def feed_until_paused(reader: FrameReader, socket: FakeSocket) -> None:
    """Messages that come quickly, one after the other. A machine that is busy elsewhere may make some of them slow."""
    for _ in range(100 * QUICK_READS_MIN):
        reader.feed_data(DELIVERED)
        if socket.is_paused:
            return
    raise AssertionError("reading never rests")


async def test_reading_rests_while_many_small_messages_come_and_then_goes_on() -> None:
    reader, socket = reader_with(Heard())

    feed_until_paused(reader, socket)
    await asyncio.sleep(3 * REST_S)

    assert socket.pauses == 1
    assert not socket.is_paused
