"""Notifications as Ironic publishes them: an envelope of oslo.messaging, JSON inside JSON, sent at most once, as by Ironic's own sender.

Our messages have a message_id and a user_id, which Ironic's do not have, and lack content_encoding and priority. The exchange, the routing
key and the form of the body are as Ironic's. Fields of a node that nobody changes here have the same value in each.
"""

import asyncio
import json
import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from msgspec import Struct, structs

from bus.broker import Broker
from bus.message import Parcel
from bus.topology import Exchange, Objects
from kit.errors import Operational
from kit.parts import Supervised
from laboratory.ironic.node import Said, SimulatedNode, second
from laboratory.ironic.work import IronicSimSettings

Publish = Callable[[str, Mapping[str, Any], bytes], None]

TOPIC = "ironic_versioned_notifications"
PROPERTIES: Mapping[str, Any] = {
    "content_encoding": "utf-8",
    "content_type": "application/json",
    "delivery_mode": 2,
    "headers": {},
    "priority": 0,
}
# The service that announces an action, and the object and version of the notification.
_PAYLOADS: Mapping[str, tuple[str, str, str]] = {
    **dict.fromkeys(("create", "update", "delete"), ("api", "NodeCRUDPayload", "1.15")),
    "maintenance_set": ("api", "NodePayload", "1.17"),
    "console_set": ("conductor", "NodePayload", "1.17"),
    "provision_set": ("conductor", "NodeSetProvisionStatePayload", "1.18"),
    "power_set": ("conductor", "NodeSetPowerStatePayload", "1.17"),
    "power_state_corrected": ("conductor", "NodeCorrectedPowerStatePayload", "1.17"),
}
_COUNT = SimulatedNode.__struct_fields__.index("updated_at") + 1
_TOLD = SimulatedNode.__struct_fields__[:_COUNT]
_INTERFACES = ("bios", "boot", "console", "inspect", "management", "power", "raid", "rescue", "vendor")
_UNCHANGED: Mapping[str, Any] = {
    **{f"{interface}_interface": "fake" for interface in _INTERFACES},
    **dict.fromkeys(("boot_mode", "secure_boot", "description", "protected_reason", "retired_reason")),
    **dict.fromkeys(("inspection_started_at", "inspection_finished_at")),
    "storage_interface": "noop",
    "clean_step": {},
    "deploy_step": {},
    "disable_power_off": False,
}
_CONTEXT: Mapping[str, Any] = {
    **dict.fromkeys(("_context_user", "_context_project_id", "_context_system_scope", "_context_project")),
    **dict.fromkeys(("_context_domain", "_context_user_domain", "_context_project_domain")),
    **dict.fromkeys(("_context_auth_token", "_context_global_request_id", "_context_resource_uuid")),
    **dict.fromkeys(("_context_is_admin", "_context_read_only", "_context_show_deleted"), False),
    "_context_roles": [],
    "_context_user_identity": "- - - - -",
    "_context_is_admin_project": True,
    "_context_auth_token_info": None,
}


class Payload(Struct, frozen=True):
    """The subject of a notification: an object of Ironic with this name and uuid."""

    event_type: str
    service: str
    object: str
    version: str
    data: Mapping[str, Any]


def payload_of(said: Said) -> Payload:
    service, name, version = _PAYLOADS[said.action]
    node = dict(zip(_TOLD, structs.astuple(said.node)[:_COUNT], strict=True))
    event_type = f"baremetal.node.{said.action}.{said.status}"
    return Payload(event_type, service, name, version, {**said.more, **_UNCHANGED, **node})


def written(
    payload: Payload, at_us: int, host: str, request_id: str, chance: random.Random
) -> tuple[str, bytes]:
    """The routing key and the body of the notification."""
    level = "error" if payload.event_type.endswith(".error") else "info"
    message: Mapping[str, Any] = {
        "message_id": new_uuid(chance),
        "publisher_id": f"ironic-{payload.service}.{host}",
        "event_type": payload.event_type,
        "priority": level.upper(),
        "payload": {
            "ironic_object.name": payload.object,
            "ironic_object.namespace": "ironic",
            "ironic_object.version": payload.version,
            "ironic_object.data": payload.data,
        },
        "timestamp": f"{second(at_us // 1_000_000)[:-1].replace('T', ' ')}.{at_us % 1_000_000:06}",
        "_unique_id": UUID(int=chance.getrandbits(128), version=4).hex,
        "_context_request_id": request_id,
        **_CONTEXT,
    }
    body = json.dumps({"oslo.version": "2.0", "oslo.message": json.dumps(message)})
    return f"{TOPIC}.{level}", body.encode()


def new_uuid(chance: random.Random) -> str:
    return str(UUID(int=chance.getrandbits(128), version=4))


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
