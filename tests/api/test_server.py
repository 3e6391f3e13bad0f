"""The service on a socket: TLS, input that is not HTTP, and stopping."""

import asyncio
import json
import os
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import trustme
from starlette.types import ASGIApp

from kit.health import BadAddressError, Listen, read_listen
from kit.http_server import HttpServer
from kit.process import hangups_heard
from kit.tls import ServerTls, server_tls
from placement_worker.api import values
from placement_worker.api.auth import NoAuthentication
from placement_worker.api.policy import policy_named
from placement_worker.api.routing import HttpRoute
from placement_worker.api.service import PlacementApp
from placement_worker.api.values import Reply, Request
from tests.api.asking_app import LIST, app_with

ANY_PORT = Listen("127.0.0.1", 0)


@asynccontextmanager
async def serving(
    app: ASGIApp,
    tls: ServerTls | None = None,
    proxies: tuple[str, ...] = (),
) -> AsyncIterator[HttpServer]:
    server = HttpServer(app, ANY_PORT, tls=tls, proxies=proxies)
    running = asyncio.create_task(server.run())
    try:
        yield server
    finally:
        await server.stop()
        await running


async def heard_from(server: HttpServer, text: bytes) -> bytes:
    """All that the server answers to these raw bytes until it closes the connection."""
    reader, writer = await asyncio.open_connection(server.listen.host, server.listen.port)
    writer.write(text)
    heard = await reader.read()
    writer.close()
    return heard


async def is_reached(server: HttpServer) -> bool:
    try:
        _, writer = await asyncio.open_connection(server.listen.host, server.listen.port)
    except ConnectionError:
        return False
    writer.close()
    return True


@pytest.mark.asyncio
async def test_requests_are_answered_over_one_connection() -> None:
    async with serving(app_with()) as server, httpx.AsyncClient(base_url=server.url) as client:
        for name in ("a", "b", "c"):
            answer = await client.get(f"/things/{name}")
            assert answer.json()["params"] == {"name": name}
            assert "server" not in answer.headers


@pytest.mark.asyncio
async def test_requests_are_answered_over_tls_with_the_certificate_that_was_given(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    issued.private_key_pem.write_to_path(key)
    for pem in issued.cert_chain_pems:
        pem.write_to_path(chain, append=True)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    async with (
        serving(app_with(), tls=server_tls(str(chain), str(key))) as server,
        httpx.AsyncClient(base_url=server.url, verify=trusting) as client,
    ):
        assert server.url.startswith("https://")
        assert (await client.get("/things")).status_code == 200


@pytest.mark.asyncio
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
        async with serving(app_with(), tls=server_tls(shown)) as server:
            first = await seen(server)
            issue()
            assert await seen(server) == first
            os.kill(os.getpid(), signal.SIGHUP)
            async with asyncio.timeout(60):
                while await seen(server) == first:
                    pass


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"POST /things HTTP/1.1\r\ncontent-length: hi mom\r\n\r\n", b"must be an integer"),
        (b"POST /things HTTP/1.1\r\ncontent-length: -1\r\n\r\n", b"must be an integer"),
        (b"what is this\r\n\r\n", b"Invalid"),
        *[(method + b" /things HTTP/1.1\r\n\r\n", b"Invalid method") for method in (b"BREW", b"get", b"Get")],
    ],
)
async def test_what_is_no_request_is_refused_with_the_reason_and_ends_the_connection(
    text: bytes, why: bytes
) -> None:
    async with serving(app_with()) as server:
        # Reads to the end: the second request has no answer.
        head, _, body = (await heard_from(server, text + b"GET /things HTTP/1.1\r\n\r\n")).partition(
            b"\r\n\r\n"
        )

    assert head.startswith(b"HTTP/1.1 400 ")
    assert why in body
    assert b"HTTP/1.1" not in body


@pytest.mark.asyncio
async def test_a_body_that_grows_too_long_while_it_is_sent_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(values, "BODY_BYTES_MAX", 1_000)

    chunk = b"4b1\r\n" + b" " * 0x4B1 + b"\r\n"
    head = b"POST /things HTTP/1.1\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    async with serving(app_with()) as server:
        heard = await heard_from(server, head + chunk)

    assert heard.startswith(b"HTTP/1.1 413 ")
    (error,) = json.loads(heard.partition(b"\r\n\r\n")[2])["errors"]
    assert "1201 bytes, and at most 1000" in error["detail"]


@pytest.mark.asyncio
async def test_the_answer_to_a_head_has_no_body_and_leaves_the_connection_usable() -> None:
    async with serving(app_with()) as server:
        reader, writer = await asyncio.open_connection(server.listen.host, server.listen.port)
        writer.write(b"HEAD /things HTTP/1.1\r\n\r\nGET /things HTTP/1.1\r\nconnection: close\r\n\r\n")
        head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()

    assert head.startswith(b"HTTP/1.1 405 ")
    assert rest.startswith(b"HTTP/1.1 200 ")


@pytest.mark.asyncio
async def test_a_header_with_a_line_break_in_it_is_never_sent() -> None:
    async def careless(_: Request) -> Reply:
        return Reply(headers={"x-said": "a\r\nx-forged: b"})

    routes = [HttpRoute("GET", "/careless", careless, LIST)]
    app = PlacementApp(routes, NoAuthentication(), policy_named("legacy"))
    async with serving(app) as server, httpx.AsyncClient(base_url=server.url) as client:
        answer = await client.get("/careless")

    assert answer.status_code == 500
    assert "x-forged" not in answer.headers


@pytest.mark.asyncio
async def test_stopping_answers_what_is_under_way_and_takes_nothing_new() -> None:
    arrived, may_go_on = asyncio.Event(), asyncio.Event()

    async def slow(_: Request) -> Reply:
        arrived.set()
        await may_go_on.wait()
        return Reply(body={"is": "done"})

    app = PlacementApp([HttpRoute("GET", "/slow", slow, LIST)], NoAuthentication(), policy_named("legacy"))
    server = HttpServer(app, ANY_PORT)
    running = asyncio.create_task(server.run())
    async with httpx.AsyncClient(base_url=server.url) as client:
        asking = asyncio.create_task(client.get("/slow"))
        await arrived.wait()
        await server.stop()
        async with asyncio.timeout(60):
            while await is_reached(server):
                pass
        may_go_on.set()
        answer = await asking
    await running

    assert answer.json() == {"is": "done"}
    assert answer.headers["connection"] == "close"


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


@pytest.mark.asyncio
async def test_an_address_that_is_taken_is_told_at_start() -> None:
    async with serving(app_with()) as server:
        with pytest.raises(BadAddressError, match=f"listen is {server.listen}: Address already in use"):
            HttpServer(app_with(), server.listen)


@pytest.mark.asyncio
async def test_an_address_is_shared_only_among_those_who_want_to() -> None:
    server = HttpServer(app_with(), Listen("127.0.0.1", 0, is_shared=True))
    running = asyncio.create_task(server.run())
    with pytest.raises(BadAddressError, match="in use"):
        HttpServer(app_with(), Listen("127.0.0.1", server.listen.port))

    other = HttpServer(app_with(), server.listen)
    await server.stop()
    await running
    running = asyncio.create_task(other.run())
    async with httpx.AsyncClient(base_url=server.url) as client:
        assert (await client.get("/things")).status_code == 200
    await other.stop()
    await running
