"""Writes the application's answers to a connection."""

from collections.abc import Callable, Iterator

from uvicorn._types import ASGISendEvent, HTTPResponseStartEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle


class AnswerWriter:
    """Sends an answer's head and body in one write, since a second write costs as much as the rest of a small answer.

    If a body is long, only its first piece goes with the head, which states the length of all pieces. Each later piece
    waits until the client has read the ones before.
    """

    def __init__(self, cycle: RequestResponseCycle, close: Callable[[], None]) -> None:
        self._cycle = cycle
        self._close = close
        self._head: HTTPResponseStartEvent | None = None

    async def send(self, message: ASGISendEvent) -> None:
        if message["type"] == "http.response.start":
            self._head = message
            return
        assert message["type"] == "http.response.body", f"the application sends no {message['type']}"
        cycle = self._cycle
        if cycle.flow.write_paused:
            await cycle.flow.drain()
        if cycle.disconnected:
            return
        body = b"" if cycle.scope["method"] == "HEAD" else message["body"]
        if not cycle.response_started:
            assert self._head is not None, "a body comes after its head"
            body = b"".join((*self._lines(self._head), b"\r\n", body))
            cycle.response_started = True
        if message.get("more_body", False):
            cycle.transport.write(body)
            return
        cycle.response_complete = True
        cycle.message_event.set()
        cycle.transport.write(body)
        if not cycle.keep_alive:
            self._close()
        cycle.on_response()

    def _lines(self, head: HTTPResponseStartEvent) -> Iterator[bytes]:
        cycle = self._cycle
        yield STATUS_LINE[head["status"]]
        for name, value in head.get("headers", ()):
            if name == b"connection":
                # The only value that the application gives it is "close".
                cycle.keep_alive = False
                continue
            # It may contain what a client sent, and must not become a second header.
            assert b"\n" not in value, f"{name!r} has a line break in {value!r}"
            yield b"%b: %b\r\n" % (name, value)
        if not cycle.keep_alive:
            yield b"connection: close\r\n"
