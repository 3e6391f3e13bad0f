"""Repeats one costly request over HTTP, in a process of its own: `python -m tools.benchmarks.hard_asker HOST PORT
STATUS`

Stdin holds the request. The process ends when it is killed, when the server ends, or when an answer has another status.
"""

import http.client
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
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        while answer.readinto(room):
            pass
        return answer.status


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
