"""Tells schedulers and conductors which hosts there are and what lives: the one way of all rooms to send heartbeats, and to
report hosts whose facts have changed.
"""

import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import islice
from typing import Generic, TypeVar

from bus.message import CellName, Message, ProviderId
from bus.messages.hosts import HostsAlive
from bus.parts import PartGroup, Periodic
from bus.process import Part
from bus.workers.publisher import Outgoing, Publisher

BEATS_PER_MESSAGE = 5000

# What an announcer notes of a host whose facts have changed, such as its row.
Touched = TypeVar("Touched")


def is_silent(unheard_for: timedelta, down_after: timedelta) -> bool:
    """Whether a host counts as down because no heartbeat of it came for this time.

    Schedulers and conductors all use this rule, with the same setting (`BusSettings.host_down_s`).
    """
    return unheard_for >= down_after


class Heartbeats(Periodic):
    """A part that sends the heartbeats that `beats` returns, at an interval.

    A heartbeat that has not left when the next is due is withdrawn: it would report an old state as the current one.
    """

    def __init__(
        self,
        name: str,
        publisher: Publisher,
        beats: Callable[[], Awaitable[Sequence[Message]]],
        every_s: float,
        *,
        rests_first: bool = False,
        chance: random.Random | None = None,
    ) -> None:
        async def beat() -> None:
            await publisher.send_within(every_s, await beats())

        super().__init__(name, beat, every_s, rests_first=rests_first, is_cut_short=True, chance=chance)


class HostAnnouncer(PartGroup, Generic[Touched]):
    """Reports hosts when their facts change, and sends heartbeats of those that are alive.

    A subclass says in `reports` how changed hosts are reported, and in `alive` which hosts of each cell are alive now.
    """

    def __init__(
        self,
        reporting: str,
        beating: str,
        publisher: Publisher,
        *,
        every_s: float,
        beat_s: float,
        beside: Sequence[Part] = (),
        chance: random.Random | None = None,
    ) -> None:
        """`reporting` and `beating` are the names of the two parts, `every_s` and `beat_s` their intervals. The parts
        `beside` run with them.
        """
        self.reporting = Periodic(reporting, self.report, every_s, is_cut_short=True, chance=chance)
        heartbeats = Heartbeats(beating, publisher, self._beats, beat_s, rests_first=True, chance=chance)
        super().__init__(self.reporting, *beside, heartbeats)
        self.publisher = publisher
        # The hosts to report next, and those whose reports are being sent.
        self.touched: dict[ProviderId, Touched] = {}
        self.sending: dict[ProviderId, Touched] = {}

    async def reports(self, touched: Mapping[ProviderId, Touched]) -> Iterable[Message]:
        """The messages that report these hosts."""
        raise NotImplementedError

    def alive(self) -> Mapping[CellName, Iterable[ProviderId]]:
        raise NotImplementedError

    async def report(self) -> None:
        """Report the hosts that were touched. If that fails, they stay touched."""
        self.sending, self.touched = self.touched, {}
        try:
            await self.send(await self.reports(self.sending))
        except Exception:
            self.touched = self.sending | self.touched
            raise

    async def send(self, messages: Iterable[Message]) -> None:
        await self.publisher.send_all([Outgoing(each) for each in messages])

    async def _beats(self) -> Sequence[Message]:
        beats = []
        for cell, hosts in self.alive().items():
            left = iter(hosts)
            while some := tuple(islice(left, BEATS_PER_MESSAGE)):
                beats.append(HostsAlive(cell=cell, hosts=some))
        return beats
