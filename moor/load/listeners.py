"""Finds the local process that serves a URL, by its listening socket.

A process that only forwards bytes to the server (a container's proxy, an SSH tunnel) has another name than the server, and
is rejected by that name. Its CPU time would be almost zero, and a wrong figure is worse than none.
"""

import socket
from contextlib import suppress
from urllib.parse import urlsplit

import psutil
from msgspec import Struct

PORTS = {"amqp": 5672, "amqps": 5671, "postgresql+asyncpg": 5432, "postgresql": 5432}


class NotVisible(Struct, frozen=True):
    """There is no such process on this machine, or this user may not inspect it."""

    why: str


def listener_of(url: str, names: tuple[str, ...]) -> int | NotVisible:
    """The process that listens at this URL's address, if its name starts with one of `names`."""
    parts = urlsplit(url)
    host, port = parts.hostname, parts.port or PORTS.get(parts.scheme)
    if host is None or port is None:
        return NotVisible("its URL has no host or port")
    if not _is_local(host):
        return NotVisible("not on this machine")
    sockets = psutil.net_connections("tcp")
    owners = {each.pid for each in sockets if each.status == psutil.CONN_LISTEN and each.laddr.port == port}
    if not owners:
        return NotVisible("not on this machine")
    # A socket of a process that this user may not inspect has no owner here.
    for pid in sorted(filter(None, owners)):
        if psutil.Process(pid).name().startswith(names):
            return int(pid)
    return NotVisible(f"port {port} is served by a process that this user may not inspect")


def _is_local(host: str) -> bool:
    """Is it an address of this machine? Only such an address can be bound."""
    with suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with suppress(OSError), socket.socket(family, kind, protocol) as trying:
                trying.bind(address)
                return True
    return False
