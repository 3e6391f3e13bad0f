"""A simulated Ironic on a clock that tests move, and its notifications in a form that tests compare with captured ones."""

import json
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from laboratory.ironic import IronicScript, IronicSimSettings, RequestRefused, SimulatedIronic, SimulatedNode

CAPTURES = Path(__file__).parents[2] / "data" / "ironic_captures"
STARTED_S = 1_790_000_000.0

Data = Mapping[str, Any]


class Notification(Struct, frozen=True):
    """A published message and its content."""

    routing_key: str
    properties: Data
    body: str
    message: Data

    @property
    def event_type(self) -> str:
        return str(self.message["event_type"])

    @property
    def data(self) -> Data:
        found: Data = self.message["payload"]["ironic_object.data"]
        return found


def notification(routing_key: str, properties: Data, body: str) -> Notification:
    return Notification(routing_key, properties, body, json.loads(json.loads(body)["oslo.message"]))


def captured(scenario: str) -> list[Notification]:
    (path,) = CAPTURES.glob(f"{scenario}_*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(line["exchange"] == "ironic" for line in lines)
    return [notification(line["routing_key"], line["properties"], line["body"]) for line in lines]


class World:
    """One simulated Ironic, its clock, and everything that it published."""

    def __init__(
        self,
        nodes: Iterable[SimulatedNode] = (),
        settings: IronicSimSettings | None = None,
        script: IronicScript | None = None,
    ) -> None:
        self.at_s = STARTED_S
        self.said: list[Notification] = []
        self.ironic = SimulatedIronic(
            nodes, lambda: self.at_s, self._take, settings, script=script, chance=random.Random(1)
        )

    def _take(self, routing_key: str, properties: Mapping[str, Any], body: bytes) -> None:
        self.said.append(notification(routing_key, properties, body.decode()))

    def pass_s(self, seconds: float) -> None:
        self.at_s += seconds
        self.ironic.advance()

    def settle(self) -> None:
        """Run until no work is left."""
        while (due_s := self.ironic.next_due_s) is not None:
            self.at_s = max(self.at_s, due_s)
            self.ironic.advance()

    def do(self, *_: SimulatedNode) -> None:
        """Let the orders end."""
        self.settle()

    def refused(self, ask: Callable[[], object]) -> int:
        """The status with which Ironic refuses this."""
        with pytest.raises(RequestRefused) as caught:
            ask()
        return caught.value.status

    def bring(self, uuid: str, state: str) -> None:
        """Bring a node to a state by the operator's usual steps."""
        self.do(self.ironic.provision(uuid, "manage"))
        if state in ("available", "active"):
            self.do(self.ironic.provision(uuid, "provide"))
        if state == "active":
            self.do(self.ironic.provision(uuid, "active"))
        self.said.clear()

    def state(self, ident: str) -> str:
        return self.node(ident).provision_state

    def node(self, ident: str) -> SimulatedNode:
        node = self.ironic.node(ident)
        assert node is not None
        return node

    def event_types(self) -> list[str]:
        return [each.event_type.removeprefix("baremetal.") for each in self.said]


_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|\.\d{6})\Z")
_INNER_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}\Z")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_HEX = re.compile(r"[0-9a-f]{32}\Z")
_REQUEST = re.compile(r"req-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")


def plain(said: Sequence[Notification]) -> list[Any]:
    """The messages with everything replaced that differs between runs: ids, times, hosts, and the texts of errors. The
    form of replaced values is checked. Objects are lists of pairs, since the order of keys is compared too.
    """
    requests: dict[str, int] = {}
    found = []
    for each in said:
        message = dict(each.message)
        for field, form in (
            ("message_id", _UUID),
            ("_unique_id", _HEX),
            ("timestamp", _INNER_TIME),
            ("_context_request_id", _REQUEST),
        ):
            assert form.match(message[field]), (field, message[field])
        request = requests.setdefault(message["_context_request_id"], len(requests))
        message.update(message_id="", _unique_id="", timestamp="", _context_request_id=request)
        service, _, host = message["publisher_id"].partition(".")
        assert host
        message["publisher_id"] = service
        payload = dict(message["payload"])
        payload["ironic_object.data"] = _plain_data(payload["ironic_object.data"])
        message["payload"] = payload
        envelope = [*json.loads(each.body)]
        found.append((each.routing_key, each.properties, envelope, _pairs(message)))
    return found


def _plain_data(data: Data) -> Data:
    is_fault = data.get("fault") is not None
    return {
        key: "worded"
        if isinstance(value, str) and (key == "last_error" or (key == "maintenance_reason" and is_fault))
        else _timeless(value)
        for key, value in data.items()
    }


def _timeless(value: Any) -> Any:
    if isinstance(value, str) and (match := _TIME.match(value)):
        return "a second" if match[1] == "Z" else "a microsecond"
    if isinstance(value, dict):
        return {key: _timeless(inner) for key, inner in value.items()}
    return value


def _pairs(value: Any) -> Any:
    if isinstance(value, dict):
        return [(key, _pairs(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return [_pairs(inner) for inner in value]
    return value
