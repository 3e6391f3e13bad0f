"""Notifications exactly as Ironic publishes them: an envelope of oslo.messaging, JSON inside JSON; each once, or twice, late or never if the
script of faults says so; and sent at most once, as by Ironic's own sender.

Our messages have a message_id and a user_id, which Ironic's do not have, and lack content_encoding and priority. The body, the exchange and
the routing key are as Ironic's.
"""

import asyncio
import heapq
import json
import random
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from bus.broker import Broker
from bus.message import Parcel
from bus.topology import Exchange, Objects
from kit.errors import Operational
from kit.parts import Supervised
from laboratory.ironic.node import NodeEvent, Payload, payload_of
from laboratory.ironic.script import IronicScript, Subject, publishings
from laboratory.ironic.work import IronicSimSettings

Action = Callable[[float], None]
Publish = Callable[[str, Mapping[str, Any], bytes], None]

TOPIC = "ironic_versioned_notifications"
PROPERTIES: Mapping[str, Any] = {
    "content_encoding": "utf-8",
    "content_type": "application/json",
    "delivery_mode": 2,
    "headers": {},
    "priority": 0,
}


def routing_key(payload: Payload) -> str:
    return f"{TOPIC}.{'error' if payload.is_error else 'info'}"


def body_of(payload: Payload, at_us: int, host: str, request_id: str, chance: random.Random) -> bytes:
    """The bytes of a notification, whose keys are those of the captured messages, in the same order."""
    message: dict[str, Any] = {
        "message_id": new_uuid(chance),
        "publisher_id": f"ironic-{payload.service}.{host}",
        "event_type": payload.event_type,
        "priority": "ERROR" if payload.is_error else "INFO",
        "payload": {
            "ironic_object.name": payload.name,
            "ironic_object.namespace": "ironic",
            "ironic_object.version": payload.version,
            "ironic_object.data": payload.data,
        },
        "timestamp": f"{_second(at_us // 1_000_000)}.{at_us % 1_000_000:06}",
        "_unique_id": UUID(int=chance.getrandbits(128), version=4).hex,
        "_context_user": None,
        "_context_project_id": None,
        "_context_system_scope": None,
        "_context_project": None,
        "_context_domain": None,
        "_context_user_domain": None,
        "_context_project_domain": None,
        "_context_is_admin": False,
        "_context_read_only": False,
        "_context_show_deleted": False,
        "_context_auth_token": None,
        "_context_request_id": request_id,
        "_context_global_request_id": None,
        "_context_resource_uuid": None,
        "_context_roles": [],
        "_context_user_identity": "- - - - -",
        "_context_is_admin_project": True,
        "_context_auth_token_info": None,
    }
    envelope = {"oslo.version": "2.0", "oslo.message": json.dumps(message)}
    return json.dumps(envelope).encode()


@lru_cache(maxsize=16)
def _second(at_s: int) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S}"


def new_uuid(chance: random.Random) -> str:
    return str(UUID(int=chance.getrandbits(128), version=4))


def new_request_id(chance: random.Random) -> str:
    return f"req-{new_uuid(chance)}"


class ActionTimers:
    """Runs actions when they are due. An action is called with its due time, however late it runs."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Action]] = []
        self._number = 0

    @property
    def next_due_s(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def at(self, due_s: float, action: Action) -> None:
        self._number += 1
        heapq.heappush(self._heap, (due_s, self._number, action))

    def run_due(self, now_s: float, count_max: int | None = None) -> int:
        """Run the actions that are due, and those that they schedule for now. Returns how many were run."""
        count = 0
        while self._heap and self._heap[0][0] <= now_s and (count_max is None or count < count_max):
            due_s, _, action = heapq.heappop(self._heap)
            action(due_s)
            count += 1
        return count


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


class NotificationSender(Supervised):
    """Sends notifications; `publish` never waits. Messages under way when a connection breaks are lost, and counted."""

    def __init__(self, broker: Broker, settings: IronicSimSettings) -> None:
        super().__init__("send notifications", self._send)
        self._broker = broker
        self._settings = settings
        self._unsent: deque[Parcel] = deque()
        self._has_work = asyncio.Event()
        self.sent = 0
        self.lost = 0

    def publish(self, routing_key: str, properties: Mapping[str, Any], body: bytes) -> None:
        if len(self._unsent) >= self._settings.unsent_max:
            self._unsent.popleft()
            self.lost += 1
        self._unsent.append(
            Parcel(
                self._settings.exchange,
                routing_key,
                body,
                content_type=properties["content_type"],
                persistent=properties["delivery_mode"] == PROPERTIES["delivery_mode"],
            )
        )
        self._has_work.set()

    @property
    def unsent(self) -> int:
        return len(self._unsent)

    async def _send(self) -> None:
        connection = await self._broker.connect()
        try:
            # Declared as Ironic does: it is not durable, so it is declared again with each connection.
            await connection.declare(Objects(exchanges=(Exchange(self._settings.exchange, durable=False),)))
            publishing = await connection.open_publishing()
            self.status.well()
            while True:
                await self._has_work.wait()
                self._has_work.clear()
                while self._unsent:
                    await self._send_some(publishing.publish)
        finally:
            await connection.close()

    async def _send_some(self, publish: Any) -> None:
        count = min(len(self._unsent), self._settings.sends_at_once_max)
        parcels = [self._unsent.popleft() for _ in range(count)]
        receipts = await asyncio.gather(*map(publish, parcels), return_exceptions=True)
        problems = [each for each in receipts if isinstance(each, BaseException)]
        self.sent += count - len(problems)
        self.lost += len(problems)
        if problems:
            self._has_work.set()
            raise next((each for each in problems if not isinstance(each, Operational)), problems[0])
