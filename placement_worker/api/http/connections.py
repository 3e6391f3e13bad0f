"""The open connections of one server: how many may be open, and which one is closed when there are more.

A connection is idle if no complete request of it is in progress: it was just opened, is kept alive, or has sent a part of
a request's head. When too many are open, in all or from one address, the one that has been idle longest is closed. If none
is idle, the new one is refused. Addresses of this machine have no limit of their own, since a proxy may use them.
"""

import ipaddress
import logging
from collections import Counter
from enum import StrEnum
from functools import lru_cache
from typing import Protocol

from placement_worker.api.settings import ApiSettings

log = logging.getLogger(__name__)

LOGGED_EVERY_S = 10.0
ADDRESSES_JUDGED_MAX = 4_096


class Closed(StrEnum):
    """The reason for which the server closed a connection, as the metric names it."""

    IDLE_TOO_MANY = "too_many"
    IDLE_TOO_MANY_OF_ADDRESS = "too_many_of_address"
    REFUSED = "refused"
    HEAD_LATE = "head_late"
    ANSWER_NOT_READ = "answer_not_read"


class ClientConnection(Protocol):
    address: str

    def close(self) -> None: ...


class Connections:
    def __init__(self, settings: ApiSettings) -> None:
        self._settings = settings
        self._idle: dict[ClientConnection, None] = {}
        self._of_address: Counter[str] = Counter()
        self.open = 0
        self.closed: Counter[Closed] = Counter()
        self._logged_at = float("-inf")
        self._unlogged = 0

    def opened(self, connection: ClientConnection, now: float) -> bool:
        """Add a new connection. Returns whether it may stay; if too many are open, the one that is idle longest is closed
        for it.
        """
        address = connection.address
        self.open += 1
        self._of_address[address] += 1
        self._idle[connection] = None
        of_address = self._settings.connections_per_address_max
        if self._of_address[address] > of_address and not is_of_this_machine(address):
            may_stay = self._close_oldest(connection, Closed.IDLE_TOO_MANY_OF_ADDRESS, now, address)
        elif self.open > self._settings.connections_max:
            may_stay = self._close_oldest(connection, Closed.IDLE_TOO_MANY, now)
        else:
            return True
        if not may_stay:
            del self._idle[connection]
            self.note_closed(connection, Closed.REFUSED, now)
        return may_stay

    def lost(self, connection: ClientConnection) -> None:
        self._idle.pop(connection, None)
        self.open -= 1
        self._of_address[connection.address] -= 1
        if not self._of_address[connection.address]:
            del self._of_address[connection.address]

    def is_busy(self, connection: ClientConnection) -> None:
        """Take the connection from the list of idle ones: a complete head of a request has arrived."""
        self._idle.pop(connection, None)

    def is_idle(self, connection: ClientConnection) -> None:
        """Add the connection to the list of idle ones: all its requests are answered."""
        self._idle[connection] = None

    def note_closed(self, connection: ClientConnection, why: Closed, now: float) -> None:
        """Count a connection that the server closed. Only now and then this is logged, since an attacker must not fill
        the log.
        """
        self.closed[why] += 1
        self._unlogged += 1
        if now - self._logged_at < LOGGED_EVERY_S:
            return
        log.warning(
            "closed %d connection(s), the last from %s: %s; %d are open, of %d at most (%d from one address)",
            *(self._unlogged, connection.address, _WORDS[why], self.open),
            *(self._settings.connections_max, self._settings.connections_per_address_max),
        )
        self._logged_at, self._unlogged = now, 0

    def _close_oldest(
        self, new: ClientConnection, why: Closed, now: float, address: str | None = None
    ) -> bool:
        for oldest in self._idle:
            if oldest is not new and (address is None or oldest.address == address):
                del self._idle[oldest]
                self.note_closed(oldest, why, now)
                oldest.close()
                return True
        return False


_WORDS = {
    Closed.IDLE_TOO_MANY: "too many are open, and this one had been idle longest",
    Closed.IDLE_TOO_MANY_OF_ADDRESS: "too many are open from its address, and this one had been idle longest",
    Closed.REFUSED: "too many are open, and none of them is idle",
    Closed.HEAD_LATE: "the head of its request was not complete in time",
    Closed.ANSWER_NOT_READ: "its client does not read the answer",
}


@lru_cache(maxsize=ADDRESSES_JUDGED_MAX)
def is_of_this_machine(address: str) -> bool:
    """Is this a loopback address, which only this machine can reach?"""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback
