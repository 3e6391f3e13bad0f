"""Publishes what is said of nodes and allocations, as the script has it: once, twice, late or never."""

import random
from collections.abc import Callable, Sequence
from functools import partial

from compute_sim.ironic.core.allocations import AllocationWritten
from compute_sim.ironic.core.moves import Said
from compute_sim.ironic.core.payloads import payload_of
from compute_sim.ironic.core.script import About, IronicScript, publishings
from compute_sim.ironic.notifications import PROPERTIES, Publish, body_of, routing_key
from compute_sim.ironic.timers import Timers


class Announcer:
    def __init__(
        self,
        publish: Publish,
        host: str,
        timers: Timers,
        about: Callable[[str, float], About],
        chance: random.Random,
    ) -> None:
        self.script = IronicScript()
        self.published = 0
        self.lost = 0
        self._publish = publish
        self._host = host
        self._timers = timers
        self._about = about
        self._chance = chance
        self._last_us = 0

    def say(self, said: Said | AllocationWritten, at_s: float, request_id: str) -> None:
        # No two notifications have the same time: consumers order those of one node by it.
        self._last_us = max(int(at_s * 1e6), self._last_us + 1)
        payload = payload_of(said)
        key = routing_key(payload)
        body = body_of(payload, self._last_us, self._host, request_id, self._chance)
        times: Sequence[float] = (0.0,)
        if self.script.faults:
            times = publishings(self.script, payload.event_type, self._about(_uuid(said), at_s))
        if not times:
            self.lost += 1
        for late_s in times:
            if late_s:
                self._timers.at(at_s + late_s, partial(self._send_late, key, body))
            else:
                self._send(key, body)

    def _send_late(self, key: str, body: bytes, _due_s: float) -> None:
        self._send(key, body)

    def _send(self, key: str, body: bytes) -> None:
        self.published += 1
        self._publish(key, PROPERTIES, body)


def _uuid(said: Said | AllocationWritten) -> str:
    return said.allocation.uuid if isinstance(said, AllocationWritten) else said.node.uuid
