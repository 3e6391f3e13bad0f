"""One connection, as uvicorn and httptools speak it: what is no HTTP, or too long, is refused in the API's own words.

The application never sees these: the parser stops before there is a request.
"""

import sys
from collections.abc import Iterator
from http import HTTPStatus
from uuid import uuid4

import httptools
from uvicorn._types import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    HTTPResponseStartEvent,
    Scope,
)
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from placement_worker.api.problems import ApiError, bad_request
from placement_worker.api.rendering import REQUEST_ID, error_body
from placement_worker.api.settings import ApiSettings


class _TooLongError(Exception):
    """The request's first line or its headers; the parser hands it on as the cause of its own error."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        super().__init__(detail)
        self.problem = ApiError(status, detail)


def protocol_for(settings: ApiSettings) -> type[HttpToolsProtocol]:
    """The limits in a class: uvicorn makes one for each connection, and hands on nothing of ours."""

    class Limited(PlacementProtocol):
        limits = settings

    return Limited


class PlacementProtocol(HttpToolsProtocol):
    limits = ApiSettings()
    _headers_bytes = 0

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._headers_bytes = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self.limits.target_bytes_max:
            raise _TooLongError(
                HTTPStatus.REQUEST_URI_TOO_LONG,
                f"The path and the query are longer than {self.limits.target_bytes_max} bytes",
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers_bytes += len(name) + len(value)
        if self._headers_bytes > self.limits.headers_bytes_max:
            raise _TooLongError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"The headers are longer than {self.limits.headers_bytes_max} bytes",
            )
        super().on_header(name, value)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        async def answered_at_once(scope: Scope, receive: ASGIReceiveCallable, _: ASGISendCallable) -> None:
            await app(scope, receive, _WholeAnswer(cycle).send)

        super()._start_asgi_task(cycle, answered_at_once)

    def send_400_response(self, msg: str) -> None:
        """Called while the parser's error is handled; only that tells what is wrong."""
        problem = _problem(sys.exception(), msg)
        request_id = f"req-{uuid4()}"
        body = error_body(request_id, problem, version=None)
        head = (
            f"HTTP/1.1 {problem.status.value} {problem.status.phrase}\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            f"{REQUEST_ID}: {request_id}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()


class _WholeAnswer:
    """Head and body in one write: a second one costs as much as all else of a small answer. Every answer of the application
    is one body, whose length its head tells.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._head: HTTPResponseStartEvent | None = None

    async def send(self, message: ASGISendEvent) -> None:
        if message["type"] == "http.response.start":
            self._head = message
            return
        assert message["type"] == "http.response.body", f"nobody here says {message['type']}"
        assert self._head is not None, "a body comes after its head"
        cycle = self._cycle
        if cycle.flow.write_paused:
            await cycle.flow.drain()
        if cycle.disconnected:
            return
        body = b"" if cycle.scope["method"] == "HEAD" else message["body"]
        answer = b"".join((*self._lines(self._head), b"\r\n", body))
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        cycle.transport.write(answer)
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()

    def _lines(self, head: HTTPResponseStartEvent) -> Iterator[bytes]:
        cycle = self._cycle
        yield STATUS_LINE[head["status"]]
        for name, value in head.get("headers", ()):
            if name == b"connection":
                # The only word that the application has for it is "close".
                cycle.keep_alive = False
                continue
            # What a client sent may stand in it, and must not become a header of its own.
            assert b"\n" not in value, f"{name!r} has a line break in {value!r}"
            yield b"%b: %b\r\n" % (name, value)
        if not cycle.keep_alive:
            yield b"connection: close\r\n"


def _problem(error: BaseException | None, said: str) -> ApiError:
    if isinstance(error, httptools.HttpParserCallbackError) and isinstance(error.__context__, _TooLongError):
        return error.__context__.problem
    if error is not None and "Content-Length" in str(error):
        return bad_request(f"content-length header must be an integer: {error}")
    return bad_request(f"{said} {error}")
