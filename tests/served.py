"""An application on a socket of this machine, and what it answers to raw bytes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kit.health import Listen
from kit.http_server import HttpServer
from kit.tls import ServerTls
from tests.running import running
from tests.waiting import PATIENCE_S


@asynccontextmanager
async def served(app: Any, tls: ServerTls | None = None) -> AsyncIterator[HttpServer]:
    server = HttpServer(app, Listen("127.0.0.1", 0), tls=tls)
    async with running((server,)):
        yield server


async def heard_from(url: str, text: bytes, *, hangs_up: bool = False) -> bytes:
    """All that is answered until the server closes the connection. A client that `hangs_up` sends nothing more."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(text)
        if hangs_up:
            writer.write_eof()
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()
