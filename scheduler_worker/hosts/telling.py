"""Tells the cells in which mode each of their hosts is (up, draining, down, dead). A host's row says which setting its
cell was told, so a message that was lost is sent again.
"""

from collections.abc import Callable
from datetime import datetime

from msgspec import structs

from bus.messages.hosts import HostState
from bus.parts import Periodic
from bus.workers.station import Station
from scheduler_worker.core.host_modes import is_untold, word_for_cell
from scheduler_worker.hosts.registry import HostRegistry
from scheduler_worker.store import HostQuery, SchedulerStore


class ModeTeller(Periodic):
    """Tells the cells on one broker in which mode their hosts are. There is one for each broker, so a broker that is
    away holds up no cells on others.
    """

    def __init__(
        self,
        station: Station,
        store: SchedulerStore,
        registry: HostRegistry,
        is_there: Callable[[str], bool],
        *,
        every_s: float,
        clock: Callable[[], datetime],
    ) -> None:
        """`is_there` says whether a cell uses the broker of this station."""
        super().__init__(
            "tell cells how hosts are set", self._tell, every_s, is_cut_short=True, chance=station.chance
        )
        self._publisher = station.publisher
        self._word_s = every_s
        self._store = store
        self._registry = registry
        self._is_there = is_there
        self._clock = clock
        registry.when_untold(self.wake)

    async def _tell(self) -> None:
        untold = [host.id for host in self._registry.untold() if self._is_there(host.cell)]
        if not untold:
            return
        # What this process knows may be older than the rows, or newer: then a report is not written yet.
        rows = [host for host in await self._store.hosts(HostQuery(ids=tuple(untold))) if is_untold(host)]
        words = [word_for_cell(host) for host in rows]
        if words and await self._publisher.send_within(self._word_s, words):
            await self._note_told(rows)

    async def _note_told(self, told: list[HostState]) -> None:
        numbers = {host.id: host.setting.number for host in told}
        async with self._store.transaction() as transaction:
            rows = await transaction.lock_hosts(sorted(numbers), ())
            noted = [
                structs.replace(host, told=numbers[host.id], sequence=host.sequence + 1)
                for host in rows
                if host.told < numbers[host.id]
            ]
            await transaction.save_hosts(noted, self._clock())
        self._registry.learn(noted)
