"""Helps to start a server: a free port, a limited wait, and the log if it fails."""

import random
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path

START_PATIENCE_S = 90.0
LOG_LINES_SHOWN = 25
_POLL_S = 0.05
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_PORT = 15_000


class DidNotStartError(RuntimeError):
    """The server ended or did not answer in time; the message has the end of its log."""


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


def wait_until_ready(
    name: str, *, ready: Callable[[], bool], alive: Callable[[], bool], logs: Iterable[Path]
) -> None:
    """Wait until it is ready. If it ends or takes too long, raise an error with the end of its log."""
    deadline = time.monotonic() + START_PATIENCE_S
    while not ready():
        if not alive():
            raise DidNotStartError(f"{name} ended while starting\n{_ends_of(logs)}")
        if time.monotonic() > deadline:
            raise DidNotStartError(f"{name} was not ready within {START_PATIENCE_S:g} s\n{_ends_of(logs)}")
        time.sleep(_POLL_S)


def _ends_of(logs: Iterable[Path]) -> str:
    parts = []
    for log in logs:
        if log.exists():
            lines = log.read_text(errors="replace").splitlines()
            shown = lines[-LOG_LINES_SHOWN:]
            parts.append("\n".join((f"last {len(shown)} of {len(lines)} lines of {log.name}:", *shown)))
    return "\n".join(parts) or "it wrote no log"
