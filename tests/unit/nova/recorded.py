"""The messages of one boot of a whole real Nova, as they were on its RabbitMQ (tests/data/nova_rpc), without tokens and passwords."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

from scheduler_worker.nova.destinations import NovaNames

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
