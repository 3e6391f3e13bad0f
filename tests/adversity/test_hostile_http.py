"""Bytes of hostile clients on the socket: none stops the server, makes it fail, or blocks other clients."""

import gzip
from typing import Final

import pytest

from tests.api.whole_app import server_over
from tests.contracts.stores import open_store
from tests.served import heard_from

# More than the server reads at once.
RESET_BYTES_MIN: Final = 16 * 1024
KEPT: Final = b"x-auth-token: admin\r\nopenstack-api-version: placement 1.39\r\n"
HEAD: Final = KEPT + b"connection: close\r\n"
JSON: Final = b"content-type: application/json\r\n"
CHUNKED: Final = (
    b"POST /resource_providers HTTP/1.1\r\n" + HEAD + JSON + b"transfer-encoding: chunked\r\n\r\n"
)
PROVIDER: Final = b'{"name": "a", "uuid": "6f4ca9ef-4a3c-4ba4-9a1f-1d2b5c3a0001"}'


def statuses_in(heard: bytes) -> list[int]:
    return [int(part[:3]) for part in heard.split(b"HTTP/1.1 ")[1:]]


def post(body: bytes, headers: bytes = JSON, path: bytes = b"/resource_providers") -> bytes:
    length = b"content-length: %d\r\n" % len(body)
    return b"POST %b HTTP/1.1\r\n" % path + HEAD + headers + length + b"\r\n" + body


def get(target: bytes, headers: bytes = b"", version: bytes = b"HTTP/1.1") -> bytes:
    return b"GET %b %b\r\n" % (target, version) + HEAD + headers + b"\r\n"


def kept(target: bytes) -> bytes:
    """A request after which the connection stays open."""
    return b"GET %b HTTP/1.1\r\n" % target + KEPT + b"\r\n"


HOSTILE: Final[dict[str, tuple[bytes, list[int]]]] = {
    "many headers": (get(b"/traits", b"".join(b"x-%d: a\r\n" % n for n in range(1_000))), [200]),
    "the same header many times": (get(b"/traits", b"accept: application/json\r\n" * 5_000), [200]),
    "empty headers": (get(b"/traits", b"a:\r\n" * 50_000), [200]),
    "a header of megabytes": (get(b"/traits", b"x-a: " + b"a" * 2_000_000 + b"\r\n"), [200]),
    "many versions": (get(b"/traits", b"openstack-api-version: placement 1.1\r\n" * 150), [404]),
    "a query of megabytes": (get(b"/traits?name=" + b"a" * 3_000_000), [400]),
    "many query keys": (get(b"/traits?" + b"a=b&" * 5_000), [400]),
    "bad percent-encoding": (get(b"/resource_classes/%zz%f"), [404]),
    "percent-encoding that is no UTF-8": (get(b"/traits?name=%ff%fe"), [400]),
    "a lone surrogate in a query": (get(b"/traits?name=in:%ED%A0%80"), [400]),
    "a lone surrogate in a path": (get(b"/traits/%ED%A0%80"), [404]),
    "NUL in a path": (get(b"/traits/%00"), [400]),
    "NUL in a query": (get(b"/resource_providers?name=%00"), [400]),
    "bytes that are no ASCII in a path": (get(b"/traits/\xff\xfe"), [400]),
    "another host's path": (get(b"http://192.0.2.1/traits"), [200]),
    "CONNECT": (b"CONNECT 192.0.2.1:80 HTTP/1.1\r\n" + HEAD + b"\r\n", [400]),
    "an asterisk": (b"OPTIONS * HTTP/1.1\r\n" + HEAD + b"\r\n", [404]),
    "another protocol": (get(b"/traits", b"connection: upgrade\r\nupgrade: h2c\r\n"), [200]),
    "HTTP/1.0": (get(b"/traits", version=b"HTTP/1.0"), [200]),
    "HTTP/9.9": (get(b"/traits", version=b"HTTP/9.9"), [400]),
    "HTTP/2's first words": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400]),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500, [400]),
    "pipelined": (kept(b"/traits") * 10 + get(b"/traits"), [200] * 11),
    "many pipelined": (kept(b"/") * 2_000 + get(b"/traits"), [200] * 2_001),
    "two lengths": (post(b"{}", JSON + b"content-length: 5\r\n"), [400]),
    "a length and chunks": (post(b"{}", JSON + b"transfer-encoding: chunked\r\n"), [400]),
    "a length of many digits": (get(b"/traits", b"content-length: " + b"9" * 400 + b"\r\n"), [400]),
    "a negative chunk": (CHUNKED + b"-5\r\n", [400]),
    "a body that does not come": (post(b"")[:-2].replace(b": 0", b": 90") + b"\r\n", []),
    "gzip": (post(gzip.compress(PROVIDER), JSON + b"content-encoding: gzip\r\n"), [400]),
    "NUL in a body": (post(b'{"name": "a\\u0000"}'), [400]),
    "a lone surrogate in a body": (post(b'{"name": "\\ud800"}'), [400]),
    "a surrogate as bytes in a body": (post(b'{"name": "\xed\xa0\x80"}'), [400]),
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_what_a_hostile_client_sends_is_refused_and_others_are_served(what: str) -> None:
    text, expected = HOSTILE[what]
    async with open_store("sqlite") as store, server_over(store, "legacy") as server:
        heard = await heard_from(server.url, text, hangs_up=not expected)
        # A client that continues to send after the refusal may get a reset before it has read the reason.
        was_reset = not heard and len(text) > RESET_BYTES_MIN
        assert was_reset or statuses_in(heard) == expected, heard[:500]
        assert statuses_in(await heard_from(server.url, get(b"/"))) == [200]
