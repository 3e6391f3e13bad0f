"""Free ports, and memory for the data of servers."""

import random
import shutil
import socket
from pathlib import Path

from laboratory.private_servers import DidNotStartError

_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_PORT = 15_000
# A file system that Linux keeps in memory. Each test creates and removes hundreds of files of a database and of queues.
# On ext4 this takes the servers several times as much CPU, because a deleted inode is skipped for some seconds.
IN_MEMORY = Path("/dev/shm")  # noqa: S108 - a private directory is made there
BYTES_FREE_MIN = 4 * 2**30


def _candidates() -> list[int]:
    # Below the ports that the kernel hands to outgoing connections. A client that keeps trying to reach a server which
    # is down would otherwise sooner or later be given the server's port, connect to itself, and keep the server out.
    highest = int(_EPHEMERAL_RANGE.read_text().split()[0]) if _EPHEMERAL_RANGE.exists() else 32_768
    ports = list(range(min(_LOWEST_PORT, highest // 2), highest))
    random.shuffle(ports)
    return ports


_untried = _candidates()


def free_port() -> int:
    """A free port; never the same one twice from one process."""
    while _untried:
        port = _untried.pop()
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise DidNotStartError("every port below the ephemeral range is taken")


def place_in_memory(place: Path = IN_MEMORY, bytes_free_min: int = BYTES_FREE_MIN) -> Path | None:
    """Where the data of servers is kept in memory; None without enough free memory there."""
    return place if place.is_dir() and shutil.disk_usage(place).free >= bytes_free_min else None
