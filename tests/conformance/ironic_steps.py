"""The questions to a real Ironic and the simulated one, and the parts of their answers, nodes and notifications that are compared.

tests/data/ironic_answers.jsonl has what a real one answered; `python -m tests.conformance.ironic --record` writes it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import msgspec
from msgspec import Struct, structs

from engine.inventories import ProviderId
from ironic_sync.core.node import InterfaceCheck, Node
from ironic_sync.rest import (
    VERSION_HEADER,
    Changed,
    CleanStep,
    Console,
    HttpIronicApi,
    IronicRefused,
    PatchOperation,
)
from kit.errors import Operational
from kit.parts import Pauses
from kit.rest import RestLimits
from laboratory.ironic import IronicTransport, RequestRefused
from tests.ironic_clients.nodes import create, delete, set_traits
from tests.unit.ironic_sim.worlds import Notification, World, told, told_of

ANSWERS = Path(__file__).parents[1] / "data" / "ironic_answers.jsonl"
# The second try tells a refusal from a lock.
TWICE = RestLimits(tries_max=2, pauses=Pauses(0.001, 0.002))


class Peer:
    """An Ironic, by Moorage's client and by plain HTTP, and all that it has said."""

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.api = HttpIronicApi(url, limits=TWICE, transport=transport, page=1)
        self.plain = httpx.AsyncClient(base_url=url, transport=transport, headers={VERSION_HEADER: "1.82"})

    async def ask(self, method: str, path: str, body: object = None) -> int:
        return (await self.plain.request(method, f"/v1/nodes{path}", json=body)).status_code

    async def create(self, fields: Mapping[str, Any]) -> int:
        return await self.ask("POST", "", fields)

    async def set_traits(self, node: ProviderId, names: Sequence[str]) -> int:
        return await self.ask("PUT", f"/{node}/traits", {"traits": names})

    async def delete(self, node: ProviderId) -> int:
        return await self.ask("DELETE", f"/{node}")

    def now_s(self) -> float:
        return datetime.now(UTC).timestamp()

    async def settle(self, node: ProviderId) -> None:
        """Wait until Ironic has no work left on the node."""
        raise NotImplementedError

    async def said(self) -> Sequence[Notification]:
        """All notifications."""
        raise NotImplementedError


class OurPeer(Peer):
    """The simulated Ironic, on a clock. Its API has no requests to create and delete nodes: that is done without HTTP."""

    def __init__(self) -> None:
        self.world = World()
        super().__init__("http://ours", IronicTransport(self.world.ironic))

    async def create(self, fields: Mapping[str, Any]) -> int:
        return _status(httpx.codes.CREATED, partial(create, self.world.ironic, fields))

    async def set_traits(self, node: ProviderId, names: Sequence[str]) -> int:
        return _status(httpx.codes.NO_CONTENT, partial(set_traits, self.world.ironic, str(node), names))

    async def delete(self, node: ProviderId) -> int:
        return _status(httpx.codes.NO_CONTENT, partial(delete, self.world.ironic, str(node)))

    def now_s(self) -> float:
        return self.world.at_s

    async def settle(self, node: ProviderId) -> None:  # noqa: ARG002 - of all nodes
        self.world.settle()
        self.world.pass_s(1)

    async def said(self) -> Sequence[Notification]:
        return self.world.said


def _status(well: int, order: Callable[[], object]) -> int:
    try:
        order()
    except RequestRefused as refused:
        return refused.status
    return well


NODE, OTHER, UNKNOWN = (ProviderId(UUID(int=number << 64)) for number in (1, 2, 3))
INSTANCE, SECOND = (UUID(int=number << 64) for number in (17, 18))
Do = Callable[[Peer], Awaitable[object]]


class Step(Struct, frozen=True):
    """One request; or several, whose answers are told together."""

    what: str
    do: Do
    node: ProviderId = NODE


def state(target: str, node: ProviderId = NODE, **others: Any) -> Do:
    return lambda peer: peer.api.set_provision_state(node, target, **others)


def patch(*operations: tuple[str, str, object], node: ProviderId = NODE) -> Do:
    changes = [
        PatchOperation(op, path, *(() if op == "remove" else (value,)))  # type: ignore[arg-type]
        for op, path, value in operations
    ]
    return lambda peer: peer.api.patch(node, changes)


def add(field: str, value: object, node: ProviderId = NODE) -> Do:
    return patch(("add", f"/{field}", value), node=node)


def power(target: str) -> Do:
    return lambda peer: peer.api.set_power_state(NODE, target)


def maintenance(*, is_on: bool, reason: str = "", node: ProviderId = NODE) -> Do:
    return lambda peer: peer.api.set_maintenance(node, reason, is_on=is_on)


def traits(*names: str) -> Do:
    return lambda peer: peer.set_traits(NODE, [*names])


def deleted(node: ProviderId = NODE) -> Do:
    return lambda peer: peer.delete(node)


def created(number: int, **fields: object) -> Do:
    node = {"uuid": str(UUID(int=number << 64)), "name": f"node-{number}", "driver": "fake-hardware"}
    return lambda peer: peer.create({**node, "resource_class": "gold", **fields})


def locked(*asked: Do) -> Do:
    """Ask while the node's power is switched."""

    async def do(peer: Peer) -> object:
        return [
            await peer.api.set_power_state(NODE, "power on"),
            *[await answer_to(each, peer) for each in asked],
        ]

    return do


async def pages(peer: Peer) -> object:
    return [[*page.nodes, *page.unreadable] async for page in peer.api.pages()]


async def changed(peer: Peer) -> object:
    return [some async for some in peer.api.changed_since(datetime.fromtimestamp(0, UTC))]


def listed(**query: str) -> Do:
    """A list by plain HTTP: its status, and the names in it."""

    async def do(peer: Peer) -> object:
        answer = await peer.plain.get("/v1/nodes", params=query)
        return answer.status_code, [each.get("name") for each in answer.json().get("nodes", ())]

    return do


async def instance_info(peer: Peer) -> object:
    return (await peer.plain.get(f"/v1/nodes/{NODE}")).json()["instance_info"]


async def nonsense(peer: Peer) -> object:
    return [await peer.ask("PATCH", f"/{NODE}", body) for body in NONSENSE]


async def not_offered(peer: Peer) -> object:
    return (await peer.plain.get("/v1/nodes", headers={VERSION_HEADER: "1.9999"})).status_code


CLEAN = [CleanStep("bios", "factory_reset")]
NONSENSE: Sequence[object] = (
    *({"op": "add"}, ["x"], [{"op": "copy", "path": "/name", "from": "/uuid"}]),
    *([{"op": "add", "path": "name", "value": "x"}], [{"op": "add", "path": "/name"}]),
    *([{"op": "add", "path": f"/{field}", "value": "x"}] for field in ("maintenance", "traits", "extra/a/b")),
    [{"op": "replace", "path": "/extra/nothing", "value": 1}],
    [{"op": "remove", "path": "/extra/nothing"}],
)
PASSWORD: Mapping[str, Any] = {"rescue_password": "secret"}
SCRIPT = (
    Step("a version that is not offered", not_offered),
    Step("no node yet", pages),
    Step("an unknown node", lambda peer: peer.api.node(UNKNOWN)),
    Step("an unknown node is patched", add("instance_uuid", str(INSTANCE), UNKNOWN)),
    Step("an unknown node is provided", state("provide", UNKNOWN)),
    Step("the ports of an unknown node", lambda peer: peer.api.vifs(UNKNOWN)),
    Step("an unknown node is checked", lambda peer: peer.api.validate(UNKNOWN)),
    Step("an allocation that is not there", lambda peer: peer.api.node_of_allocation(UNKNOWN)),
    Step("create", created(1, properties={"cpus": 8, "memory_mb": 65536})),
    Step("create it again", created(1)),
    Step("deploy in enroll", state("active")),
    Step("manage", state("manage")),
    Step("no such target", state("nonsense")),
    Step("inspect", state("inspect")),
    Step("clean by hand", state("clean", clean_steps=CLEAN)),
    Step("clean by hand without steps", state("clean")),
    Step("traits", traits("CUSTOM_GPU", "HW_CPU_X86_VMX")),
    Step("a trait that is none", traits("GPU")),
    Step("provide", state("provide")),
    Step("provide again", state("provide")),
    Step("rescue when available", state("rescue", NODE, **PASSWORD)),
    Step("maintenance", maintenance(is_on=True, reason="disk")),
    Step("maintenance again", maintenance(is_on=True, reason="disk")),
    Step("deploy in maintenance", state("active")),
    Step("no maintenance", maintenance(is_on=False)),
    Step("maintenance by a patch", patch(("replace", "/maintenance", True))),
    Step("no maintenance by a patch", patch(("replace", "/maintenance", False))),
    Step("retire when available", patch(("replace", "/retired", True))),
    Step("power on", power("power on")),
    Step("reboot", power("rebooting")),
    Step("soft power off", power("soft power off")),
    Step("power off", power("power off")),
    Step("no such power", power("sideways")),
    Step(
        "locked",
        locked(
            add("extra", {"a": 1}),
            state("manage"),
            power("power off"),
            maintenance(is_on=True, reason="disk"),
            traits("CUSTOM_GPU"),
            lambda peer: peer.api.attach_vif(NODE, "port-1"),
            lambda peer: peer.api.set_console(NODE, is_on=True),
        ),
    ),
    Step("set the instance", add("instance_uuid", str(INSTANCE))),
    Step("set another instance", add("instance_uuid", str(SECOND))),
    Step("set the instance again", add("instance_uuid", str(INSTANCE))),
    Step("an instance that is no id", add("instance_uuid", "nobody")),
    Step("instance_info", add("instance_info", {"image_source": "http://x/i", "traits": ["CUSTOM_GPU"]})),
    Step("inside instance_info", add("instance_info/root_gb", 10)),
    Step(
        "secrets",
        patch(
            ("add", "/instance_info/configdrive", "H4s"),
            ("add", "/instance_info/image_url", "http://ann:pass@x/i"),
            ("add", "/instance_info/agent_token", "t"),
        ),
    ),
    Step("secrets are not shown", instance_info),
    Step("a field that is not there", patch(("remove", "/instance_info/nothing", None))),
    Step("a field that nobody patches", add("provision_state", "active")),
    Step("no field of a node", add("nonsense", 1)),
    Step("patches that make no sense", nonsense),
    Step("a conductor group without a conductor", add("conductor_group", "nowhere")),
    Step("owner and lessee", patch(("add", "/owner", "ann"), ("add", "/lessee", "bob"))),
    Step("the node of the instance", lambda peer: peer.api.node_of_instance(INSTANCE)),
    Step("the node of no instance", lambda peer: peer.api.node_of_instance(SECOND)),
    Step("checked", lambda peer: peer.api.validate(NODE)),
    Step("attach a port", lambda peer: peer.api.attach_vif(NODE, "port-1")),
    Step("the ports", lambda peer: peer.api.vifs(NODE)),
    Step("detach the port", lambda peer: peer.api.detach_vif(NODE, "port-1")),
    Step("deploy", state("active")),
    Step("deploy again", state("active")),
    Step("provide when active", state("provide")),
    Step("abort when active", state("abort")),
    Step("delete when active", deleted()),
    Step("remove the instance when active", patch(("remove", "/instance_uuid", None))),
    Step("set the instance anew", add("instance_uuid", str(INSTANCE))),
    Step("rebuild", state("rebuild")),
    Step("rescue without a password", state("rescue")),
    Step("rescue", state("rescue", NODE, **PASSWORD)),
    Step("rebuild in rescue", state("rebuild")),
    Step("unrescue", state("unrescue")),
    Step("console on", lambda peer: peer.api.set_console(NODE, is_on=True)),
    Step("the console", lambda peer: peer.api.console(NODE)),
    Step("console off", lambda peer: peer.api.set_console(NODE, is_on=False)),
    Step("undeploy", state("deleted")),
    Step("undeploy when available", state("deleted")),
    Step("a second node", created(2), OTHER),
    Step("adopt in enroll", state("adopt", OTHER), OTHER),
    Step("manage the second", state("manage", OTHER), OTHER),
    Step("retire it", patch(("replace", "/retired", True), node=OTHER), OTHER),
    Step("provide it when retired", state("provide", OTHER), OTHER),
    Step("adopt it", state("adopt", OTHER), OTHER),
    Step("undeploy it when retired", state("deleted", OTHER), OTHER),
    Step("two pages", pages),
    Step("the last changed first", changed),
    Step("a list of some fields", listed(fields="uuid,name", limit="1")),
    Step("a list from a node on", listed(fields="name", marker=str(NODE))),
    Step("a list from an unknown node on", listed(marker=str(UNKNOWN))),
    Step("a list of no nodes", listed(limit="-1")),
    Step("a list of a field that is none", listed(fields="nonsense")),
    Step("a list with an unknown argument", listed(nonsense="1")),
    Step("a list sorted by nonsense", listed(sort_key="nonsense")),
    Step("manage the first", state("manage")),
    Step("delete the first", deleted()),
    Step("delete it again", deleted()),
    Step("delete the second", deleted(OTHER), OTHER),
)
END = ProviderId(UUID(int=99 << 64))

# Where ours differs, by the step and what differs there, and why it stays so.
DIFFERENCES: Mapping[str, str] = {
    "a version that is not offered: answer": "ours answers each version alike: nobody has an Ironic that is newer than its client",
    "patches that make no sense: answer": "Ironic 39 stumbles over an operation without a value (500); ours says what is wrong (400)",
    "a list of a field that is none: answer": "Ironic 39 stumbles (500); ours says what is wrong (400)",
}


class Seen(Struct, frozen=True):
    """One step: the answer, the node afterwards, and the notifications."""

    what: str
    answer: Any
    node: Any
    said: Sequence[Any]


async def answer_to(do: Do, peer: Peer) -> object:
    try:
        return plain(await do(peer))
    except Operational as problem:
        return type(problem).__name__


def plain(value: Any) -> Any:
    """A value without what differs from run to run: times, texts of errors, hosts."""
    found = value
    match value:
        case IronicRefused(status=status):
            found = f"refused with {status}"
        case Node():
            found = told_of(value)
        case Changed(node=node):
            found = node.id
        case Console(is_on=is_on, info=info):
            found = is_on, info is not None
        case InterfaceCheck(result=result):
            found = result
        case list() | tuple():
            found = [plain(each) for each in value]
        case dict():
            found = {key: plain(each) for key, each in value.items()}
    return found


async def played(peer: Peer) -> Sequence[Seen]:
    """The observations at each step."""
    seen, began = [], []
    for step in SCRIPT:
        began.append(peer.now_s())
        answer = await answer_to(step.do, peer)
        await peer.settle(step.node)
        seen.append(Seen(step.what, answer, plain(await peer.api.node(step.node)), ()))
    began.append(peer.now_s())
    await created(99)(peer)
    await deleted(END)(peer)
    said = [(_said_at(each), told(each)) for each in await peer.said()]
    await peer.api.close()
    await peer.plain.aclose()
    whole = [
        structs.replace(each, said=[what for at, what in said if since <= at < until])
        for each, since, until in zip(seen, began, began[1:], strict=False)
    ]
    # As they are recorded.
    return msgspec.json.decode(msgspec.json.encode(whole), type=list[Seen])


def _said_at(said: Notification) -> float:
    return datetime.fromisoformat(said.message["timestamp"]).replace(tzinfo=UTC).timestamp()


def wrong(theirs: Sequence[Seen], ours: Sequence[Seen]) -> Sequence[str]:
    """Each difference that is not listed, and each that is listed and not there."""
    found = {
        f"{there.what}: {part}": f"\n    theirs  {getattr(there, part)}\n    ours    {getattr(here, part)}"
        for there, here in zip(theirs, ours, strict=True)
        for part in Seen.__struct_fields__
        if getattr(there, part) != getattr(here, part)
    }
    unlisted = [f"{what}{how}" for what, how in found.items() if what not in DIFFERENCES]
    return unlisted + [f"{what}: is listed, and does not differ" for what in DIFFERENCES if what not in found]


def recorded() -> Sequence[Seen]:
    return [msgspec.json.decode(line, type=Seen) for line in ANSWERS.read_bytes().splitlines()]
