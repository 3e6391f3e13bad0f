"""An application on a socket: TLS, input that is not HTTP, and stopping; and bodies that never end."""

import asyncio
import os
import signal
import ssl
from operator import not_
from pathlib import Path

import httpx
import pytest
import trustme
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from kit import http_server
from kit.health import BadAddressError, Listen, read_listen
from kit.http_server import HttpServer
from kit.process import hangups_heard
from kit.tls import server_tls
from tests.api.whole_app import server_over
from tests.served import heard_from, served
from tests.stores_in_memory import MemoryPlacementStore
from tests.waiting import until


async def say(_: Request) -> JSONResponse:
    return JSONResponse({"is": "said"})


APP = Starlette(routes=[Route("/things", say, methods=["GET", "POST"])])


async def is_reached(server: HttpServer) -> bool:
    try:
        _, writer = await asyncio.open_connection(server.listen.host, server.listen.port)
    except ConnectionError:
        return False
    writer.close()
    return True


async def test_a_new_certificate_is_used_after_a_hangup(tmp_path: Path) -> None:
    authority, shown = trustme.CA(), str(tmp_path / "shown.pem")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    def issue() -> None:
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(shown)

    async def seen(server: HttpServer) -> bytes:
        _, out = await asyncio.open_connection("127.0.0.1", server.listen.port, ssl=trusting)
        certificate: bytes = out.get_extra_info("ssl_object").getpeercert(binary_form=True)
        out.close()
        return certificate

    issue()
    with hangups_heard():
        async with served(APP, server_tls(shown)) as server:
            first = await seen(server)
            issue()
            assert await seen(server) == first
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: seen(server), "the new one is shown", lambda shown: shown != first)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"POST /things HTTP/1.1\r\ncontent-length: hi mom\r\n\r\n", b"must be an integer"),
        (b"POST /things HTTP/1.1\r\ncontent-length: -1\r\n\r\n", b"must be an integer"),
        (b"what is this\r\n\r\n", b"Invalid"),
        (b"get /things HTTP/1.1\r\n\r\n", b"Invalid method"),
    ],
)
async def test_what_is_no_request_is_refused_with_the_reason_and_ends_the_connection(
    text: bytes, why: bytes
) -> None:
    async with served(APP) as server:
        # Reads to the end: the second request has no answer.
        heard = await heard_from(server.url, text + b"GET /things HTTP/1.1\r\n\r\n")

    head, _, body = heard.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert (why in body, b"HTTP/1.1" in body) == (True, False)


async def test_a_body_that_is_too_long_or_grows_so_while_it_is_sent_is_cut_off() -> None:
    most = 16 * 1024 * 1024
    head = b"POST /resource_providers HTTP/1.1\r\nconnection: close\r\nx-auth-token: admin\r\n"
    head += b"content-type: application/json\r\n"
    growing = b"transfer-encoding: chunked\r\n\r\n%x\r\n" % (most + 1) + b" " * (most + 1) + b"\r\n0\r\n\r\n"
    async with server_over(MemoryPlacementStore()) as server:
        for body in (b"content-length: %d\r\n\r\n" % (most + 1), growing):
            heard = await heard_from(server.url, head + body)

            assert heard.startswith(b"HTTP/1.1 413 ")
            assert b"%d bytes, and at most %d are allowed" % (most + 1, most) in heard


async def test_beyond_the_connections_that_there_may_be_the_next_is_told_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "_CONNECTIONS_MAX", 3)
    question = b"GET /things HTTP/1.1\r\nconnection: close\r\n\r\n"
    async with served(APP) as server:
        held = [await asyncio.open_connection("127.0.0.1", server.listen.port)]
        one_left = await heard_from(server.url, question)
        held.append(await asyncio.open_connection("127.0.0.1", server.listen.port))
        none_left = await heard_from(server.url, question)
        for _, writer in held:
            writer.close()

    assert (one_left[:13], none_left[:13]) == (b"HTTP/1.1 200 ", b"HTTP/1.1 503 ")


async def test_stopping_answers_what_is_under_way_and_takes_nothing_new() -> None:
    arrived, may_go_on = asyncio.Event(), asyncio.Event()

    async def slow(_: Request) -> JSONResponse:
        arrived.set()
        await may_go_on.wait()
        return JSONResponse({"is": "done"})

    async with (
        served(Starlette(routes=[Route("/slow", slow)])) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        asking = asyncio.create_task(client.get("/slow"))
        await arrived.wait()
        await server.stop()
        await until(lambda: is_reached(server), "nobody is let in", not_)
        may_go_on.set()
        answer = await asking

    assert (answer.json(), answer.headers["connection"]) == ({"is": "done"}, "close")


@pytest.mark.parametrize(
    ("text", "listen", "is_loopback"),
    [
        ("127.0.0.1:8780", Listen("127.0.0.1", 8780), True),
        ("[::1]:0", Listen("::1", 0), True),
        ("localhost:80", Listen("localhost", 80), True),
        ("192.0.2.7:8780", Listen("192.0.2.7", 8780), False),
        ("[::]:8780", Listen("::", 8780), False),
        ("cloud.example.com:8780", Listen("cloud.example.com", 8780), False),
    ],
)
def test_where_to_listen(text: str, listen: Listen, *, is_loopback: bool) -> None:
    assert read_listen(text) == listen
    assert listen.is_loopback is is_loopback
    assert str(listen) == text


@pytest.mark.parametrize("text", ["", "8780", "127.0.0.1", "127.0.0.1:", ":8780", "a:x", "a:65536", "a:-1"])
def test_what_cannot_be_listened_on_is_refused(text: str) -> None:
    with pytest.raises(BadAddressError, match="write host:port"):
        read_listen(text)
