"""OpenStack's placement in a process of its own, as httpx's way to a server."""

import asyncio
import json
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

ROOT = Path(__file__).parents[3]
LINE_MAX = 2**24


class UpstreamTransport(httpx.AsyncBaseTransport):
    """Answers by tests/conformance/upstream_requests.py, one request after the other."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.conformance.upstream_requests"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            limit=LINE_MAX,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        problem: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        assert self._process is not None, "it was started"
        assert self._process.stdin is not None, "it reads from here"
        self._process.stdin.close()
        await self._process.wait()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        asked = {
            "method": request.method,
            "target": request.url.raw_path.decode(),
            "headers": [[name.decode(), value.decode()] for name, value in request.headers.raw],
            "body": (await request.aread()).decode() or None,
        }
        async with self._turn:
            assert self._process is not None, "it was started"
            assert self._process.stdin is not None, "it reads from here"
            assert self._process.stdout is not None, "it writes here"
            self._process.stdin.write(json.dumps([asked]).encode() + b"\n")
            await self._process.stdin.drain()
            (told,) = json.loads(await self._process.stdout.readline())
        headers = {name: value for name, value in told["headers"].items() if name != "content-length"}
        return httpx.Response(told["status"], headers=headers, content=told["body"].encode())
