"""Repeats one costly request over HTTP, in a process of its own: `python -m tools.benchmarks.hard_asker HOST PORT
STATUS`

Stdin holds the request. The process ends when it is killed, when the server ends, or when an answer has another status.
"""

import socket
import sys

_AT_ONCE = 1 << 20


def main(host: str, port: int, expected: int) -> None:
    request = sys.stdin.buffer.read()
    while (status := _status(host, port, request)) == expected:
        pass
    sys.exit(f"the costly question was answered with status {status}, not {expected}")


def _status(host: str, port: int, request: bytes) -> int:
    """Read the answer in large pieces and discard it: the client shares the CPUs with the server."""
    room = bytearray(_AT_ONCE)
    with socket.create_connection((host, port)) as connection:
        connection.sendall(request)
        head = b""
        while b"\r\n\r\n" not in head:
            if not (more := connection.recv(_AT_ONCE)):
                raise ConnectionError(f"the server closed the connection after {head!r}")
            head += more
        lines, _, body = head.partition(b"\r\n\r\n")
        lengths = [line for line in lines.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        length = int(lengths[0].split(b":")[1]) if lengths else 0
        left = length - len(body)
        while left > 0:
            if not (count := connection.recv_into(room, min(left, _AT_ONCE))):
                raise ConnectionError(f"the server closed the connection {left} bytes before the end")
            left -= count
    return int(head[9:12])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
