"""Hears the heartbeats of the cell's hosts, and knows which hosts are silent. It needs nothing of the API level.

Silence counts only while this process listens: after it has connected again, or was suspended, each host counts as heard
just now.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import timedelta
from itertools import islice

from bus.message import CellName, Message, ProviderId
from bus.messages.hosts import HostsAlive
from bus.parts import State
from bus.topology import BEATS, EVENTS, Grant, in_cell
from bus.workers.handling import Received
from bus.workers.heartbeats import is_silent
from bus.workers.station import FeedListener, Station

# A silent host is remembered, however long: an order may still name it. Beyond so many hosts, which is more than a cell has,
# those that have been silent for longest are forgotten: they have left the cell.
HOSTS_KEPT_MAX = 100_000


class Beats(FeedListener):
    """Hears the heartbeats of the cell's hosts. `clock_s` never jumps; by default it is the event loop's."""

    def __init__(self, station: Station, cell: CellName, clock_s: Callable[[], float] | None = None) -> None:
        grant = Grant(EVENTS, tuple(in_cell(key, cell) for key in BEATS))
        super().__init__("hear the heartbeats of hosts", station, (grant,), self._take)
        self._cell = cell
        self._clock_s = clock_s or (lambda: asyncio.get_running_loop().time())
        self._down_after = timedelta(seconds=station.settings.host_down_s)
        # When each host was heard, the earliest first.
        self._heard: dict[int, float] = {}
        # Hosts that are needed, and were not heard since this process began to listen.
        self._never_heard: set[int] = set()
        self._since_s = 0.0
        self._judged_s = 0.0

    def _take(self, batch: Sequence[Received[Message]]) -> None:
        if batch == ():
            self._begin_again()
        for each in batch:
            if isinstance(each.message, HostsAlive) and each.message.cell == self._cell:
                self.hear(each.message.hosts)

    def hear(self, hosts: Iterable[ProviderId]) -> None:
        now_s = self._clock_s()
        for host in hosts:
            # To the end of the order.
            self._heard.pop(host.int, None)
            self._heard[host.int] = now_s
            self._never_heard.discard(host.int)
        for gone in [*islice(self._heard, max(0, len(self._heard) - HOSTS_KEPT_MAX))]:
            del self._heard[gone]

    def is_heard(self, host: ProviderId) -> bool:
        """Was this host heard, and is it not silent now?"""
        heard_s = self._heard.get(host.int)
        return heard_s is not None and not self._is_silent(heard_s)

    @property
    def has_listened_long(self) -> bool:
        """Has this process listened for long enough that hosts which it never heard are silent?"""
        return self._is_silent(self._since_s)

    def miss(self, hosts: Iterable[ProviderId]) -> None:
        """Count those of these hosts as silent that were never heard. Only to be called once `has_listened_long` is true."""
        self._never_heard.update(host.int for host in hosts if host.int not in self._heard)

    def silent(self) -> Collection[int]:
        """The hosts that are silent now.

        The caller asks often. If it did not ask for long, this process was suspended: then each host counts as heard
        just now.
        """
        now_s = self._clock_s()
        was_suspended = now_s - self._judged_s > self._down_after.total_seconds() / 2
        self._judged_s = now_s
        if self.status.state is not State.WELL or was_suspended:
            self._begin_again()
            return ()
        if not self.has_listened_long:
            return ()
        found = {*self._never_heard}
        for host, heard_s in self._heard.items():
            if not self._is_silent(heard_s):
                break
            found.add(host)
        return found

    def _is_silent(self, heard_s: float) -> bool:
        unheard_s = self._clock_s() - max(heard_s, self._since_s)
        return is_silent(timedelta(seconds=unheard_s), self._down_after)

    def _begin_again(self) -> None:
        self._since_s = self._clock_s()
        self._never_heard.clear()
