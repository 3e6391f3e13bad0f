"""Publishes facts and cached images of hosts when they change, and regularly their metrics and heartbeats.

One message tells of many hosts. Sequence numbers are taken from the clock, so that they keep rising after a restart without
being stored.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from bus.message import CellName, ProviderId
from bus.messages.hosts import (
    HostImages,
    HostMetrics,
    HostsMeasured,
    HostsReported,
    ImagesCached,
    in_messages,
)
from bus.parts import Periodic
from bus.workers.announcing import HostAnnouncer
from bus.workers.publisher import Publisher
from compute_sim.core.hosts import facts_of
from compute_sim.fleet import Fleet
from compute_sim.settings import ComputeSettings
from compute_sim.store import ComputeStore


class FleetAnnouncer(HostAnnouncer[None]):
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
        measuring = Periodic(
            "tell what hosts measure",
            self._tell_metrics,
            settings.metrics_every_s,
            is_cut_short=True,
            chance=chance,
        )
        super().__init__(
            "tell of changed hosts",
            "heartbeats",
            publisher,
            every_s=settings.facts_every_s,
            beat_s=settings.beat_s,
            beside=(measuring,),
            chance=chance,
        )
        self._fleet = fleet
        self._store = store
        self._settings = settings
        self._next_sequence = next_sequence
        # The cached images that each host has told since all were told.
        self._told_images: dict[ProviderId, Sequence[str]] = {}
        self._all_told_at_s = 0.0
        self.touch(fleet)

    def touch(self, hosts: Iterable[ProviderId]) -> None:
        """Note these hosts, so that their facts are published."""
        self.touched.update(dict.fromkeys(hosts))

    async def report(self) -> None:
        self.touch(await self._store.take_changed())
        await super().report()
        await self._tell_images()

    async def reports(self, touched: Iterable[ProviderId]) -> Iterator[HostsReported]:
        # A host that is silent now is touched again when it comes back.
        hosts = self._well(touched)
        # Taken before the loads are read, so that later facts have a higher number.
        sequence = self._next_sequence()
        loads = await self._store.loads(hosts)
        facts = [
            facts_of(
                id_,
                self._fleet[id_].host,
                loads[id_],
                self._fleet.failed_builds.of(id_),
                self._fleet.refused_reports.get(id_, ""),
            )
            for id_ in hosts
        ]
        return (
            HostsReported(cell=self._settings.cell, hosts=some, sequence=sequence)
            for some in in_messages(facts)
        )

    def alive(self) -> Mapping[CellName, Sequence[ProviderId]]:
        return {self._settings.cell: self._well(self._fleet)}

    def _well(self, hosts: Iterable[ProviderId]) -> list[ProviderId]:
        return self._fleet.well(hosts, self._fleet.clock_s())

    async def _tell_metrics(self) -> None:
        at_s = self._fleet.clock_s()
        measured = [
            HostMetrics(id=id_, values=dict(values))
            for id_ in self._fleet.well(self._fleet, at_s)
            if (values := self._fleet[id_].metrics(at_s))
        ]
        sequence = self._next_sequence()
        await self.send(
            HostsMeasured(cell=self._settings.cell, hosts=some, sequence=sequence)
            for some in in_messages(measured)
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
        await self.send(
            ImagesCached(cell=self._settings.cell, hosts=some, sequence=sequence)
            for some in in_messages(hosts)
        )
        told.update({each.id: news[each.id] for each in hosts})
