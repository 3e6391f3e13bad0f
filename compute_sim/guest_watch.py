"""Looks at a host as soon as its driver says that something has changed there: work that has ended, or a guest that has stopped.

Drivers may lose an event, so hosts are also looked at regularly, by the drivers themselves: they wake this part whenever what they
see differs from before.
"""

import asyncio
import random
from collections.abc import Sequence

from bus.message import ProviderId
from bus.parts import Supervised, wait_at_most
from compute_sim.core.attempts import AttemptRecord, AttemptState, stopped_by_itself
from compute_sim.fleet import Fleet
from compute_sim.settings import ComputeSettings
from compute_sim.store import ComputeStore

_BUSY = frozenset(
    {
        AttemptState.BUILDING,
        AttemptState.RECEIVING,
        AttemptState.STOPPING,
        AttemptState.STARTING,
        AttemptState.REBUILDING,
        AttemptState.DESTROYED,
    }
)


class GuestWatch(Supervised):
    """A part of a compute that follows the changes of guests and of work."""

    def __init__(
        self,
        fleet: Fleet,
        store: ComputeStore,
        settings: ComputeSettings,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__("follow the guests", self._follow, chance=chance)
        self._fleet = fleet
        self._store = store
        self._settings = settings
        self._woken = asyncio.Event()
        self._changed: dict[ProviderId, None] = {}
        for host in fleet:
            fleet[host].wake_with(self._wake)

    def _wake(self, host: ProviderId) -> None:
        self._changed[host] = None
        self._woken.set()

    async def _follow(self) -> None:
        while True:
            self.status.well()
            await self._woken.wait()
            self._woken.clear()
            hosts = [*self._changed]
            self._changed.clear()
            if await self._look(hosts):
                # An answer is on its way that would be lost with the state: later.
                await wait_at_most(self._woken, self._settings.again_s)
                for host in hosts:
                    self._wake(host)

    async def _look(self, hosts: Sequence[ProviderId]) -> bool:
        """Look at these hosts. Returns whether a guest has stopped of which that cannot be told yet."""
        at_s = self._fleet.clock_s()
        told: list[tuple[AttemptRecord, AttemptRecord]] = []
        must_wait = False
        # Within a transaction, all attempts are saved whose work has begun.
        async with self._store.transaction() as tx:
            of_hosts = await tx.of_hosts(hosts)
            for host, attempts in of_hosts.items():
                running = [each for each in attempts if each.state is AttemptState.BUILT]
                for stopped in self._fleet[host].stopped(running):
                    if stopped.attempt.due_s is not None:
                        must_wait = True
                    else:
                        told.append((stopped.attempt, stopped_by_itself(stopped.attempt, stopped.why, at_s)))
            await tx.replace(told)
        busy = [
            each.key
            for attempts in of_hosts.values()
            for each in attempts
            if each.due_s is not None and each.state in _BUSY
        ]
        if busy:
            self._store.due_again(busy, at_s)
        return must_wait
