"""The RabbitMQ client without a RabbitMQ: these cases need no server."""

import asyncio

import pytest
from pamqp import commands, frame

from bus.broker import ConnectionLost
from bus.rabbit import RabbitBroker

pytestmark = pytest.mark.asyncio

OPENING = (
    commands.Connection.Start(mechanisms="PLAIN", locales="en_US"),
    commands.Connection.Tune(channel_max=10, frame_max=131072, heartbeat=0),
    commands.Connection.OpenOk(),
)
GREETING = frame.marshal(OPENING[0], 0)


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


@pytest.mark.parametrize("turns", range(6))
async def test_a_connect_that_is_cancelled_leaves_no_connection(turns: int) -> None:
    """So many turns of the event loop after the broker has opened the virtual host."""
    opened, ended = asyncio.Event(), asyncio.Event()

    async def broker(read: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        await read.readexactly(len(b"AMQP0091"))
        for answer, frames in zip(OPENING, (1, 2, 0), strict=True):
            out.write(frame.marshal(answer, 0))
            for _ in range(frames):
                head = await read.readexactly(7)
                await read.readexactly(int.from_bytes(head[3:]) + len(b"\xce"))
        opened.set()
        # The end, or a goodbye.
        await read.read(1)
        out.close()
        ended.set()

    async with await asyncio.start_server(broker, "127.0.0.1", 0) as door:
        port = door.sockets[0].getsockname()[1]
        connecting = asyncio.create_task(
            RabbitBroker(f"amqp://guest:guest@127.0.0.1:{port}/?heartbeat=0").connect()
        )
        await opened.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        connecting.cancel()
        (result,) = await asyncio.gather(connecting, return_exceptions=True)
        if not isinstance(result, BaseException):
            await result.close()
        async with asyncio.timeout(30):
            await ended.wait()
