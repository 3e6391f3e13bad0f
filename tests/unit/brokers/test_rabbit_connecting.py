"""The RabbitMQ client without a RabbitMQ: these cases need no server."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from pamqp import commands, frame

from bus.rabbit import RabbitBroker
from bus.settings import BusSettings
from bus.workers.sending import Link
from kit.errors import ConnectionLost

OPENING = (
    commands.Connection.Start(
        mechanisms="PLAIN",
        locales="en_US",
        server_properties={"capabilities": {"publisher_confirms": True, "basic.nack": True}},
    ),
    commands.Connection.Tune(channel_max=10, frame_max=131072, heartbeat=0),
    commands.Connection.OpenOk(),
)


async def open_virtual_host(read: asyncio.StreamReader, out: asyncio.StreamWriter) -> bytes:
    """Returns what the client said."""
    said = await read.readexactly(len(b"AMQP0091"))
    for answer, frames in zip(OPENING, (1, 2, 0), strict=True):
        out.write(frame.marshal(answer, 0))
        for _ in range(frames):
            head = await read.readexactly(7)
            said += await read.readexactly(int.from_bytes(head[3:]) + len(b"\xce"))
    return said


class FakeNode:
    """A node that takes connections, or refuses them as a node that pauses does: it closes them before it answers."""

    def __init__(self) -> None:
        self.refuses = False
        self.connections = 0
        self.heard = b""
        self._open: list[asyncio.StreamWriter] = []

    async def serve(self, read: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        if self.refuses:
            out.close()
            return
        self.connections += 1
        self._open.append(out)
        self.heard = await open_virtual_host(read, out)
        # Until the other end closes.
        while await read.read(1000):
            pass
        out.close()

    def force(self) -> None:
        """End all connections as a node does that stops."""
        closing = commands.Connection.Close(
            reply_code=320,
            reply_text="CONNECTION_FORCED - broker forced connection closure",
            class_id=0,
            method_id=0,
        )
        for out in self._open:
            out.write(frame.marshal(closing, 0))
        self._open.clear()


@asynccontextmanager
async def three_nodes() -> AsyncIterator[tuple[str, list[FakeNode]]]:
    """The nodes, and a URL that names them in this order."""
    nodes = [FakeNode() for _ in range(3)]
    async with AsyncExitStack() as stack:
        doors = [
            await stack.enter_async_context(await asyncio.start_server(node.serve, "127.0.0.1", 0))
            for node in nodes
        ]
        ports = [door.sockets[0].getsockname()[1] for door in doors]
        yield f"amqp://guest:guest@{','.join(f'127.0.0.1:{port}' for port in ports)}/?heartbeat=0", nodes


async def test_a_node_that_refuses_is_passed_over_and_tried_last_from_then_on() -> None:
    async with three_nodes() as (url, (first, second, third)):
        broker = RabbitBroker(url, first=0)
        first.refuses = True
        connections = [await broker.connect()]
        first.refuses = False
        connections.append(await broker.connect())
        counts = [node.connections for node in (first, second, third)]
        for connection in connections:
            await connection.close()

    assert counts == [0, 2, 0]


async def forced(link: Link, node: FakeNode) -> None:
    """The node ends the connection while a question about a queue is under way."""
    async with link.opened() as connection:
        node.force()
        async with asyncio.timeout(30):
            await connection.depth("any")


async def test_a_connection_that_a_node_forces_to_close_is_followed_by_one_to_the_next_node() -> None:
    async with three_nodes() as (url, (first, second, third)):
        link = Link(RabbitBroker(url, first=1), BusSettings())
        for node, following in ((second, third), (third, first), (first, second)):
            with pytest.raises(ConnectionLost, match="CONNECTION_FORCED"):
                await forced(link, node)
            before = following.connections
            async with link.opened():
                assert following.connections == before + 1
        await link.close()

    assert link.connections_made == 4
    assert link.status.failures == 0


async def test_a_node_that_takes_connections_and_answers_nothing_is_left_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bus.rabbit.connection.ANSWER_S_MAX", 0.1)
    async with three_nodes() as (url, nodes):
        link = Link(RabbitBroker(url, first=0), BusSettings())
        for _ in nodes:
            with pytest.raises(ConnectionLost, match=r"did not answer within 0.1 s"):
                await asked(link)
        await link.close()

    assert [node.connections for node in nodes] == [1, 1, 1]


async def asked(link: Link) -> None:
    async with link.opened() as connection, asyncio.timeout(30):
        await connection.depth("any")


async def test_a_password_that_was_changed_in_its_file_counts_at_the_next_connection(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.touch(0o600)
    async with three_nodes() as (url, (node, *_)):
        broker = RabbitBroker(f"{url.replace(':guest', '')}&passwordfile={file}", first=0)
        for password in ("first", "second"):
            file.write_text(password)
            await (await broker.connect()).close()
            assert b"\0guest\0" + password.encode() in node.heard


async def test_one_error_names_all_nodes_if_none_takes_a_connection() -> None:
    async with three_nodes() as (url, nodes):
        for node in nodes:
            node.refuses = True
        with pytest.raises(ConnectionLost, match="none of 3 nodes takes a connection: ") as told:
            await RabbitBroker(url).connect()

    assert all(f"127.0.0.1:{port}" in str(told.value) for port in re.findall(r"127.0.0.1:(\d+)", url))
    assert "guest:guest" not in str(told.value)


@pytest.mark.parametrize("turns", range(6))
async def test_a_connect_that_is_cancelled_leaves_no_connection(turns: int) -> None:
    """So many turns of the event loop after the broker has opened the virtual host."""
    opened, ended = asyncio.Event(), asyncio.Event()

    async def broker(read: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        await open_virtual_host(read, out)
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
