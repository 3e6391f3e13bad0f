"""Within a process a reader gets the message that was written, beside its bytes."""

import asyncio
import tempfile
from pathlib import Path
from uuid import UUID

import pytest

from bus.broker import Parcel
from bus.codec import CODEC
from bus.memory import MemoryBroker
from bus.message import Envelope, Message
from bus.messages.build import BuildInstance, RequestId
from bus.topology import objects_of
from bus.unix_socket.client import UnixBroker
from bus.unix_socket.server import serve_unix
from tests.contracts.stage import CELLS, WORK, order, station

pytestmark = pytest.mark.asyncio

PATIENCE_S = 60
BUILD = BuildInstance(request_id=RequestId(UUID(int=1)))


async def arriving(memory: MemoryBroker, message: Message, queue: str) -> Parcel:
    """This message, as its parcel reaches a consumer of the queue."""
    broker = memory.as_user()
    connection = await broker.connect()
    await connection.declare(objects_of(CELLS))
    consuming = await connection.open_consuming(queue, 1)
    async with station(broker) as client:
        await client.publisher.send(message)
        async with asyncio.timeout(PATIENCE_S):
            (delivery,) = await consuming.receive()
    await connection.close()
    return delivery.parcel


async def test_a_reader_in_the_process_has_the_message_beside_its_bytes() -> None:
    message = order(7)

    parcel = await arriving(MemoryBroker(), message, WORK)

    assert parcel.envelopes[0].message is message
    assert CODEC.decode(parcel.body) == parcel.envelopes[0]


async def test_messages_that_people_may_write_are_read_from_their_bytes() -> None:
    parcel = await arriving(MemoryBroker(), BUILD, "scheduler.requests")

    assert parcel.envelopes == ()
    read = CODEC.decode(parcel.body)
    assert isinstance(read, Envelope)
    assert read.message == BUILD


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
