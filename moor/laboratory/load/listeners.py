"""Finds the local process that serves a URL, by its listening socket.

A process that only forwards bytes to the server (a container's proxy, an SSH tunnel) has another name than the server, and
is rejected by that name. Its CPU time would be almost zero, and a wrong figure is worse than none.
"""

import socket
from contextlib import suppress
from urllib.parse import urlsplit

import psutil

from bus.configuration.hosts import hosts_of

PORTS = {"amqp": 5672, "amqps": 5671, "postgresql+asyncpg": 5432, "postgresql": 5432}


def listener_of(url: str, names: tuple[str, ...]) -> int | str:
    """The process that listens at this URL's address, if its name starts with one of `names`. Otherwise the reason why it is not
    known: it is on another machine, or this user may not inspect it.
    """
    if len(hosts_of(url)) > 1:
        return "its URL names several hosts"
    parts = urlsplit(url)
    host, port = parts.hostname, parts.port or PORTS.get(parts.scheme)
    if host is None or port is None:
        return "its URL has no host or port"
    if not _is_local(host):
        return "not on this machine"
    sockets = psutil.net_connections("tcp")
    owners = {each.pid for each in sockets if each.status == psutil.CONN_LISTEN and each.laddr.port == port}
    if not owners:
        return "not on this machine"
    # A socket of a process that this user may not inspect has no owner here.
    for pid in sorted(filter(None, owners)):
        if psutil.Process(pid).name().startswith(names):
            return int(pid)
    return f"port {port} is served by a process that this user may not inspect"


def _is_local(host: str) -> bool:
    """Does this address belong to this machine? Only such an address can be bound."""
    with suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with suppress(OSError), socket.socket(family, kind, protocol) as trying:
                trying.bind(address)
                return True
    return False
