"""The nodes of a simulated Ironic: how one is patched, and a request refused; how equal ones are made; the table of all, and the file that
keeps them.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID, uuid5

import msgspec
from msgspec import UNSET, Meta, Struct, structs

from kit.errors import UNREADABLE

Json = Mapping[str, Any]
UuidText = Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}\Z")]
# Deploy interfaces that boot an agent on the node and wait for its call.
AGENT_INTERFACES = frozenset({"direct", "custom-agent", "ansible", "bootc", "anaconda"})
# A network interface that does nothing: it takes each port and attaches none.
NO_NETWORK = "noop"
BAD_REQUEST, NOT_FOUND, CONFLICT, SERVER_ERROR = 400, 404, 409, 500
# Whether a rule is broken, and the status and the text of the refusal.
Rule = tuple[object, int, str]


class RequestRefused(Exception):  # noqa: N818 - named for what it is
    """An error: its HTTP status and its text. It is raised where it is found, and answered in one place (api.py)."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        self.text = text


def first_refusal(rules: Iterable[Rule]) -> RequestRefused | None:
    return next((RequestRefused(status, text) for is_broken, status, text in rules if is_broken), None)


def check(*rules: Rule) -> None:
    """Refuse a request by the first of these rules that it breaks. If none is broken, do nothing."""
    if refused := first_refusal(rules):
        raise refused


class SimulatedNode(Struct, frozen=True, kw_only=True):
    """A node. The fields up to `updated_at` are in every notification of it. Times are texts, as there.

    `bmc_power` is the power that the hardware would report, None for a driver that does not know.
    """

    uuid: UuidText
    name: str | None = None
    driver: str = "fake-hardware"
    conductor_group: str = ""
    console_enabled: bool = False
    deploy_interface: str = "fake"
    network_interface: str = NO_NETWORK
    extra: Json = {}
    instance_uuid: UuidText | None = None
    last_error: str | None = None
    maintenance: bool = False
    maintenance_reason: str | None = None
    fault: str | None = None
    owner: str | None = None
    lessee: str | None = None
    power_state: str | None = None
    target_power_state: str | None = None
    properties: Json = {}
    provision_state: str = "enroll"
    target_provision_state: str | None = None
    provision_updated_at: str | None = None
    resource_class: str | None = None
    retired: bool = False
    protected: bool = False
    traits: tuple[str, ...] = ()
    created_at: str | None = None
    updated_at: str | None = None
    # In no notification.
    instance_info: Json = {}
    shard: str | None = None
    reservation: str | None = None
    allocation_uuid: str | None = None
    vifs: tuple[str, ...] = ()
    bmc_power: str | None = None

    @property
    def lock(self) -> Rule:
        """A conductor holds the node's lock."""
        text = f"Node {self.uuid} is locked by host {self.reservation}: try again when its operation is over."
        return self.reservation, CONFLICT, text

    @property
    def why_no_image(self) -> str:
        """Why an agent could not deploy; empty if it could, or if there is none."""
        has_image = self.deploy_interface not in AGENT_INTERFACES or self.instance_info.get("image_source")
        return "" if has_image else f"Node {self.uuid} has no image_source in instance_info."


class Said(Struct, frozen=True):
    """A notification about a node: an action on it, how far that is (start, success, end, error), and what else the notification has."""

    node: SimulatedNode
    action: str
    status: str
    more: Json = {}


def second(at_s: float) -> str:
    """A time as text in the format of notifications' fields, in whole seconds."""
    return _second(int(at_s))


@lru_cache(maxsize=16)
def _second(at_s: int) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


# Null in a request means what a new node has.
_NEW = SimulatedNode(uuid="")


class Operation(Struct, frozen=True):
    """One operation of JSON Patch, on a field of a node or inside of an object; not in lists, which nobody patches."""

    op: Literal["add", "replace", "remove"]
    path: Annotated[str, Meta(pattern="^/.")]
    value: Any = UNSET

    def __post_init__(self) -> None:
        if self.op != "remove" and self.value is UNSET:
            raise ValueError(f"{self.op} of {self.path} has no value")

    @property
    def keys(self) -> list[str]:
        """The name of the node's field, then the keys inside of its value."""
        return self.path[1:].split("/")


def operations_of(document: object) -> tuple[Operation, ...]:
    try:
        return msgspec.convert(document, tuple[Operation, ...])
    except msgspec.ValidationError as problem:
        raise RequestRefused(BAD_REQUEST, f"The patch is not valid: {problem}.") from None


def patched(value: Any, keys: Sequence[str], operation: Operation) -> Any:
    """The value of a field after the patch operation. `keys` leads to the place inside of the value."""
    if not keys:
        return None if operation.op == "remove" else operation.value
    key, *inside = keys
    if not isinstance(value, Mapping) or (key not in value and (inside or operation.op != "add")):
        raise RequestRefused(BAD_REQUEST, f"{operation.op} {operation.path}: there is no {key!r}.")
    if operation.op == "remove" and not inside:
        return {other: kept for other, kept in value.items() if other != key}
    return {**value, key: patched(value.get(key), inside, operation)}


def with_fields(node: SimulatedNode, fields: Mapping[str, Any]) -> SimulatedNode:
    """The node with these fields, of which those that are null have their defaults; raise RequestRefused if one is wrong."""
    given = {name: getattr(_NEW, name) if value is None else value for name, value in fields.items()}
    try:
        return msgspec.convert({**structs.asdict(node), **given}, SimulatedNode)
    except msgspec.ValidationError as problem:
        raise RequestRefused(BAD_REQUEST, f"A field of the node is wrong: {problem}.") from None


_NAMESPACE = UUID("3f1c8a52-6d0e-4f5b-9c77-0a4be2d1c6ee")


def available_nodes(
    count: int, *, resource_class: str | None = "baremetal", name: str = "node", **fields: Any
) -> tuple[SimulatedNode, ...]:
    """Equal nodes, available and powered off: `node-00000` and so on, each with a uuid derived from its name."""
    usual: dict[str, Any] = {
        "provision_state": "available",
        "power_state": "power off",
        # With this interface a deploy leaves the node powered on, as real ones do; `fake`, the default, does not.
        "deploy_interface": "ramdisk",
        # Ports can be attached. The default, `noop`, takes them and attaches none.
        "network_interface": "flat",
        "properties": {"cpus": 8, "memory_mb": 65536, "local_gb": 480, "cpu_arch": "x86_64"},
        "resource_class": resource_class,
    }
    names = [f"{name}-{number:05}" for number in range(count)]
    return tuple(
        SimulatedNode(uuid=str(uuid5(_NAMESPACE, own)), name=own, **{**usual, **fields}) for own in names
    )


def nodes_in_groups(count: int, groups: Sequence[str], **fields: Any) -> tuple[SimulatedNode, ...]:
    """Available nodes, distributed in turn over these conductor groups; all in the default group if there are none."""
    return tuple(
        structs.replace(node, conductor_group=groups[number % len(groups)]) if groups else node
        for number, node in enumerate(available_nodes(count, **fields))
    )


class NodeChange(Struct, frozen=True, array_like=True):
    """A changed node; None if it was deleted. The file of nodes has a line for each change."""

    uuid: str
    node: SimulatedNode | None = None


# Called for each change.
Keep = Callable[[NodeChange], None]


class NodeTable:
    """The present nodes, and which of them has a name or an instance. `keep` stores each change."""

    def __init__(self, keep: Keep) -> None:
        # In the order in which they were created.
        self.nodes: dict[str, SimulatedNode] = {}
        self.names: dict[str, str] = {}
        self.instances: dict[str, str] = {}
        self._keep = keep

    def find(self, ident: str) -> SimulatedNode | None:
        return self.nodes.get(self.names.get(ident, ident))

    def add(self, node: SimulatedNode) -> None:
        if node.uuid in self.nodes:
            raise ValueError(f"two nodes have the uuid {node.uuid}")
        self._store(None, node, NodeChange(node.uuid, node))

    def replace(self, old: SimulatedNode, new: SimulatedNode) -> None:
        self._store(old, new, NodeChange(new.uuid, new))

    def remove(self, node: SimulatedNode) -> None:
        del self.nodes[node.uuid]
        self._store(node, None, NodeChange(node.uuid))

    def _store(self, old: SimulatedNode | None, new: SimulatedNode | None, change: NodeChange) -> None:
        for index, field in ((self.names, "name"), (self.instances, "instance_uuid")):
            before, after = getattr(old, field, None), getattr(new, field, None)
            if before is not None and before != after:
                index.pop(before, None)
            if after is not None:
                index[after] = change.uuid
        if new is not None:
            self.nodes[new.uuid] = new
        self._keep(change)


# The file is written again when it has more lines than this per node, and in total.
LINES_PER_NODE_MAX = 8
LINES_LEAST = 1000


class NodeFile:
    """The file in which a simulated Ironic keeps its nodes, so that they survive a kill of its process. Only one process may use it at a time.

    Each change is one line: the uuid, and the node, or null if it was deleted. A line is passed to the kernel before the change
    is announced. So `kill -9` loses no change. Only the last line can be cut off, and is then ignored.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # The last change of each node that is not deleted, in the order in which they were first stored.
        self._last: dict[str, NodeChange] = {}
        decoder = msgspec.json.Decoder(NodeChange)
        for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():
            try:
                self._take(decoder.decode(line))
            except UNREADABLE as problem:
                raise ValueError(f"{path} is not the file of a simulated Ironic's nodes: {problem}") from None
        self._descriptor = -1
        self._begin()

    def load(self) -> tuple[SimulatedNode, ...]:
        return tuple(each.node for each in self._last.values() if each.node is not None)

    def keep(self, change: NodeChange) -> None:
        self._append(_text(change))
        self._take(change)
        self._lines += 1
        if self._lines > max(LINES_LEAST, LINES_PER_NODE_MAX * len(self._last)):
            self._begin()

    def close(self) -> None:
        os.close(self._descriptor)

    def _begin(self) -> None:
        """Replace the file by a new one, with one line for each node."""
        new = self._path.with_suffix(".new")
        # Nodes have the config drives of their instances.
        new.touch(mode=0o600)
        new.write_bytes(b"".join(map(_text, self._last.values())))
        new.replace(self._path)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        self._lines = len(self._last)

    def _append(self, line: bytes) -> None:
        """Write the whole line or, on a full disk, nothing: the rest of a line would make the whole file unreadable."""
        size = os.fstat(self._descriptor).st_size
        with suppress(OSError):
            if os.write(self._descriptor, line) == len(line):
                return
        os.ftruncate(self._descriptor, size)
        raise OSError(f"{self._path} cannot be written: is the disk full?")

    def _take(self, change: NodeChange) -> None:
        if change.node is None:
            self._last.pop(change.uuid, None)
        else:
            self._last[change.uuid] = change


def _text(change: NodeChange) -> bytes:
    return msgspec.json.encode(change) + b"\n"
