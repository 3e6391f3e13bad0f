"""Heartbeats of hosts: a worker sends them for many hosts in one message. A host without heartbeats becomes silent."""

import random
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from itertools import islice

from bus.message import CellName, ProviderId
from bus.messages.hosts import HostsAlive
from bus.parts import Periodic
from bus.workers.publisher import Publisher

BEATS_PER_MESSAGE = 5000


def is_silent(unheard_for: timedelta, down_after: timedelta) -> bool:
    """Whether a host counts as down because no heartbeat of it came for this time.

    Schedulers and conductors all use this rule, with the same setting (`BusSettings.host_down_s`).
    """
    return unheard_for >= down_after


class HostHeartbeats(Periodic):
    """A part that sends the heartbeats of hosts at an interval. `alive` returns the hosts of each cell that are alive now.

    A heartbeat that has not left when the next is due is withdrawn: it would report an old state as the current one.
    """

    def __init__(
        self,
        name: str,
        publisher: Publisher,
        alive: Callable[[], Mapping[CellName, Iterable[ProviderId]]],
        every_s: float,
        *,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__(name, self._beat, every_s, rests_first=True, is_cut_short=True, chance=chance)
        self._publisher = publisher
        self._alive = alive
        self._beat_s = every_s

    async def _beat(self) -> None:
        beats = []
        for cell, hosts in self._alive().items():
            left = iter(hosts)
            while some := tuple(islice(left, BEATS_PER_MESSAGE)):
                beats.append(HostsAlive(cell=cell, hosts=some))
        await self._publisher.send_within(self._beat_s, beats)
