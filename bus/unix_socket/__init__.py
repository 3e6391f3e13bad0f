"""A memory broker, shared with other processes of this machine over a Unix socket: `moor up` serves it.

    frames.py   what is said over the socket, and how it is cut into frames
    server.py   the socket itself, which must be nobody else's
    session.py  one client, passed on to the memory broker
    client.py   the broker port over it

Who may open the socket's file may be any user of the broker: the file's permissions are the guard, the user's name is
trusted as it is given, and its rights are then enforced as everywhere.
"""

from bus.unix_socket.client import UnixBroker
from bus.unix_socket.server import SocketTakenError, serve_unix

__all__ = ["SocketTakenError", "UnixBroker", "serve_unix"]
