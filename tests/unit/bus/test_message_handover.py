"""Within a process a reader gets the message that was written, beside its bytes."""

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from bus import codec
from bus.codec import CODEC
from bus.memory import MemoryBroker, journaled_broker
from bus.message import Envelope, Message, Parcel
from bus.messages.build import BuildInstance
from bus.topology import objects_of
from bus.unix_socket.client import UnixBroker
from bus.unix_socket.server import serve_unix
from bus.workers.publisher import Outgoing
from engine.flavors import RequestId
from tests.contracts.stage import (
    CELLS,
    SETTINGS,
    WORK,
    Remembering,
    order,
    station,
    until,
    until_empty,
    working,
)
from tests.varied import varied

if TYPE_CHECKING:
    from bus.broker import Delivery

pytestmark = pytest.mark.asyncio

PATIENCE_S = 60
BUILD = BuildInstance(request_id=RequestId(UUID(int=1)))


async def arriving(memory: MemoryBroker, message: Message, queue: str) -> Parcel:
    """This message, as its parcel reaches a consumer of the queue."""
    broker = memory.as_user()
    connection = await broker.connect()
    await connection.declare(objects_of(CELLS))
    consuming = await connection.open_consuming(queue, 2)
    async with station(broker) as client:
        # With the first one, the channel is opened.
        await client.publisher.send_all([Outgoing(message)])
        await client.publisher.send_all([Outgoing(message)])
        deliveries: list[Delivery] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(deliveries) < 2:
                deliveries += await consuming.receive()
    await connection.close()
    return deliveries[1].parcel


async def test_a_reader_in_the_process_has_the_message_and_its_bytes_are_made_when_they_are_needed() -> None:
    message = order(7)

    parcel = await arriving(MemoryBroker(), message, WORK)

    assert parcel.envelopes[0].message is message
    assert parcel.encoded is None
    assert CODEC.decode(parcel.body) == parcel.envelopes[0]
    assert parcel.encoded is parcel.body


async def test_messages_that_people_may_write_are_read_from_their_bytes() -> None:
    parcel = await arriving(MemoryBroker(), BUILD, "scheduler.requests")

    assert parcel.envelopes == ()
    read = CODEC.decode(parcel.body)
    assert isinstance(read, Envelope)
    assert read.message == BUILD


async def test_a_journal_gets_bytes() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="moor-") as directory,
        journaled_broker(Path(directory) / "bus.journal") as memory,
    ):
        parcel = await arriving(memory, order(7), WORK)

    assert parcel.encoded is not None
    assert CODEC.decode(parcel.encoded) == parcel.envelopes[0]


async def test_messages_that_come_back_are_handled_though_together_they_are_too_large_for_a_parcel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codec, "PARCEL_BYTES_MAX", 1000)
    settings = varied(SETTINGS, PARCEL_BYTES_MAX=1000)
    broker = MemoryBroker().as_user()
    lost = await broker.connect()
    await lost.declare(objects_of(CELLS))
    consuming = await lost.open_consuming(WORK, 10)
    async with station(broker, settings=settings) as client:
        # With the first one, the channel is opened.
        await client.publisher.send(order(0))
        await client.publisher.send_all([Outgoing(order(number)) for number in range(1, 50)])
        async with asyncio.timeout(PATIENCE_S):
            sizes = [len(each.parcel.envelopes) for each in await consuming.receive()]
        await lost.close()
        memory = Remembering()
        async with working(broker, memory, settings=settings):
            await until(lambda: len(memory.handled) == 50)

    assert sizes == [1, 49]
    assert sorted(memory.handled) == [*range(50)]
    await until_empty(broker)


async def test_a_client_on_a_socket_gets_bytes() -> None:
    memory = MemoryBroker()
    with tempfile.TemporaryDirectory(prefix="moor-") as directory:
        async with serve_unix(memory, Path(directory) / "bus.sock"):
            there = await UnixBroker(Path(directory) / "bus.sock").connect()
            await there.declare(objects_of(CELLS))
            consuming = await there.open_consuming(WORK, 1)
            async with station(memory.as_user()) as client:
                await client.publisher.send(order(7))
                async with asyncio.timeout(PATIENCE_S):
                    (delivery,) = await consuming.receive()
            await there.close()

    assert delivery.parcel.envelopes == ()
    read = CODEC.decode(delivery.parcel.body)
    assert isinstance(read, Envelope)
    assert read.message == order(7)
