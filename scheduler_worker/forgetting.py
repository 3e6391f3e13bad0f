"""Old requests and removed hosts are forgotten, and requests past their deadline end."""

import logging
import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from msgspec import structs

from engine.flavors import InstanceId
from engine.inventories import ProviderId
from kit.parts import Periodic
from scheduler_worker.core.hosts import may_be_forgotten, with_mode
from scheduler_worker.core.instances.history import with_history
from scheduler_worker.core.instances.lifecycle import overdue
from scheduler_worker.hosts import HostRegistry
from scheduler_worker.outbox import FailedInstances, Outbox
from scheduler_worker.store_sql import SchedulerStore

log = logging.getLogger(__name__)


# A transaction stays short.
ROWS_AT_ONCE = 500
# A host that is taken out for a day's repair keeps its mode.
HOSTS_KEPT = timedelta(days=1)


class Forgetting(Periodic):
    """Deletes the rows of requests whose instances were all deleted long ago, and of hosts that were removed."""

    def __init__(
        self,
        store: SchedulerStore,
        registry: HostRegistry,
        is_provided: Callable[[ProviderId], bool],
        clock: Callable[[], datetime],
        *,
        horizon: timedelta,
        down_after: timedelta,
        every_s: float,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__("forget old requests", self._prune, every_s, chance=chance)
        self._store = store
        self._registry = registry
        self._is_provided = is_provided
        # Hosts that are down and have no provider, and since when this process knows that.
        self._removed_at: dict[ProviderId, datetime] = {}
        self._horizon = horizon
        self._down_after = down_after
        self._clock = clock

    async def _prune(self) -> None:
        before = self._clock() - 2 * self._horizon
        while await self._store.prune(before, ROWS_AT_ONCE) >= ROWS_AT_ONCE:
            pass
        while await self._store.put_names_in_order(ROWS_AT_ONCE) >= ROWS_AT_ONCE:
            pass
        await self._forget_hosts()

    async def _forget_hosts(self) -> None:
        """Delete the hosts that were removed: those that have been down and without a provider for longer than
        `HOSTS_KEPT`. A host that is only down may come back.
        """
        now = self._clock()
        removed = {
            host.id: host.sequence
            for host in self._registry.unheard_since(now - self._down_after)
            if not self._is_provided(host.id)
        }
        self._removed_at = {host: self._removed_at.get(host, now) for host in removed}
        before = now - HOSTS_KEPT
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


# The deadlines of requests: an accepted request that is not placed in time ends in error, and a move that waits for room fails.


OVERDUE_AT_ONCE = 200


class Deadlines(Periodic):
    """Ends requests that are past their deadline. Their rows stay overdue until they are written, so after a crash the
    step is repeated; and a request ends also if its message is a dead letter.
    """

    def __init__(
        self,
        store: SchedulerStore,
        outbox: Outbox,
        *,
        failed: FailedInstances,
        poll_s: float,
        clock: Callable[[], datetime],
        chance: random.Random | None = None,
    ) -> None:
        super().__init__("end what is overdue", self._look, poll_s, chance=chance)
        self._rows = failed.of("end what is overdue", lambda instance: self._end((instance,)))
        self._store = store
        self._outbox = outbox
        self._clock = clock

    async def _look(self) -> None:
        while await self._end_some():
            pass

    async def _end_some(self) -> bool:
        limit = OVERDUE_AT_ONCE + len(self._rows)
        due = await self._store.overdue(self._clock(), limit)
        await self._rows.each(due, self._end, lambda instance: instance)
        return len(due) == limit

    async def _end(self, due: Sequence[InstanceId]) -> None:
        async with self._outbox.transaction() as transaction:
            store = await transaction.begun()
            rows = await store.lock(sorted(due))
            ended = [
                with_history(each, row, "")
                for each in rows.values()
                if (row := overdue(each, self._clock())) is not None
            ]
            await store.save(ended)
            told = await transaction.say(ended)
        await self._outbox.publish(told)
