"""One connection of a client, on uvicorn and httptools.

Input that is not HTTP, or is too long, is refused here with the same form of errors as the API's own. The application
never gets it, since the parser stops before there is a request.

This extends uvicorn's own protocol class, whose attributes are not documented: uvicorn has no settings for the size of a
head, for the time that a head or the reading of an answer may take, for connections by address, and for the form of a
refusal. With such settings this module could go. tests/unit/brokers/test_private_parts.py lists what it uses.
"""

import asyncio
import sys
from http import HTTPStatus
from typing import Final
from uuid import uuid4

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from placement_worker.api.grammar.rendering import REQUEST_ID, error_body
from placement_worker.api.http.connections import Closed, Connections
from placement_worker.api.settings import ApiSettings
from placement_worker.api.values.problems import ApiError, bad_request
from placement_worker.api.values.request_parts import IS_COMPLETE

_TOO_MANY_CONNECTIONS: Final = ApiError(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "Too many connections are open, and each has a request in progress; try again later",
    headers={"retry-after": "1"},
)


def protocol_for(settings: ApiSettings, shared: Connections) -> type[HttpToolsProtocol]:
    """A protocol class that has these settings and connections as attributes.

    uvicorn makes an instance of it for each connection, and passes no further arguments.
    """

    class Limited(PlacementProtocol):
        limits = settings
        open_connections = shared

    return Limited


class PlacementProtocol(HttpToolsProtocol):
    """One connection of a client, with limits on time and size.

    uvicorn has a timer for kept-alive connections, which stops at any byte that arrives. A second timer runs whenever
    uvicorn's does not and no request is in progress, so that no connection stays open for long without use.
    """

    limits = ApiSettings()
    open_connections = Connections(limits)
    address = ""
    _headers_bytes = 0
    _in_message = False
    _in_head = False
    # Has a complete head ever arrived?
    _has_asked = False
    _head_due: asyncio.TimerHandle | None = None
    _answer_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        if self.open_connections.opened(self, self.loop.time()):
            self._await_head(self.limits.head_s_max)
        else:
            self._refuse(_TOO_MANY_CONNECTIONS)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_head_due()
        self._unset_answer_due()
        self.open_connections.lost(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        is_waiting = not self._has_asked or self.cycle.response_complete
        if is_waiting and self._head_due is None and self.timeout_keep_alive_task is None:
            self._await_head(self.limits.head_s_max if self._in_message else self.limits.idle_s_max)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._headers_bytes = 0
        self._in_message = self._in_head = True

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= self.limits.pipelined_max:
            raise ApiError(
                HTTPStatus.BAD_REQUEST,
                f"More than {self.limits.pipelined_max} requests on this connection wait for their answers",
            )
        super().on_headers_complete()
        self._in_head = False
        self._has_asked = True
        self._unset_head_due()
        self.open_connections.is_busy(self)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_message = False
        self.scope[IS_COMPLETE] = True  # type: ignore[typeddict-unknown-key]  # our own key
        if self.cycle.response_complete:
            # This was the rest of a body that the application did not read: now the connection is kept alive as usual.
            self._unset_head_due()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.timeout_keep_alive_task is not None:
            self.open_connections.is_idle(self)
        if self.transport.is_closing():
            self._limit_rest()

    def timeout_keep_alive_handler(self) -> None:
        if self._answer_due is not None:
            # Its client is still reading the answer, which has its own limit of time.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        else:
            self.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._answer_due is None:
            self._answer_due = self.loop.call_later(self.limits.answer_s_max, self._answer_not_read)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unset_answer_due()

    def _await_head(self, seconds: float) -> None:
        self._head_due = self.loop.call_later(seconds, self._head_late)

    def _head_late(self) -> None:
        self._head_due = None
        if self._in_message:
            self.open_connections.note_closed(self, Closed.HEAD_LATE, self.loop.time())
        if self._in_head:
            self._refuse(
                ApiError(
                    HTTPStatus.REQUEST_TIMEOUT,
                    f"The head of the request was not complete after {self.limits.head_s_max:g} seconds",
                )
            )
        else:
            self.close()

    def _answer_not_read(self) -> None:
        self._answer_due = None
        self.open_connections.note_closed(self, Closed.ANSWER_NOT_READ, self.loop.time())
        self.transport.abort()

    def _unset_head_due(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    def _unset_answer_due(self) -> None:
        if self._answer_due is not None:
            self._answer_due.cancel()
            self._answer_due = None

    def close(self) -> None:
        """Close the connection after the rest of the output is sent. A client that does not read it in time is cut off."""
        self.transport.close()
        self._limit_rest()

    def _limit_rest(self) -> None:
        if self.transport.get_write_buffer_size():
            self.loop.call_later(self.limits.answer_s_max, self.transport.abort)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self.limits.target_bytes_max:
            raise ApiError(
                HTTPStatus.REQUEST_URI_TOO_LONG,
                f"The path and the query are longer than {self.limits.target_bytes_max} bytes",
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers_bytes += len(name) + len(value)
        if self._headers_bytes > self.limits.headers_bytes_max:
            raise ApiError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"The headers are longer than {self.limits.headers_bytes_max} bytes",
            )
        if len(self.headers) >= self.limits.headers_max:
            raise ApiError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"There are more than {self.limits.headers_max} headers",
            )
        super().on_header(name, value)

    def send_400_response(self, msg: str) -> None:
        """Refuse input that the parser could not read. uvicorn calls it while the parser's error, which tells what is
        wrong, is handled.
        """
        self._refuse(_problem(sys.exception(), msg))

    def _refuse(self, problem: ApiError) -> None:
        request_id = f"req-{uuid4()}"
        body = error_body(request_id, problem, version=None)
        head = (
            f"HTTP/1.1 {problem.status.value} {problem.status.phrase}\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            f"{REQUEST_ID}: {request_id}\r\n"
            + "".join(f"{name}: {value}\r\n" for name, value in problem.headers.items())
            + "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.close()


def _problem(error: BaseException | None, said: str) -> ApiError:
    if isinstance(error, httptools.HttpParserCallbackError) and isinstance(error.__context__, ApiError):
        return error.__context__
    if error is not None and "Content-Length" in str(error):
        return bad_request(f"content-length header must be an integer: {error}")
    return bad_request(f"{said} {error}")
