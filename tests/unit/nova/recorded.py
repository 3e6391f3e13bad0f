"""The messages of one boot of a whole real Nova, as they were on its RabbitMQ (tests/data/nova_rpc), without tokens and passwords."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

from nova_bridge.request_spec import NovaNames

RECORDED = Path(__file__).parents[2] / "data" / "nova_rpc" / "one_boot.jsonl"
INSTANCE = UUID("a48a8969-b461-4159-a420-81f63f91923d")
CELL = UUID("fdeec46e-1c90-49be-8d68-4aeba7b6895c")
NAMES = NovaNames(
    by_service={
        "rhost0001": ("rhost0001",),
        "rhost0002": ("rhost0002",),
        "ironic": ("node-1", "node-2"),
    },
    by_node={"rhost0001.example.org": ("rhost0001",), "node-1": ("node-1",), "node-2": ("node-2",)},
    cells={str(CELL): "c1"},
)

# A class of devices, and the request of Nova for some of them.
DEVICE = "CUSTOM_PCI_8086_1520"
DEVICES = UUID(int=10)

_LINES = [json.loads(line) for line in RECORDED.read_text().splitlines()]


def bodies() -> list[bytes]:
    return [line["body"].encode() for line in _LINES]


def body_of(method: str) -> bytes:
    return next(body for body in bodies() if message_in(body).get("method") == method)


def answer_body() -> bytes:
    return next(body for body in bodies() if "ending" in message_in(body))


def message_in(body: bytes) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(json.loads(body)["oslo.message"])
    return message


def args_of(method: str = "select_destinations") -> dict[str, Any]:
    """A copy of the arguments, which a test may change."""
    args: dict[str, Any] = message_in(body_of(method))["args"]
    return args


def enveloped(message: object, version: object = "2.0") -> bytes:
    return json.dumps({"oslo.version": version, "oslo.message": json.dumps(message)}).encode()


def an_object(name: str, version: str = "1.0", /, **data: object) -> dict[str, Any]:
    return {
        "nova_object.name": name,
        "nova_object.namespace": "nova",
        "nova_object.version": version,
        "nova_object.data": data,
    }


def port(requester: object = "port-1", **fields: object) -> dict[str, Any]:
    plain: dict[str, object] = {
        "use_same_provider": True,
        "resources": {"NET_BW_EGR_KILOBIT_PER_SEC": 1000},
        "required_traits": ["CUSTOM_PHYSNET_NORTH"],
        "forbidden_traits": [],
        "aggregates": [],
        "forbidden_aggregates": [],
        "requester_id": requester,
        "provider_uuids": [],
        "in_tree": None,
    }
    return an_object("RequestGroup", "1.3", **plain | fields)


def devices_of(count: int = 1, alias: str | None = "nic", **fields: object) -> dict[str, Any]:
    """Devices that an alias of the flavor, or a port, asks for: as Nova tells them, beside the groups."""
    plain: dict[str, object] = {
        "count": count,
        "spec": [{"vendor_id": "8086", "product_id": "1520", "dev_type": "type-VF"}],
        "alias_name": alias,
        "is_new": False,
        "numa_policy": "legacy",
        "request_id": str(DEVICES),
        "requester_id": None if alias else "port-1",
    }
    return an_object("InstancePCIRequest", "1.4", **plain | fields)


def pci(*requests: object) -> dict[str, Any]:
    return an_object("InstancePCIRequests", "1.1", instance_uuid=str(INSTANCE), requests=list(requests))


def device_groups(count: int, **fields: object) -> list[dict[str, Any]]:
    """The groups that Nova makes of these devices, with PCI in placement."""
    each: dict[str, object] = {"resources": {DEVICE: 1}, "required_traits": []}
    return [port(f"{DEVICES}-{number}", **each | fields) for number in range(count)]
