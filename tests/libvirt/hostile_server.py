"""An HTTP server that answers as the path says: whole, a byte now and then, without end, packed, or with a redirect."""

import gzip
import socket
import ssl
import threading
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Callable

# The pause between two bytes that drip.
DRIP_S = 0.05
_HEAD = "HTTP/1.1 200 OK\r\n"


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
        with suppress(IndexError, AttributeError):
            head = b""
            while b"\r\n\r\n" not in head and (part := connection.recv(65_536)):
                head += part
            path, host = _path_and_host(head.decode(errors="replace"))
            self.asked.append((path, host))
            kind, _, rest = path[1:].partition("/")
            answer: Callable[[socket.socket, str], None] = getattr(self, f"_{kind}")
            answer(connection, rest)

    def _whole(self, connection: socket.socket, _: str) -> None:
        self._send(connection, f"{_HEAD}Content-Length: {len(self.content)}\r\n\r\n", self.content)

    def _cut(self, connection: socket.socket, _: str) -> None:
        self._send(connection, f"{_HEAD}Content-Length: {len(self.content) + 1}\r\n\r\n", self.content)

    def _packed(self, connection: socket.socket, _: str) -> None:
        packed = gzip.compress(self.content)
        self._send(
            connection, f"{_HEAD}Content-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n", packed
        )

    def _endless(self, connection: socket.socket, _: str) -> None:
        self._send(connection, f"{_HEAD}Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"100000\r\n" + bytes(1024 * 1024) + b"\r\n"
        while not self._ended.is_set():
            connection.sendall(chunk)

    def _steady(self, connection: socket.socket, _: str) -> None:
        """More than must come, and never all."""
        self._send(connection, f"{_HEAD}Content-Length: 1000000000000\r\n\r\n")
        while not self._ended.wait(DRIP_S):
            connection.sendall(bytes(1024 * 1024))

    def _noise(self, connection: socket.socket, _: str) -> None:
        """Its content again and again, without a length."""
        self._send(connection, f"{_HEAD}Transfer-Encoding: chunked\r\n\r\n")
        while not self._ended.is_set():
            connection.sendall(f"{len(self.content):x}\r\n".encode() + self.content + b"\r\n")

    def _drip(self, connection: socket.socket, _: str) -> None:
        self._send(connection, f"{_HEAD}Content-Length: 1000000\r\n\r\n")
        self._drip_on(connection, "x")

    def _headers(self, connection: socket.socket, _: str) -> None:
        self._send(connection, _HEAD)
        self._drip_on(connection, "X-Much: 1\r\n")

    def _silent(self, _: socket.socket, __: str) -> None:
        self._ended.wait()

    def _to(self, connection: socket.socket, target: str) -> None:
        self._send(
            connection, f"HTTP/1.1 302 Found\r\nLocation: {unquote(target)}\r\nContent-Length: 0\r\n\r\n"
        )

    def _held(self, connection: socket.socket, _: str) -> None:
        """The head at once, and the content when it is released."""
        self._send(connection, f"{_HEAD}Content-Length: {len(self.content)}\r\n\r\n")
        self.release.wait()
        self._send(connection, "", self.content)

    def _missing(self, connection: socket.socket, _: str) -> None:
        self._send(connection, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    def _send(self, connection: socket.socket, head: str, body: bytes = b"") -> None:
        connection.sendall(head.encode() + body)

    def _drip_on(self, connection: socket.socket, text: str) -> None:
        while not self._ended.wait(DRIP_S):
            connection.sendall(text.encode())


def _path_and_host(head: str) -> tuple[str, str]:
    first, *lines = head.split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
    return first.split(" ")[1], fields.get("host", "")
