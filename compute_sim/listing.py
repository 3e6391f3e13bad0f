"""Lists to the conductors which attempts each host has, whenever answers of the host may have been lost.

That is when its compute starts, and when the host can send again after it could not. The conductors order the host to destroy
the attempts that the cell does not count on. Only the compute knows of every such moment: a conductor may be down meanwhile,
and the silence may be shorter than a conductor notices.
"""

import random
from collections.abc import Iterable

from bus.message import ProviderId
from bus.messages.host_modes import CheckHost
from bus.parts import Periodic
from bus.workers.publisher import Outgoing, Publisher
from compute_sim.core.holding import holdings
from compute_sim.fleet import Fleet
from compute_sim.settings import ComputeSettings
from compute_sim.store import ComputeStore

# All hosts of a process may be listed at once. Then they are, one part after another.
LISTED_AT_ONCE = 200


class AttemptLister(Periodic):
    """A part of a compute that lists the attempts of its hosts without being asked."""

    def __init__(
        self,
        fleet: Fleet,
        store: ComputeStore,
        publisher: Publisher,
        settings: ComputeSettings,
        *,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__(
            "list the attempts of hosts", self._list, settings.beat_s, is_cut_short=True, chance=chance
        )
        self._fleet = fleet
        self._store = store
        self._publisher = publisher
        self._cell = settings.cell
        # Hosts whose answers may have been lost since they were last listed; at first the answers of an earlier process.
        self._unlisted: dict[ProviderId, None] = dict.fromkeys(fleet)

    def touch(self, hosts: Iterable[ProviderId]) -> None:
        """Note those of these hosts that cannot send now: they are listed when they can again."""
        self._unlisted.update(dict.fromkeys(self._fleet.unwell(hosts, self._fleet.clock_s())))

    async def _list(self) -> None:
        self.touch(self._fleet)
        hosts = self._fleet.well(self._unlisted, self._fleet.clock_s())
        if not hosts:
            return
        async with self._store.transaction() as tx:
            attempts = await tx.of_hosts(hosts)
        # A host that falls silent from here on is noted again. One that has no attempts need not be listed.
        for host in hosts:
            del self._unlisted[host]
        lists = [(host, holdings(self._order(host), some)) for host, some in attempts.items()]
        while lists:
            try:
                await self._publisher.send_all([Outgoing(each) for _, each in lists[:LISTED_AT_ONCE]])
            except Exception:
                self._unlisted.update(dict.fromkeys(host for host, _ in lists))
                raise
            del lists[:LISTED_AT_ONCE]

    def _order(self, host: ProviderId) -> CheckHost:
        """The order that this list would answer, if the host had been asked."""
        return CheckHost(cell=self._cell, host=host, number=0)
