"""Which process serves this URL, if it runs on this machine and may be seen: by its listening socket in /proc.

What merely passes bytes on to the real one (a container's proxy, an SSH tunnel) has another name than the server, and is
not taken for it: its CPU would be next to nothing, and a wrong figure is worse than none.
"""

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

_LISTENING = "0A"
PORTS = {"amqp": 5672, "amqps": 5671, "postgresql+asyncpg": 5432, "postgresql": 5432}


class Unseen(Struct, frozen=True):
    """There is no such process here, or we may not look at it."""

    why: str


def listener_of(url: str, names: tuple[str, ...]) -> int | Unseen:
    """The process that listens where this URL leads, if it is called one of these."""
    parts = urlsplit(url)
    host, port = parts.hostname, parts.port or PORTS.get(parts.scheme)
    if host is None or port is None:
        return Unseen("no host and port to look for")
    if not _is_here(host):
        return Unseen("not on this machine")
    inodes = set(_listening_inodes(port))
    if not inodes:
        return Unseen("not on this machine")
    for pid in _owners(inodes):
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        if name.startswith(names):
            return pid
    return Unseen(f"port {port} is served by a process that cannot be looked at")


def _is_here(host: str) -> bool:
    """Only an address of this machine can be bound to."""
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
    """Those of them that we may look at; servers do not leave their listening socket to their children."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for pid in sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()):
        with suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    if str(descriptor.readlink()) in wanted:
                        yield pid
                        break
