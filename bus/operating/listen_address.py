"""The addresses that HTTP servers of a process listen on: read from settings, bound, and written for people."""

import ipaddress
import socket

from msgspec import Struct, structs

PORT_MAX = 65_535
PORT_DIGITS_MAX = 5
BACKLOG = 2_048


class BadAddressError(ValueError):
    """The process cannot listen on this address."""


class Listen(Struct, frozen=True):
    host: str
    port: int
    # Other processes may listen at the same address: the kernel distributes connections among them.
    is_shared: bool = False

    @property
    def is_loopback(self) -> bool:
        """Is this a loopback address, which only this machine can reach?"""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def bound(self, what: str) -> socket.socket:
        """A socket that listens here; port 0 is any free port. An error calls the address `what`."""
        try:
            family, _, _, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
            opened = socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=self.is_shared)
        except OSError as problem:
            raise BadAddressError(f"{what} is {self}: {problem.strerror or problem}") from None
        opened.setblocking(False)
        return opened


def read_address(text: str, setting: str, examples: str, *, default_host: str = "") -> Listen:
    """Parse `host:port` or `[::1]:port`. With a default host, `port` and `:port` are valid too.

    If the text is anything else, the error names the setting and says what to write instead (`examples`).
    """
    host, _, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or default_host
    # Python refuses to read a number of thousands of digits.
    if (
        not host
        or not port.isascii()
        or not port.isdigit()
        or len(port) > PORT_DIGITS_MAX
        or int(port) > PORT_MAX
    ):
        raise BadAddressError(f"{setting} is {text!r}: write {examples}")
    return Listen(host, int(port))


def read_listen(text: str, *, is_shared: bool = False) -> Listen:
    """Parse the address of an HTTP service: `127.0.0.1:8780`, `[::1]:8780`, `localhost:8780`; port 0 is any free port."""
    listen = read_address(text, "listen", "host:port, as 127.0.0.1:8780 or [::]:8780")
    return structs.replace(listen, is_shared=is_shared)
