"""The RabbitMQ client without a RabbitMQ: these cases need no server."""

import asyncio

import pytest
from pamqp import commands, frame

from bus.broker import ConnectionLost
from bus.rabbit import RabbitBroker

pytestmark = pytest.mark.asyncio

GREETING = frame.marshal(commands.Connection.Start(mechanisms="PLAIN", locales="en_US"), 0)


@pytest.mark.parametrize("said", [b"", GREETING], ids=["silent", "after the greeting"])
async def test_a_connection_closed_before_the_handshake_is_lost(said: bytes) -> None:
    """As a proxy whose broker is down: it accepts the connection and closes it."""

    async def hang_up(_: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        out.write(said)
        out.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as door:
        port = door.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionLost):
            await RabbitBroker(f"amqp://guest:guest@127.0.0.1:{port}/").connect()
