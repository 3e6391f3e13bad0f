"""The rows of hosts, read at start and whenever another worker may have written one; their loads, which are written beside the
rows; and the hosts that fell silent.
"""

import random
from collections.abc import Callable
from datetime import datetime, timedelta

from msgspec import structs

from bus.measuring import Readings
from bus.moments import EPOCH
from bus.parts import Periodic
from scheduler_worker.hosts.registry import HostRegistry
from scheduler_worker.store import HostQuery, HostVersion, SchedulerStore

# Clocks differ, and a write is committed after its time was taken.
OVERLAP = timedelta(seconds=60)
# Every worker hears the loads of hosts. They are read for the case that it has missed some.
LOADS_READ_AFTER = timedelta(seconds=60)


class HostWatch(Periodic):
    def __init__(
        self,
        store: SchedulerStore,
        registry: HostRegistry,
        poll_s: float,
        clock: Callable[[], datetime],
        chance: random.Random | None = None,
    ) -> None:
        super().__init__("read hosts", self._look, poll_s, is_needed=True, chance=chance)
        self._store = store
        self._registry = registry
        self._clock = clock
        self._since = EPOCH
        # The rows that were written lately, as they were read: each look finds them again for the time of the overlap.
        self._versions: dict[int, HostVersion] = {}
        self._loads_read_at = clock()

    @property
    def readings(self) -> Readings:
        return self._registry.readings

    async def look_again(self) -> None:
        """On return, the registry has every row of its doubted hosts that was written before the call."""
        if doubted := self._registry.doubted():
            self._registry.learn(await self._store.hosts(HostQuery(ids=doubted)))

    async def refresh(self) -> None:
        """Read changed hosts from the database. On return, the registry has every row that was written before the call."""
        now = self._clock()
        if self._since == EPOCH:
            self._registry.learn(await self._store.hosts(HostQuery()))
        else:
            versions = await self._store.host_versions(self._since)
            news = tuple([host for host, version in versions if self._versions.get(host.int) != version])
            if news:
                self._registry.learn(await self._store.hosts(HostQuery(ids=news)))
            self._versions = {host.int: version for host, version in versions}
        self._since = now - OVERLAP

    async def _read_loads(self) -> None:
        now = self._clock()
        if now - self._loads_read_at >= LOADS_READ_AFTER:
            self._registry.learn_loads(await self._store.host_loads())
            self._loads_read_at = now

    async def _look(self) -> None:
        try:
            await self.refresh()
            await self._read_loads()
        finally:
            # A host may fall silent while the database cannot be read.
            self._registry.look()
        await self._save_silences()

    async def _save_silences(self) -> None:
        """Write which hosts fell silent, and which are heard again: a scheduler that starts needs it. Every scheduler finds
        the same, and the first one writes it.
        """
        unsaid = self._registry.unsaid()
        if not unsaid:
            return
        async with self._store.transaction() as transaction:
            rows = await transaction.lock_hosts(sorted(unsaid), ())
            changed = [
                structs.replace(row, silent_since=unsaid[row.id], sequence=row.sequence + 1)
                for row in rows
                if (row.silent_since is None) is not (unsaid[row.id] is None)
            ]
            await transaction.save_hosts(changed, self._clock())
        self._registry.learn(changed)
