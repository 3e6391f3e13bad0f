"""The proxy before RabbitMQ: after its close nothing of it is left, whatever was about to begin."""

import asyncio
from contextlib import suppress

import pytest

from tests.contracts.rabbitmq_under_test import Proxy

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("turns", range(8))
async def test_a_connection_that_is_accepted_while_the_proxy_closes_ends(turns: int) -> None:
    """So many turns of the event loop after the client has connected."""

    async def until_end(read: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await read.read()
        out.close()
        with suppress(ConnectionError):
            await out.wait_closed()

    async with await asyncio.start_server(until_end, "127.0.0.1", 0) as server:
        before = asyncio.all_tasks()
        proxy = Proxy(*server.sockets[0].getsockname())
        await proxy.start()
        _, client = await asyncio.open_connection("127.0.0.1", proxy.port)
        for _ in range(turns):
            await asyncio.sleep(0)

        await proxy.close()

        left = asyncio.all_tasks() - before
        client.close()
        with suppress(ConnectionError):
            await client.wait_closed()
        if left:
            await asyncio.wait(left)
        assert [each for each in left if "Proxy" in repr(each)] == []
