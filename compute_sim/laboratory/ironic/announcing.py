"""Publishes the simulated Ironic's notifications: each once, or twice, late or never if its script of faults (IronicScript)
says so.
"""

import random

from compute_sim.laboratory.ironic.core.node_events import NodeEvent
from compute_sim.laboratory.ironic.core.payloads import Payload, payload_of
from compute_sim.laboratory.ironic.core.script import IronicScript, Subject, publishings
from compute_sim.laboratory.ironic.notifications import PROPERTIES, Publish, body_of, routing_key
from compute_sim.laboratory.ironic.timers import ActionTimers


class NotificationAnnouncer:
    def __init__(
        self,
        publish: Publish,
        host: str,
        timers: ActionTimers,
        chance: random.Random,
        started_s: float,
    ) -> None:
        self.script = IronicScript()
        self.published = 0
        self.lost = 0
        self._publish = publish
        self._host = host
        self._timers = timers
        self._chance = chance
        self._started_s = started_s
        # How often the script was asked about each node.
        self._counts: dict[str, int] = {}
        self._last_us = 0

    def since_s(self, at_s: float) -> float:
        """The seconds since the fault script began."""
        return max(0.0, at_s - self._started_s)

    def about(self, name: str | None, uuid: str, at_s: float) -> Subject:
        count = self._counts[uuid] = self._counts.get(uuid, 0) + 1
        return Subject(name, uuid, self.since_s(at_s), count)

    def say(self, said: NodeEvent, at_s: float, request_id: str) -> None:
        self.publish(payload_of(said), said.node.name, said.node.uuid, at_s, request_id)

    def publish(self, payload: Payload, name: str | None, uuid: str, at_s: float, request_id: str) -> None:
        """Publish the notification, which is about the object with this name and uuid."""
        # No two notifications have the same time, since consumers order the notifications of a node by it.
        self._last_us = max(int(at_s * 1e6), self._last_us + 1)
        key = routing_key(payload)
        body = body_of(payload, self._last_us, self._host, request_id, self._chance)
        times: tuple[float, ...] = (0.0,)
        if self.script.faults:
            times = publishings(self.script, payload.event_type, self.about(name, uuid, at_s))
        self.lost += not times
        for late_s in times:
            if late_s:
                self._timers.at(at_s + late_s, lambda _: self._send(key, body))
            else:
                self._send(key, body)

    def _send(self, key: str, body: bytes) -> None:
        self.published += 1
        self._publish(key, PROPERTIES, body)
