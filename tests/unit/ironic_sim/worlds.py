"""A simulated Ironic on a clock that tests move, and its notifications in a form that tests compare with those of a real one."""

import json
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from ironic_sync.core import notifications
from ironic_sync.core.node import Node
from ironic_sync.core.notifications import AllocationNotified, NodeDoubted, NodeNotified
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


def told(said: Notification) -> Any:
    """The fields of a notification that a daemon reads, without what differs from run to run: times, hosts, and texts of errors."""
    heads = ("event", "previous_provision_state", "previous_target_provision_state", "to_power", "from_power")
    read = notifications.read(said.body.encode())
    match read:
        case NodeNotified(node=node):
            about: Any = told_of(node)
        case NodeDoubted() | AllocationNotified():
            about = read
        case _:
            about = type(read).__name__
    return (
        *(said.event_type, said.message["publisher_id"].partition(".")[0], said.message["priority"]),
        *({key: said.data[key] for key in heads if key in said.data}, about),
    )


def told_of(node: Node) -> dict[str, Any]:
    """The fields of a node that have not their defaults."""
    fields: dict[str, Any] = msgspec.to_builtins(node)
    worded = {"last_error", "provision_updated_at", *(("maintenance_reason",) if node.fault else ())}
    return {key: key if key in worded else value for key, value in fields.items()}
