"""Serves a memory broker to other processes of this machine."""

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bus.memory import MemoryBroker
from bus.unix_socket.session import Session

# The system's limit on a socket's path, without the final zero byte.
PATH_BYTES_MAX = 107
BACKLOG = 128


class SocketTakenError(OSError):
    """The path cannot be served: another process serves it, its file must not be replaced, or none can be made."""


@asynccontextmanager
async def serve_unix(broker: MemoryBroker, path: str | os.PathLike[str]) -> AsyncIterator[None]:
    """A context in which the broker is served at this path, to processes of this user of the machine."""
    # Parcels leave this process from now on.
    broker.host.hands_over = False
    place = Path(path)
    listening = _listen(place)
    inode = _inode(place)
    sessions: dict[asyncio.Task[None], Session] = {}

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = Session(broker, reader, writer)
        running = asyncio.create_task(session.run())
        sessions[running] = session
        running.add_done_callback(sessions.pop)

    server = await asyncio.start_unix_server(begin, sock=listening, backlog=BACKLOG)
    try:
        yield
    finally:
        server.close()
        running = [*sessions]
        for session in sessions.values():
            session.end("the broker is served no more")
        await asyncio.gather(*running)
        if _inode(place) == inode:
            # Otherwise another process serves there by now.
            _remove(place)


def _listen(place: Path) -> socket.socket:
    if len(os.fsencode(place)) > PATH_BYTES_MAX:
        raise SocketTakenError(
            f"{place} is too long for a socket, at most {PATH_BYTES_MAX} bytes: choose another path"
        )
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _make_way(place)
        listening.bind(os.fspath(place))
        # No client can connect before we listen, so the file is private before the first one does.
        place.chmod(0o600)
        listening.setblocking(False)
    except SocketTakenError:
        listening.close()
        raise
    except OSError as problem:
        listening.close()
        raise SocketTakenError(f"{place} cannot be made: {problem}; choose another path") from problem
    return listening


def _make_way(place: Path) -> None:
    """Remove a socket that no process answers: a process that died left it behind."""
    try:
        mode = place.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SocketTakenError(f"{place} exists and is not a socket: it was not changed, choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(os.fspath(place))
        except ConnectionRefusedError:
            _remove(place)
            return
    raise SocketTakenError(f"{place} is served by another process: stop it first, or choose another path")


def _inode(place: Path) -> int | None:
    try:
        return place.stat().st_ino
    except FileNotFoundError:
        return None


def _remove(place: Path) -> None:
    place.unlink(missing_ok=True)
