"""Publishes facts and cached images of hosts when they change, and regularly their metrics and heartbeats.

One message tells of many hosts. Sequence numbers are taken from the clock, so that they keep rising after a restart without
being stored.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence

from bus.message import CellName, ProviderId
from bus.messages.hosts import (
    HostImages,
    HostMetrics,
    HostsMeasured,
    HostsReported,
    ImagesCached,
    in_messages,
)
from bus.parts import PartGroup, Periodic
from bus.workers.heartbeats import HostHeartbeats
from bus.workers.publisher import Outgoing, Publisher
from compute_sim.core.hosts import facts_of
from compute_sim.fleet import Fleet
from compute_sim.settings import ComputeSettings
from compute_sim.store import ComputeStore


class HostAnnouncer(PartGroup):
    def __init__(
        self,
        fleet: Fleet,
        store: ComputeStore,
        publisher: Publisher,
        settings: ComputeSettings,
        next_sequence: Callable[[], int],
        *,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__(
            Periodic(
                "tell of changed hosts",
                self._announce,
                settings.facts_every_s,
                is_cut_short=True,
                chance=chance,
            ),
            Periodic(
                "tell what hosts measure",
                self._tell_metrics,
                settings.metrics_every_s,
                is_cut_short=True,
                chance=chance,
            ),
            HostHeartbeats("heartbeats", publisher, self._alive, settings.beat_s, chance=chance),
        )
        self._fleet = fleet
        self._store = store
        self._publisher = publisher
        self._settings = settings
        self._next_sequence = next_sequence
        self._touched: dict[ProviderId, None] = dict.fromkeys(fleet)
        # The cached images that each host has told since all were told.
        self._told_images: dict[ProviderId, Sequence[str]] = {}
        self._all_told_at_s = 0.0

    def touch(self, hosts: Iterable[ProviderId]) -> None:
        """Note these hosts, so that their facts are published."""
        self._touched.update(dict.fromkeys(hosts))

    async def _announce(self) -> None:
        self.touch(await self._store.take_changed())
        # A host that is silent now is touched again when it comes back.
        hosts = self._fleet.well(self._touched, self._fleet.clock_s())
        self._touched.clear()
        try:
            await self._publisher.send_all(await self._facts(hosts))
        except Exception:
            self.touch(hosts)
            raise
        await self._tell_images()

    def _alive(self) -> Mapping[CellName, Sequence[ProviderId]]:
        return {self._settings.cell: self._fleet.well(self._fleet, self._fleet.clock_s())}

    async def _tell_metrics(self) -> None:
        at_s = self._fleet.clock_s()
        hosts = self._fleet.well(self._fleet, at_s)
        measured = [
            HostMetrics(id=id_, values=dict(values))
            for id_ in hosts
            if (values := self._fleet[id_].metrics(at_s))
        ]
        sequence = self._next_sequence()
        await self._publisher.send_all(
            [
                Outgoing(HostsMeasured(cell=self._settings.cell, hosts=some, sequence=sequence))
                for some in in_messages(measured)
            ]
        )

    async def _tell_images(self) -> None:
        at_s = self._fleet.clock_s()
        if at_s - self._all_told_at_s >= self._settings.images_every_s:
            self._told_images.clear()
            self._all_told_at_s = at_s
        told = self._told_images
        cached = {id_: images for id_ in self._fleet if (images := self._fleet[id_].images())}
        news = {id_: images for id_, images in cached.items() if told.get(id_) != images}
        hosts = [HostImages(id=id_, images=tuple(news[id_])) for id_ in self._fleet.well(news, at_s)]
        if not hosts:
            return
        sequence = self._next_sequence()
        await self._publisher.send_all(
            [
                Outgoing(ImagesCached(cell=self._settings.cell, hosts=some, sequence=sequence))
                for some in in_messages(hosts)
            ]
        )
        told.update({each.id: news[each.id] for each in hosts})

    async def _facts(self, hosts: Sequence[ProviderId]) -> list[Outgoing]:
        # Taken before the loads are read, so that later facts have a higher number.
        sequence = self._next_sequence()
        loads = await self._store.loads(hosts)
        facts = [
            facts_of(id_, self._fleet[id_].host, loads[id_], self._fleet.failed_builds.of(id_))
            for id_ in hosts
        ]
        return [
            Outgoing(HostsReported(cell=self._settings.cell, hosts=some, sequence=sequence))
            for some in in_messages(facts)
        ]
