"""Finds the local process that serves a URL, by its listening socket in /proc.

A process that only forwards bytes to the server (a container's proxy, an SSH tunnel) has another name than the server, and
is rejected by that name. Its CPU time would be almost zero, and a wrong figure is worse than none.
"""

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

_LISTENING = "0A"
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
    inodes = set(_listening_inodes(port))
    if not inodes:
        return NotVisible("not on this machine")
    for pid in _owners(inodes):
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        if name.startswith(names):
            return pid
    return NotVisible(f"port {port} is served by a process that this user may not inspect")


def _is_local(host: str) -> bool:
    """Is it an address of this machine? Only such an address can be bound."""
    with suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with suppress(OSError), socket.socket(family, kind, protocol) as trying:
                trying.bind(address)
                return True
    return False


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(FileNotFoundError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _owners(inodes: set[str]) -> Iterator[int]:
    """The processes with these sockets that this user may inspect. Servers do not pass the listening socket to children."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for pid in sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()):
        with suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    if str(descriptor.readlink()) in wanted:
                        yield pid
                        break
