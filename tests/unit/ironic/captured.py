"""Messages that a real Ironic published, and new ones made of them."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

from engine.inventories import ProviderId
from ironic_sync.core.node import Node
from ironic_sync.core.notifications import NodeNotified

CAPTURES = Path(__file__).parents[2] / "data" / "ironic_captures"
SCENARIOS = tuple(sorted(path.stem for path in CAPTURES.glob("*.jsonl")))
API, CONDUCTOR = "ironic-api.a", "ironic-conductor.a"
NODE_ID = ProviderId(UUID("46a95f4b-c780-42fc-9dc4-9efea8b99980"))
INSTANCE = UUID("11111111-2222-3333-4444-555555555555")


def bodies_of(scenario: str) -> list[bytes]:
    lines = (CAPTURES / f"{scenario}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["body"].encode() for line in lines]


def notification_in(body: bytes) -> dict[str, Any]:
    """The notification without oslo.messaging's envelope."""
    inner: dict[str, Any] = json.loads(json.loads(body)["oslo.message"])
    return inner


def captured(event_type: str) -> dict[str, Any]:
    """The first notification of this type."""
    for scenario in SCENARIOS:
        for body in bodies_of(scenario):
            inner = notification_in(body)
            if inner["event_type"] == event_type:
                return inner
    raise AssertionError(f"no capture has {event_type}")


def data_of(notification: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = notification["payload"]["ironic_object.data"]
    return data


def body_of(notification: dict[str, Any]) -> bytes:
    return json.dumps(notification).encode()


def a_node(**fields: Any) -> Node:
    """A node that may be claimed, unless the fields say otherwise."""
    return Node(**{"id": NODE_ID, "provision_state": "available", "resource_class": "gold", **fields})


def a_word(at_us: int, publisher: str = API, **fields: Any) -> NodeNotified:
    said: dict[str, Any] = {"kind": "provision_set"}
    for key in ("kind", "doubt", "is_deleted"):
        if key in fields:
            said[key] = fields.pop(key)
    return NodeNotified(node=a_node(**fields), at_us=at_us, publisher=publisher, **said)
