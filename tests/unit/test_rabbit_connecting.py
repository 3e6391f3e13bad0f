"""What a RabbitMQ client meets where there is no RabbitMQ: it needs none to be seen."""

import asyncio

import pytest
from pamqp import commands, frame

from bus.broker import ConnectionLost
from bus.rabbit import RabbitBroker

pytestmark = pytest.mark.asyncio

GREETING = frame.marshal(commands.Connection.Start(mechanisms="PLAIN", locales="en_US"), 0)


@pytest.mark.parametrize("said", [b"", GREETING], ids=["silent", "after the greeting"])
async def test_who_is_hung_up_on_at_the_door_is_told_that_the_connection_is_lost(said: bytes) -> None:
    """As a proxy does whose broker is away: it takes the connection, and is gone."""

    async def hang_up(_: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        out.write(said)
        out.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as door:
        port = door.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionLost):
            await RabbitBroker(f"amqp://guest:guest@127.0.0.1:{port}/").connect()
