"""Tells systemd how a worker is: units of `Type=notify` wait until it is ready, and a stuck one is restarted.

The protocol is one datagram (sd_notify(3)), so no library is needed. Without NOTIFY_SOCKET nothing is sent.
"""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress


class Systemd:
    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        # Half of the time after which systemd takes the process for stuck; 0: it never does.
        microseconds = environment.get("WATCHDOG_USEC", "")
        self._alive_every_s = int(microseconds) / 2_000_000 if microseconds.isdecimal() else 0.0
        self._alive_at_s = 0.0

    def ready(self) -> None:
        self._send("READY=1\nSTATUS=ready")

    def awaits(self, what: str) -> None:
        self._send(f"STATUS=waits for {what}"[:1000].replace("\r", " "))

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=drains")

    def alive(self, now_s: float) -> None:
        """To be called often; sends as seldom as systemd allows."""
        if self._alive_every_s and now_s - self._alive_at_s >= self._alive_every_s:
            self._alive_at_s = now_s
            self._send("WATCHDOG=1")

    def _send(self, state: str) -> None:
        if not self._address:
            return
        # An address that begins with @ is in the abstract namespace.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        # A worker must not fail, nor wait, because nobody listens.
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender,
        ):
            sender.sendto(state.encode(), address)
