"""What time drives: requests whose deadline has passed, hosts that fell silent, other workers' word about hosts.

Everything works from rows, and rows stay due until they are written: a crash in between repeats it.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from bus.message import ProviderId
from bus.parts import Periodic
from bus.publisher import Outgoing, Publisher
from scheduler_worker.core.instances.lifecycle import messages_of, overdue
from scheduler_worker.hosts.registry import HostRegistry
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store import SchedulerStore

log = logging.getLogger(__name__)

OVERDUE_AT_ONCE = 200
# Clocks differ, and a write is committed after its time was taken.
OVERLAP = timedelta(seconds=60)
EVER = datetime(1970, 1, 1, tzinfo=UTC)


class Deadlines(Periodic):
    """Ends what was accepted and never placed: a request among the dead letters ends, too."""

    def __init__(
        self,
        store: SchedulerStore,
        publisher: Publisher,
        poll_s: float,
        clock: Callable[[], datetime],
        chance: random.Random | None = None,
    ) -> None:
        super().__init__("end what is overdue", self._look, poll_s, chance=chance)
        self._store = store
        self._publisher = publisher
        self._clock = clock

    async def _look(self) -> None:
        while await self._end_some() == OVERDUE_AT_ONCE:
            pass

    async def _end_some(self) -> int:
        late = await self._store.overdue(self._clock(), OVERDUE_AT_ONCE)
        if not late:
            return 0
        async with self._store.transaction() as transaction:
            rows = await transaction.lock(sorted(late, key=lambda id_: id_.int))
            ended = [row for each in rows.values() if (row := overdue(each, self._clock())) is not None]
            await transaction.save(ended)
            keys = await transaction.note([ended] if ended else [])
        said = [Outgoing(message) for row in ended for message in messages_of(row)]
        await self._publisher.send_all(said, keys)
        async with self._store.transaction() as transaction:
            await transaction.confirm(keys)
        return len(late)


class Forgetting(Periodic):
    """Forgets requests of which everything was deleted long ago, and hosts that were removed."""

    def __init__(
        self,
        store: SchedulerStore,
        registry: HostRegistry,
        is_provided: Callable[[ProviderId], bool],
        settings: SchedulerSettings,
        clock: Callable[[], datetime],
        *,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__("forget old requests", self._prune, settings.prune_every_s, chance=chance)
        self._store = store
        self._registry = registry
        self._is_provided = is_provided
        # Hosts that are down and have no provider, and since when this process knows of it.
        self._removed_at: dict[ProviderId, datetime] = {}
        self._settings = settings
        self._clock = clock

    async def _prune(self) -> None:
        settings = self._settings
        before = self._clock() - 2 * settings.horizon
        while await self._store.prune(before, settings.prune_rows_max) >= settings.prune_rows_max:
            pass
        await self._forget_hosts()

    async def _forget_hosts(self) -> None:
        """A host that is down may come back; one that is down and has no provider either was removed."""
        now = self._clock()
        down = self._registry.unheard_since(now - timedelta(seconds=self._settings.host_down_s))
        removed = {host.id: host.sequence for host in down if not self._is_provided(host.id)}
        self._removed_at = {host: self._removed_at.get(host, now) for host in removed}
        before = now - timedelta(seconds=self._settings.hosts_kept_s)
        known = {host: removed[host] for host, at in self._removed_at.items() if at <= before}
        if not known:
            return
        async with self._store.transaction() as transaction:
            rows = await transaction.lock_hosts(sorted(known, key=lambda id_: id_.int), ())
            # Another worker may have heard of it since.
            later = {row.id for row in rows if row.sequence > known[row.id]}
            await transaction.forget_hosts([row.id for row in rows if row.id not in later])
        forgotten = [host for host in known if host not in later]
        self._registry.forget(forgotten)
        log.info("forgot %d hosts that were removed", len(forgotten))


class HostWatch(Periodic):
    """Reads all hosts at start, and what other workers have written since; notices who fell silent."""

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
        self._since = EVER
        self.read = asyncio.Event()

    async def look_again(self, unknown: Iterable[ProviderId]) -> None:
        """On return, the registry has of these, and of hosts that were disabled, what was written before the call."""
        doubted = [*unknown, *self._registry.disabled()]
        if doubted:
            self._registry.learn(await self._store.hosts_of(doubted))

    async def refresh(self) -> None:
        """On return, the registry has what was written before the call."""
        now = self._clock()
        self._registry.learn(await self._store.hosts_changed(self._since))
        self._since = now - OVERLAP
        self.read.set()

    async def _look(self) -> None:
        try:
            await self.refresh()
        finally:
            # A host falls silent whether or not the database can be read.
            self._registry.look()
