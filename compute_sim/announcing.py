"""Publishes facts about the hosts when they change, their metrics, and heartbeats of all hosts, many in one message.

Sequence numbers are taken from the clock, so that they keep rising after a restart without being stored.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence

from bus.message import CellName, ProviderId
from bus.messages.hosts import HostMetrics, HostsMeasured, HostsReported, in_messages
from bus.parts import PartGroup, Periodic
from bus.workers.heartbeats import HostHeartbeats
from bus.workers.publisher import Outgoing, Publisher
from compute_sim.core.hosts import facts_of
from compute_sim.fleet import Fleet
from compute_sim.settings import ComputeSettings
from compute_sim.store import ComputeStore


class Announcer(PartGroup):
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

    def touch(self, hosts: Iterable[ProviderId]) -> None:
        """Publish the facts of these hosts."""
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
