"""The socket's file: private, replaced when it was left behind, never taken from a process that uses it."""

import asyncio
import stat
import struct
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bus.broker import Receipt
from bus.memory import MemoryBroker
from bus.message import Parcel
from bus.topology import API, Binding, Exchange, Objects, Queue, QueueKind, user_of
from bus.unix_socket.client import UnixBroker
from bus.unix_socket.frames import (
    CONNECTION,
    FRAME_BYTES_MAX,
    NO_ANSWER,
    BlockedChanged,
    Delivered,
    RequestDone,
    decode_reply,
    frame_of,
    read_frame,
    request_for,
)
from bus.unix_socket.server import REQUESTS_UNDER_WAY_MAX, SocketTakenError, serve_unix
from kit.errors import AccessRefused, ConnectionLost, Refusal
from tests.contracts.memory_under_test import topology_rights
from tests.held_time import held_time
from tests.waiting import PATIENCE_S

# ruff: noqa: ASYNC240 - a look at a file of ours keeps no loop waiting


@pytest.fixture
def socket_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="moor-") as directory:
        yield Path(directory) / "bus.sock"


async def test_only_its_owner_may_use_the_socket(socket_path: Path) -> None:
    async with serve_unix(MemoryBroker(), socket_path):
        mode = socket_path.stat().st_mode

    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    assert not socket_path.exists()


async def test_a_client_has_the_rights_of_the_user_that_it_names(socket_path: Path) -> None:
    conductor = user_of("conductor", "c1")
    async with serve_unix(MemoryBroker([topology_rights(conductor, ("c1",))]), socket_path):
        connection = await UnixBroker(socket_path, conductor).connect()
        with pytest.raises(AccessRefused):
            await (await connection.open_publishing()).publish(Parcel(API, "host.set", b"{}"))
        await connection.close()


async def test_a_socket_in_use_is_left_to_its_server(socket_path: Path) -> None:
    async with serve_unix(MemoryBroker(), socket_path):
        with pytest.raises(SocketTakenError, match="served by another process"):
            async with serve_unix(MemoryBroker(), socket_path):
                pass

        await (await UnixBroker(socket_path).connect()).close()


async def test_a_file_that_is_no_socket_is_left_alone(socket_path: Path) -> None:
    socket_path.write_text("precious")

    with pytest.raises(SocketTakenError, match="is not a socket"):
        async with serve_unix(MemoryBroker(), socket_path):
            pass

    assert socket_path.read_text() == "precious"


@pytest.mark.hits("disconnecting a client that sent an invalid request: %s")
@pytest.mark.parametrize(
    "noise",
    [
        struct.pack(">I", FRAME_BYTES_MAX + 1),
        struct.pack(">I", 5) + b"noise",
        struct.pack(">I", 9) + b"\x95\xa3ack\x00\x01\x01\xc3",
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">I", 10) + b"\x93\xa5hello\x01\xa1\xff",
        struct.pack(">I", 50_008) + b"\x93\xa5hello\x01" + b"\x91" * 50_000,
        struct.pack(">I", 8) + b"\x93\xa5hello\x01",
    ],
    ids=["too long", "no request", "no hello", "another protocol", "no text", "too deep", "cut off"],
)
async def test_invalid_bytes_end_their_connection_and_no_other(socket_path: Path, noise: bytes) -> None:
    async with serve_unix(MemoryBroker(), socket_path):
        bystander = await UnixBroker(socket_path).connect()
        reader, writer = await asyncio.open_unix_connection(socket_path)
        writer.write(noise)

        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
        writer.close()

        await bystander.declare(Objects())


async def test_an_oversized_message_is_refused_before_it_is_sent(socket_path: Path) -> None:
    async with serve_unix(MemoryBroker(), socket_path):
        connection = await UnixBroker(socket_path).connect()
        await connection.declare(Objects((Exchange("moor.town"),)))
        publishing = await connection.open_publishing()

        with pytest.raises(Refusal, match=f"at most {FRAME_BYTES_MAX}"):
            await publishing.publish(Parcel("moor.town", "", b"x" * FRAME_BYTES_MAX))

        await publishing.publish(Parcel("moor.town", "", b"fits"))


async def test_parcels_of_a_vanished_client_go_to_another(socket_path: Path) -> None:
    work = Queue("work", QueueKind.WORK, (Binding("moor.town", "work"),))
    async with serve_unix(MemoryBroker(), socket_path):
        staying, vanishing = await UnixBroker(socket_path).connect(), await UnixBroker(socket_path).connect()
        await staying.declare(Objects((Exchange("moor.town"),), (work,)))
        held = await vanishing.open_consuming("work", prefetch=1)
        await (await staying.open_publishing()).publish(Parcel("moor.town", "work", b"{}"))
        consuming = await staying.open_consuming("work", prefetch=1)
        async with asyncio.timeout(PATIENCE_S):
            await held.receive()

            vanishing.cut("as if its process had been killed: no goodbye")

            (delivery,) = await consuming.receive()
        assert delivery.returns == 1


async def test_a_broker_that_sends_nothing_is_lost_and_not_waited_for(socket_path: Path) -> None:
    over = asyncio.Event()

    async def say_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    async with await asyncio.start_unix_server(say_nothing, socket_path):
        with pytest.raises(ConnectionLost, match=r"no answer within 0\.05 s"):
            await UnixBroker(socket_path, answer_s_max=0.05).connect()
        over.set()


async def test_a_broker_with_an_alarm_is_waited_for(socket_path: Path) -> None:
    memory = MemoryBroker()
    async with serve_unix(memory, socket_path):
        with held_time() as time:
            connection = await UnixBroker(socket_path, answer_s_max=0.02).connect()
            await connection.declare(
                Objects((Exchange("x"),), (Queue("q", QueueKind.WORK, (Binding("x", "#"),)),))
            )
            publishing = await connection.open_publishing()
            memory.block("low on memory")
            sent = asyncio.create_task(publishing.publish(Parcel("x", "k", b"1")))
            while not connection.blocked:
                await asyncio.sleep(0)
            late = await UnixBroker(socket_path).connect()
            assert late.blocked == "low on memory"
            await late.close()
            # On a connection that publishes, a broker with an alarm reads nothing else either.
            asking = asyncio.create_task(connection.depth("q"))
            await time.pass_s(0.1)
            assert not asking.done()
            memory.block("")
            assert await asking == 1
            assert await sent is Receipt.CONFIRMED
            await connection.close()


async def test_what_a_client_acknowledged_before_it_left_is_done(socket_path: Path) -> None:
    """Also if the server reads it and the end of the stream in one go, after an alarm."""
    memory, count = MemoryBroker(), REQUESTS_UNDER_WAY_MAX
    work = Queue("work", QueueKind.WORK, (Binding("moor.town", "work"),))
    one = Parcel("moor.town", "work", b"1")
    async with serve_unix(memory, socket_path), asyncio.timeout(PATIENCE_S):
        staying = await UnixBroker(socket_path).connect()
        await staying.declare(Objects((Exchange("moor.town"),), (work,)))
        await (await staying.open_publishing()).publish(one)
        reader, writer = await asyncio.open_unix_connection(socket_path)
        for request in (
            request_for("hello", 1, CONNECTION, {"user": ""}),
            request_for("open_publishing", 2, 1, {}),
            request_for("open_consuming", 3, 2, {"queue": "work", "prefetch": 1}),
        ):
            writer.write(frame_of(request))
        while not isinstance(reply := decode_reply(await read_frame(reader)), Delivered):
            pass
        memory.block("low on memory")
        for number in range(count):
            writer.write(frame_of(request_for("publish", 4 + number, 1, {"parcel": one})))
        done = {"tag": reply.delivery.tag, "multiple": False}
        writer.write(frame_of(request_for("acknowledge", NO_ANSWER, 2, done)))
        writer.write_eof()
        await staying.depth("work")

        memory.block("")

        await reader.read()
        assert await staying.depth("work") == count
        writer.close()


async def test_an_alarm_that_begins_or_ends_while_a_client_connects_is_as_it_was_told_last(
    socket_path: Path,
) -> None:
    """Its server may tell so in the same chunk as the answer to the first request."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        before, after = told.pop()
        writer.write(frame_of(RequestDone(NO_ANSWER + 1, before)) + frame_of(BlockedChanged(after)))
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        left.release()

    told, left = [("", "low on memory"), ("low on memory", "")], asyncio.Semaphore(0)
    async with await asyncio.start_unix_server(answer, socket_path), asyncio.timeout(PATIENCE_S):
        for why in ("", "low on memory"):
            connection = await UnixBroker(socket_path).connect()
            await asyncio.sleep(0)
            assert connection.blocked == why
            connection.cut("the test is over")
            await left.acquire()
