"""The addresses that HTTP servers of a process listen on: read from settings, bound, and written for people."""

import socket

PORT_MAX = 65_535
PORT_DIGITS_MAX = 5


class BadAddressError(ValueError):
    """The process cannot listen on this address."""


def read_address(text: str, setting: str, examples: str, *, default_host: str = "") -> tuple[str, int]:
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
    return host, int(port)


def address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listening_socket(
    host: str, port: int, *, backlog: int | None = None, is_shared: bool = False
) -> socket.socket:
    """A socket that listens on this address. With `is_shared`, other processes may listen on it too."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.create_server(address, family=family, backlog=backlog, reuse_port=is_shared)
    bound.setblocking(False)
    return bound
