"""A notification exactly as Ironic publishes it: an envelope of oslo.messaging, JSON inside JSON."""

import json
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from compute_sim.laboratory.ironic.core.payloads import Payload

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
