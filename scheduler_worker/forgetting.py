"""Old requests and removed hosts are forgotten."""

import logging
import random
from collections.abc import Callable
from datetime import datetime, timedelta

from msgspec import structs

from bus.message import ProviderId
from bus.parts import Periodic
from scheduler_worker.core.host_modes import may_be_forgotten, with_mode
from scheduler_worker.hosts.registry import HostRegistry
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store import SchedulerStore

log = logging.getLogger(__name__)


class Forgetting(Periodic):
    """Deletes the rows of requests whose instances were all deleted long ago, and of hosts that were removed."""

    def __init__(
        self,
        store: SchedulerStore,
        registry: HostRegistry,
        is_provided: Callable[[ProviderId], bool],
        settings: SchedulerSettings,
        clock: Callable[[], datetime],
        *,
        down_after: timedelta,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__("forget old requests", self._prune, settings.prune_every_s, chance=chance)
        self._store = store
        self._registry = registry
        self._is_provided = is_provided
        # Hosts that are down and have no provider, and since when this process knows that.
        self._removed_at: dict[ProviderId, datetime] = {}
        self._settings = settings
        self._down_after = down_after
        self._clock = clock

    async def _prune(self) -> None:
        settings = self._settings
        before = self._clock() - 2 * settings.horizon
        while await self._store.prune(before, settings.prune_rows_max) >= settings.prune_rows_max:
            pass
        await self._forget_hosts()

    async def _forget_hosts(self) -> None:
        """Delete the hosts that were removed: those that have been down and without a provider for longer than
        `hosts_kept_s`. A host that is only down may come back.
        """
        now = self._clock()
        removed = {
            host.id: host.sequence
            for host in self._registry.unheard_since(now - self._down_after)
            if not self._is_provided(host.id)
        }
        self._removed_at = {host: self._removed_at.get(host, now) for host in removed}
        before = now - timedelta(seconds=self._settings.hosts_kept_s)
        known = {host: removed[host] for host, at in self._removed_at.items() if at <= before}
        if not known:
            return
        async with self._store.transaction() as transaction:
            rows = await transaction.lock_hosts(sorted(known), ())
            # Another worker may have heard of the host since.
            later = {row.id for row in rows if row.sequence > known[row.id]}
            removed_rows = [row for row in rows if row.id not in later]
            # A host that comes back is a new one: its cell must not go by an old setting.
            set_up = [
                structs.replace(with_mode(row, "up", "", "", now), sequence=row.sequence + 1)
                for row in removed_rows
                if row.setting.mode != "up"
            ]
            await transaction.save_hosts(set_up, now)
            kept = later | {row.id for row in removed_rows if not may_be_forgotten(row)}
            await transaction.forget_hosts([row.id for row in removed_rows if row.id not in kept])
        self._registry.learn(set_up)
        forgotten = [host for host in known if host not in kept]
        self._registry.forget(forgotten)
        log.info("forgot %d hosts that were removed", len(forgotten))
