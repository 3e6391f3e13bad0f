"""Hears the heartbeats of the cell's hosts, and knows which hosts are silent. It needs nothing of the API level.

Silence counts only while this process listens: after it has connected again, or was suspended, each host counts as heard
just now. A host that was found silent before that, by this process or by one before it, stays silent until it is heard: by
a third of the usual time a host that lives has sent several heartbeats.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from math import inf

from bus.message import CellName, Message, ProviderId
from bus.messages.hosts import HostsAlive
from bus.parts import PartState
from bus.topology import BEATS, EVENTS, Grant, in_cell
from bus.workers.announcing import is_silent
from bus.workers.handling import Received
from bus.workers.station import FeedListener, Station
from cell_conductor.core.host_states import HeardHost

# A silent host is remembered, however long: an order may still name it. Beyond so many hosts, which is more than a cell has,
# those that have been silent for longest are forgotten: they have left the cell.
HOSTS_KEPT_MAX = 100_000
# Hosts that were found silent before this process listened are silent if they are not heard within this share of the time.
STILL_SILENT_AFTER = 1 / 3


class HeardHosts(FeedListener):
    """Hears the heartbeats of the cell's hosts. `clock_s` never jumps; by default it is the event loop's."""

    def __init__(self, station: Station, cell: CellName, clock_s: Callable[[], float] | None = None) -> None:
        grant = Grant(EVENTS, tuple(in_cell(key, cell) for key in BEATS))
        super().__init__("hear the heartbeats of hosts", station, (grant,), self._take)
        self._cell = cell
        self._clock_s = clock_s or (lambda: asyncio.get_running_loop().time())
        self._down_after = timedelta(seconds=station.settings.host_down_s)
        self._still_silent_after_s = station.settings.host_down_s * STILL_SILENT_AFTER
        # When each host was heard last.
        self._heard: dict[ProviderId, float] = {}
        # Hosts that are needed, and were not heard since this process began to listen.
        self._never_heard: set[ProviderId] = set()
        # Hosts that were found silent, and were not heard since.
        self._silent: set[ProviderId] = set()
        # Those of them of which their compute has said that it does not have them: nothing need be listened for.
        self._lost: set[ProviderId] = set()
        # The hosts that are heard, and those that are silent, as the database has them.
        self._said_heard: set[ProviderId] = set()
        self._said_silent: set[ProviderId] = set()
        self._since_s = 0.0
        self._judged_s = 0.0

    def _take(self, batch: Sequence[Received[Message]]) -> None:
        if batch == ():
            self._begin_again()
        for each in batch:
            if isinstance(each.message, HostsAlive) and each.message.cell == self._cell:
                self.hear(each.message.hosts)

    def hear(self, hosts: Iterable[ProviderId]) -> None:
        # A dict and a set that are made of a dict take its hashes over: Python computes that of a UUID at each lookup. The hosts that
        # are known stay the same objects, which are compared at once.
        heard = dict.fromkeys(hosts, self._clock_s())
        self._heard |= heard
        if self._never_heard or self._silent:
            ids = set(heard)
            self._never_heard -= ids
            self._silent -= ids
            self._lost -= ids
        if (too_many := len(self._heard) - HOSTS_KEPT_MAX) > 0:
            for gone in sorted(self._heard, key=self._heard.__getitem__)[:too_many]:
                del self._heard[gone]
                for known in (self._silent, self._lost, self._said_heard, self._said_silent):
                    known.discard(gone)

    def lose(self, hosts: Iterable[ProviderId]) -> None:
        """These hosts are silent until they are heard: nothing of the cell has them."""
        lost = dict.fromkeys(hosts, -inf)
        self._heard |= lost
        self._silent |= set(lost)
        self._lost |= set(lost)

    def remember(self, hosts: Sequence[HeardHost]) -> None:
        """Take over what the database says of the hosts that conductors have heard, at the start of this process."""
        self.said(hosts)
        unheard = {host.id for host in hosts} - set(self._heard)
        self._heard |= dict.fromkeys(sorted(unheard), -inf)
        self._silent |= unheard & self._said_silent

    def unsaid(self, now: datetime) -> list[HeardHost]:
        """The hosts of which the database does not say yet what this process knows."""
        silent = self._silent - self._said_silent
        heard = set(self._heard) - self._silent - self._said_heard
        return [HeardHost(host, now if host in silent else None) for host in sorted(silent | heard)]

    def said(self, hosts: Sequence[HeardHost]) -> None:
        """The database says this of these hosts now."""
        silent = {host.id for host in hosts if host.silent_since is not None}
        heard = {host.id for host in hosts} - silent
        self._said_heard = self._said_heard - silent | heard
        self._said_silent = self._said_silent - heard | silent

    def is_heard(self, host: ProviderId) -> bool:
        """Was this host heard, and is it not silent now?"""
        heard_s = self._heard.get(host, -inf)
        return heard_s > -inf and host not in self._silent and not self._is_silent(heard_s)

    @property
    def has_listened_long(self) -> bool:
        """Has this process listened for long enough that hosts which it never heard are silent?"""
        return self._is_silent(self._since_s)

    def miss(self, hosts: Iterable[ProviderId]) -> None:
        """Count those of these hosts as silent that were never heard. Only to be called once `has_listened_long` is true."""
        self._never_heard |= {*hosts} - self._heard.keys()

    def silent(self) -> Collection[ProviderId]:
        """The hosts that are silent now.

        The caller asks often. If it did not ask for long, this process was suspended: then each host counts as heard
        just now.
        """
        now_s = self._clock_s()
        was_suspended = now_s - self._judged_s > self._down_after.total_seconds() / 2
        self._judged_s = now_s
        if self.status.state is not PartState.WELL or was_suspended:
            self._begin_again()
            return ()
        if not self.has_listened_long:
            listened_s = now_s - self._since_s
            return {*(self._silent if listened_s >= self._still_silent_after_s else self._lost)}
        # Hosts are heard many at once, so these times are few.
        too_long_ago = {heard_s for heard_s in {*self._heard.values()} if self._is_silent(heard_s)}
        if too_long_ago:
            self._silent |= {host for host, heard_s in self._heard.items() if heard_s in too_long_ago}
        return self._silent | self._never_heard

    def _is_silent(self, heard_s: float) -> bool:
        unheard_s = self._clock_s() - max(heard_s, self._since_s)
        return is_silent(timedelta(seconds=unheard_s), self._down_after)

    def _begin_again(self) -> None:
        self._since_s = self._clock_s()
        self._never_heard.clear()
