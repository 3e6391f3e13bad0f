"""An HTTP server that answers as the path says: whole, a byte now and then, without end, packed, or with a redirect."""

import gzip
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import unquote

# The pause between two bytes that drip.
DRIP_S = 0.05
_MIB = bytes(1024 * 1024)
# Answers that come piece by piece and never end: the fields of each, and the piece that is sent again and again.
_DRIPPING = {
    "drip": ("Content-Length: 1000000\r\n\r\n", b"x"),
    "headers": ("", b"X-Much: 1\r\n"),
    "steady": ("Content-Length: 1000000000000\r\n\r\n", _MIB),
}


class HostileServer:
    """It listens on an address of loopback until the context is left. `asked` has each path with the `Host` that was named."""

    def __init__(self, content: bytes = b"", host: str = "127.0.0.1", certificate: str = "") -> None:
        """With a file that has a certificate and its key, it speaks TLS."""
        self.content = content
        self.asked: list[tuple[str, str]] = []
        self.release = threading.Event()
        self._ended = threading.Event()
        self._listening = socket.create_server((host, 0))
        self.port: int = self._listening.getsockname()[1]
        self._tls: ssl.SSLContext | None = None
        if certificate:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(certificate)
        self.url = f"http{'s' if certificate else ''}://{host}:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self.release.set()
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                accepted, _ = self._listening.accept()
                threading.Thread(target=self._greet, args=(accepted,), daemon=True).start()

    def _greet(self, accepted: socket.socket) -> None:
        with accepted, suppress(OSError):
            if self._tls is None:
                self._serve(accepted)
            else:
                with self._tls.wrap_socket(accepted, server_side=True) as connection:
                    self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        with suppress(IndexError):
            head = b""
            while b"\r\n\r\n" not in head and (part := connection.recv(65_536)):
                head += part
            path, host = _path_and_host(head.decode(errors="replace"))
            self.asked.append((path, host))
            kind, _, rest = path[1:].partition("/")
            for part in self._answer(kind, rest):
                connection.sendall(part)

    def _answer(self, kind: str, rest: str) -> Iterator[bytes]:
        """The parts of an answer, one after another."""
        match kind:
            case "whole" | "cut" | "held":
                yield _head(f"Content-Length: {len(self.content) + (kind == 'cut')}\r\n\r\n")
                if kind == "held":
                    self.release.wait()
                yield self.content
            case "packed":
                packed = gzip.compress(self.content)
                yield _head(f"Content-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n") + packed
            case "endless":
                yield from self._again_and_again(_MIB)
            case "noise":
                yield from self._again_and_again(self.content)
            case "drip" | "headers" | "steady":
                yield from self._slowly(*_DRIPPING[kind])
            case "silent":
                self._ended.wait()
            case "to":
                yield _head(f"Location: {unquote(rest)}\r\nContent-Length: 0\r\n\r\n", "302 Found")
            case "missing":
                yield _head("Content-Length: 0\r\n\r\n", "404 Not Found")

    def _slowly(self, fields: str, part: bytes) -> Iterator[bytes]:
        yield _head(fields)
        while not self._ended.wait(DRIP_S):
            yield part

    def _again_and_again(self, chunk: bytes) -> Iterator[bytes]:
        """Without a length."""
        yield _head("Transfer-Encoding: chunked\r\n\r\n")
        while not self._ended.is_set():
            yield f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n"


def _head(fields: str, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\n{fields}".encode()


def _path_and_host(head: str) -> tuple[str, str]:
    first, *lines = head.split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
    return first.split(" ")[1], fields.get("host", "")
