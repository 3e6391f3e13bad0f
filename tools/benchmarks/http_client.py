"""An HTTP client with little overhead: requests are prepared bytes, and bodies are decoded only on demand.

It understands the answers of placement servers: a content length, and a body of that length.
"""

import asyncio
import re
from types import TracebackType
from typing import Self

from msgspec import Struct

from tests.placement_servers import PlacementServer

_HEAD_BYTES_MAX = 1 << 16
_LENGTH = re.compile(rb"^content-length: *(\d+)", re.MULTILINE | re.IGNORECASE)
_CLOSES = re.compile(rb"^connection: *close", re.MULTILINE | re.IGNORECASE)
# The version of all requests; the newest one at which OpenStack's usages work on PostgreSQL.
VERSION = "1.36"


class HttpAnswer(Struct, frozen=True):
    status: int
    body: bytes


def request(method: str, target: str, body: bytes | None = None) -> bytes:
    """As an administrator, with any token: one server ignores it, the other accepts all."""
    lines = [
        f"{method} {target} HTTP/1.1",
        "Host: placement",
        "X-Auth-Token: admin",
        f"OpenStack-API-Version: placement {VERSION}",
        "Accept: application/json",
    ]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join((*lines, "", "")).encode() + (body or b"")


class HttpConnection:
    """One request at a time. The connection stays open for the next one, unless the server closes it."""

    def __init__(self, server: PlacementServer) -> None:
        self._server = server
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, wanted: bytes) -> HttpAnswer:
        if self._streams is None:
            self._streams = await asyncio.open_connection(
                self._server.host, self._server.port, limit=_HEAD_BYTES_MAX
            )
        reader, writer = self._streams
        writer.write(wanted)
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        body = await reader.readexactly(int(length[1])) if length else b""
        if _CLOSES.search(head):
            await self.close()
        # "HTTP/1.1 200 OK"
        return HttpAnswer(int(head[9:12]), body)

    async def close(self) -> None:
        if self._streams is not None:
            _, writer = self._streams
            self._streams = None
            writer.close()
            await writer.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
