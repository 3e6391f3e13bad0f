"""Unused connections: each of them is closed in time, and there are never too many."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from placement_worker.api.auth.no_authentication import NoAuthentication
from placement_worker.api.grammar.routing import HttpRoute
from placement_worker.api.http.app import PlacementApp
from placement_worker.api.http.connections import Closed, Connections
from placement_worker.api.http.server import HttpServer
from placement_worker.api.policy import policy_named
from placement_worker.api.settings import ApiSettings
from placement_worker.api.values.request import Reply, Request
from tests.api.asking_app import LIST, ROUTES
from tests.api.test_server import ANY_PORT
from tests.held_time import held_time

PATIENCE_S = 60
LONG_S = 600.0
ASK = b"GET /things HTTP/1.1\r\n\r\n"


class Slow:
    """A route that answers only when the test says so."""

    def __init__(self) -> None:
        self.under_way = 0
        self.may_answer = asyncio.Event()

    async def show(self, _: Request) -> Reply:
        self.under_way += 1
        await self.may_answer.wait()
        return Reply(body={})


class Served:
    def __init__(self, server: HttpServer, connections: Connections, slow: Slow) -> None:
        self.server = server
        self.connections = connections
        self.slow = slow
        self._clients: list[Client] = []

    async def opened(self) -> "Client":
        listen = self.server.listen
        client = Client(*await asyncio.open_connection(listen.host, listen.port))
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.writer.close()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, text: bytes = ASK) -> int:
        """The status of the answer, which is read completely; the connection stays open."""
        self.writer.write(text)
        head = await self.reader.readuntil(b"\r\n\r\n")
        (length,) = [line for line in head.split(b"\r\n") if line.startswith(b"content-length: ")]
        await self.reader.readexactly(int(length.split()[1]))
        return int(head.split()[1])

    async def rest(self) -> bytes:
        """All bytes until the server closes."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.read()


@asynccontextmanager
async def serving(**limits: float) -> AsyncIterator[Served]:
    settings = ApiSettings(**{"idle_s_max": LONG_S, "head_s_max": LONG_S, **limits})  # type: ignore[arg-type]
    slow, connections = Slow(), Connections(settings)
    routes = (*ROUTES, HttpRoute("GET", "/slow", slow.show, LIST), HttpRoute("GET", "/large", large, LIST))
    routes = (*routes, HttpRoute("GET", "/medium", medium, LIST))
    app = PlacementApp(routes, NoAuthentication(), policy_named("legacy"), settings, connections)
    server = HttpServer(app, ANY_PORT, settings, connections=connections)
    running = asyncio.create_task(server.run())
    served = Served(server, connections, slow)
    try:
        yield served
    finally:
        served.close()
        slow.may_answer.set()
        await server.stop()
        await running


async def large(_: Request) -> Reply:
    return Reply(body="x" * 32_000_000)


async def medium(_: Request) -> Reply:
    return Reply(body="x" * 50_000)


async def until_closed(connections: Connections, why: Closed, count: int = 1) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while connections.closed[why] < count:
            await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_a_connection_that_was_used_and_is_idle_is_closed() -> None:
    async with serving(idle_s_max=0.05) as here:
        client = await here.opened()
        assert await client.ask() == 200
        assert await client.rest() == b""


@pytest.mark.asyncio
async def test_how_long_a_connection_is_kept_idle_is_what_the_settings_say() -> None:
    """The second connection, which never sends a request, is closed later, but before uvicorn's own five seconds."""
    async with serving(idle_s_max=0.05, head_s_max=1.0) as here:
        with held_time() as time:
            used, silent = await here.opened(), await here.opened()
            assert await used.ask() == 200
            closing = asyncio.create_task(silent.rest())
            assert await time.until(used.rest()) == b""
            assert not closing.done()
            assert await time.until(closing) == b""


def test_a_connection_is_kept_idle_for_five_seconds() -> None:
    assert ApiSettings().idle_s_max == 5


@pytest.mark.asyncio
async def test_empty_lines_do_not_keep_an_idle_connection_open() -> None:
    async with serving(idle_s_max=0.05) as here:
        with held_time() as time:
            client = await here.opened()
            assert await client.ask() == 200
            client.writer.write(b"\r\n")
            assert await time.until(client.rest()) == b""


@pytest.mark.asyncio
async def test_a_head_that_does_not_come_to_its_end_is_refused() -> None:
    async with serving(head_s_max=0.05) as here:
        with held_time() as time:
            client = await here.opened()
            client.writer.write(b"GET /things HTTP/1.1\r\nx-slow: a")
            assert (await time.until(client.rest())).startswith(b"HTTP/1.1 408 Request Timeout\r\n")
            assert here.connections.closed[Closed.HEAD_LATE] == 1


@pytest.mark.asyncio
async def test_a_byte_now_and_then_does_not_put_the_deadline_of_a_head_off() -> None:
    async with serving(head_s_max=0.2) as here:
        with held_time() as time:
            client = await here.opened()

            async def trickle() -> None:
                client.writer.write(b"GET /things HTTP/1.1\r\nx-slow: ")
                while True:
                    client.writer.write(b"a")
                    for _ in range(10):
                        await asyncio.sleep(0)

            trickling = asyncio.create_task(trickle())
            assert await time.until(client.reader.readline()) == b"HTTP/1.1 408 Request Timeout\r\n"
            trickling.cancel()


@pytest.mark.asyncio
async def test_headers_are_counted_anew_for_each_request_on_a_connection() -> None:
    async with serving(headers_bytes_max=100) as here:
        client = await here.opened()
        for _ in range(3):
            assert await client.ask(b"GET /things HTTP/1.1\r\nx-a: " + b"a" * 60 + b"\r\n\r\n") == 200


@pytest.mark.asyncio
async def test_the_second_head_on_a_connection_has_its_deadline_too() -> None:
    async with serving(head_s_max=0.05) as here:
        with held_time() as time:
            client = await here.opened()
            assert await client.ask() == 200
            client.writer.write(b"G")
            assert (await time.until(client.rest())).startswith(b"HTTP/1.1 408 ")


@pytest.mark.asyncio
async def test_a_connection_on_which_nothing_ever_comes_is_closed() -> None:
    async with serving(head_s_max=0.05) as here:
        client = await here.opened()
        assert await client.rest() == b""


@pytest.mark.asyncio
async def test_the_rest_of_a_body_that_nobody_reads_does_not_keep_a_connection_open() -> None:
    async with serving(head_s_max=0.05) as here:
        with held_time() as time:
            client = await here.opened()
            post = b"POST /nowhere HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
            assert await client.ask(post) == 404
            client.writer.write(b"{")
            assert await time.until(client.rest()) == b""
            assert here.connections.closed[Closed.HEAD_LATE] == 1


@pytest.mark.asyncio
async def test_a_connection_whose_refused_body_came_late_and_whole_is_used_again() -> None:
    async with serving() as here:
        client = await here.opened()
        post = b"POST /nowhere HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 4\r\n\r\n"
        assert await client.ask(post) == 404
        client.writer.write(b"null")
        assert await client.ask() == 200


@pytest.mark.asyncio
async def test_a_connection_whose_refused_body_came_late_and_whole_is_idle_from_then_on() -> None:
    async with serving(idle_s_max=0.2) as here:
        with held_time() as time:
            client = await here.opened()
            post = b"POST /nowhere HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 4\r\n\r\n"
            assert await client.ask(post) == 404
            client.writer.write(b"n")
            # The server reads it in these turns of the loop.
            for _ in range(10):
                await asyncio.sleep(0)
            client.writer.write(b"ull")
            assert await time.until(client.rest()) == b""


@pytest.mark.asyncio
async def test_a_client_that_does_not_read_its_answer_is_cut_off() -> None:
    async with serving(answer_s_max=0.05) as here:
        listen = here.server.listen
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((listen.host, listen.port))
            client.sendall(b"GET /large HTTP/1.1\r\n\r\n")
            await until_closed(here.connections, Closed.ANSWER_NOT_READ)
        await until_all_closed(here)


@pytest.mark.asyncio
async def test_a_client_that_went_away_without_reading_is_not_told_as_one_that_does_not_read() -> None:
    async with serving(answer_s_max=0.3) as here:
        with held_time() as time:
            gone = await here.opened()
            gone.writer.write(b"GET /large HTTP/1.1\r\n\r\n")
            await gone.reader.readuntil(b"\r\n\r\n")
            gone.writer.transport.abort()
            await all_closed(here)
            # A client that stays is reported after the moment at which the other one would have been.
            staying = await here.opened()
            staying.writer.write(b"GET /large HTTP/1.1\r\n\r\n")
            await staying.reader.readuntil(b"\r\n\r\n")
            await time.until(all_closed(here))
            assert here.connections.closed == {Closed.ANSWER_NOT_READ: 1}


@pytest.mark.asyncio
async def test_an_idle_connection_is_cut_off_though_the_end_of_an_answer_is_not_read() -> None:
    """So little of it is left that writing does not pause; only a paused write has a deadline of its own."""
    async with serving(idle_s_max=0.05, answer_s_max=0.05) as here:
        # The size of the kernel's buffer is inherited from the listening socket.
        here.server._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # noqa: SLF001
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((here.server.listen.host, here.server.listen.port))
            client.sendall(b"GET /medium HTTP/1.1\r\n\r\n")
            while not here.connections.open:
                await asyncio.sleep(0.01)
            await until_all_closed(here)
        assert not here.connections.closed[Closed.ANSWER_NOT_READ]


@pytest.mark.asyncio
async def test_a_client_that_reads_slowly_is_not_taken_for_an_idle_one() -> None:
    async with serving(idle_s_max=0.01) as here:
        client = await here.opened()
        client.writer.write(b"GET /large HTTP/1.1\r\n\r\n")
        head = await client.reader.readuntil(b"\r\n\r\n")
        # Meanwhile one idle connection is closed, and then another one.
        for _ in range(2):
            idle = await here.opened()
            assert await idle.ask() == 200
            assert await idle.rest() == b""
        assert b" 200 " in head
        # The client may send the next request before it has read the answer.
        client.writer.write(ASK)
        assert len(await client.reader.readexactly(32_000_002)) == 32_000_002
        assert (await client.rest()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.asyncio
async def test_of_too_many_connections_the_one_that_is_idle_longest_is_closed() -> None:
    async with serving(connections_max=3) as here:
        clients = [await here.opened() for _ in range(3)]
        for client in clients:
            assert await client.ask() == 200
        # The first connection is used again, so now the second has been idle longest.
        assert await clients[0].ask() == 200
        newest = await here.opened()

        assert await newest.ask() == 200
        assert await clients[1].rest() == b""
        assert await clients[0].ask() == 200
        assert await clients[2].ask() == 200
        assert here.connections.closed == {Closed.IDLE_TOO_MANY: 1}


@pytest.mark.asyncio
async def test_trickling_connections_are_closed_for_those_who_ask() -> None:
    async with serving(connections_max=3) as here:
        trickling = [await here.opened() for _ in range(30)]
        for client in trickling:
            client.writer.write(b"GET /thi")
        asking = await here.opened()
        assert await asking.ask() == 200
        for client in trickling[:27]:
            assert await client.rest() == b""
        assert here.connections.open == 3


@pytest.mark.asyncio
async def test_where_none_is_idle_the_newest_connection_is_refused() -> None:
    async with serving(connections_max=2) as here:
        busy = [await here.opened() for _ in range(2)]
        for client in busy:
            client.writer.write(b"GET /slow HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            while here.slow.under_way < len(busy):
                await asyncio.sleep(0.01)
        refused = await (await here.opened()).rest()
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in refused
        here.slow.may_answer.set()
        for client in busy:
            assert await client.ask() == 200
        assert here.connections.closed == {Closed.REFUSED: 1}


@pytest.mark.asyncio
async def test_more_requests_than_may_wait_on_one_connection_are_refused() -> None:
    async with serving(pipelined_max=3) as here:
        client = await here.opened()
        client.writer.write(b"GET /slow HTTP/1.1\r\n\r\n" + ASK * 2_000)
        answer = await client.rest()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"More than 3 requests on this connection wait" in answer


@pytest.mark.asyncio
async def test_what_was_closed_and_what_is_open_is_told_to_prometheus() -> None:
    async with serving(head_s_max=0.05) as here:
        with held_time() as time:
            await time.until((await here.opened()).rest())
            late = await here.opened()
            late.writer.write(b"GET")
            await time.until(late.rest())
            asking = await here.opened()
            asking.writer.write(b"GET /metrics HTTP/1.1\r\nconnection: close\r\n\r\n")
            page = (await asking.rest()).decode()

    assert "moor_placement_http_connections_open 1.0" in page
    assert 'moor_placement_http_connections_closed_total{why="head_late"} 1.0' in page
    assert 'moor_placement_http_connections_closed_total{why="too_many"} 0.0' in page


class Kept:
    """A connection that notes whether it was closed."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_one_address_takes_its_own_idle_connections_and_not_those_of_others() -> None:
    connections = Connections(ApiSettings(connections_per_address_max=2))
    others, *theirs = [Kept("192.0.2.1"), *[Kept("192.0.2.2") for _ in range(3)]]
    assert all(connections.opened(one, now=0.0) for one in (others, *theirs))

    assert [one.is_closed for one in (others, *theirs)] == [False, True, False, False]
    assert connections.closed == {Closed.IDLE_TOO_MANY_OF_ADDRESS: 1}
    for one in theirs[1:]:
        connections.is_busy(one)
    assert not connections.opened(Kept("192.0.2.2"), now=0.0)
    assert not others.is_closed


def test_a_refused_connection_makes_no_room_for_another() -> None:
    connections = Connections(ApiSettings(connections_max=1))
    busy, refused, another = (Kept(f"192.0.2.{number}") for number in range(3))
    assert connections.opened(busy, now=0.0)
    connections.is_busy(busy)

    assert [connections.opened(one, now=0.0) for one in (refused, another)] == [False, False]


def test_a_connection_that_is_lost_is_counted_nowhere() -> None:
    connections = Connections(ApiSettings(connections_max=2, connections_per_address_max=1))
    for _ in range(3):
        lost = Kept("192.0.2.1")
        assert connections.opened(lost, now=0.0)
        connections.lost(lost)
    assert not connections.closed
    busy = [Kept(f"192.0.2.{number}") for number in range(2)]
    for one in busy:
        assert connections.opened(one, now=0.0)
        connections.is_busy(one)
    # No connection is idle, so the lost ones make no room.
    refused = Kept("192.0.2.3")
    assert not connections.opened(refused, now=0.0)

    for one in (*busy, refused):
        connections.lost(one)
    assert not connections.open
    assert not connections._of_address, "addresses are forgotten: there are more than memory holds"  # noqa: SLF001


def test_this_machine_where_a_proxy_may_stand_has_no_limit_of_its_own() -> None:
    connections = Connections(ApiSettings(connections_per_address_max=2))
    for address in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
        assert all(connections.opened(Kept(address), now=0.0) for _ in range(5)), address
    assert not connections.closed


def test_an_attack_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    connections = Connections(ApiSettings(connections_max=1))
    for number in range(100):
        connections.opened(Kept(f"192.0.2.{number}"), now=number / 10)
    connections.opened(Kept("192.0.2.200"), now=11.0)

    first, second = [record.getMessage() for record in caplog.records]
    assert first.startswith("closed 1 connection(s), the last from 192.0.2.0: too many are open")
    assert second.startswith("closed 99 connection(s)")


async def all_closed(here: Served) -> None:
    while here.connections.open:
        await asyncio.sleep(0)


async def until_all_closed(here: Served) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while here.connections.open:
            await asyncio.sleep(0.01)
