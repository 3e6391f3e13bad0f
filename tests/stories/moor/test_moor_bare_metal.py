"""`moor up --nodes`, `moor node`, `moor status` and `moor boot` on bare metal, each as a process of its own."""

import asyncio
import json
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from tests.stories.cloud import wait_until
from tests.stories.moor.moor_process import Process, moor, moor_json, started

pytestmark = pytest.mark.asyncio

VERSION = {"X-OpenStack-Ironic-API-Version": "1.82"}


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: the path of a socket may not be long."""
    with tempfile.TemporaryDirectory(prefix="moor-") as place:
        yield Path(place)


@asynccontextmanager
async def up(home: Path, *arguments: str, **environment: str) -> AsyncIterator[Process]:
    async with started("up", "--hosts", "2", *arguments, XDG_STATE_HOME=str(home), **environment) as process:
        await process.until_printed("ready")
        yield process


async def ring(home: Path) -> dict[str, int]:
    """How many nodes each live daemon owns."""
    shown = await moor_json("ring", XDG_STATE_HOME=str(home))
    return {each["name"]: each["nodes"] for each in shown["daemons"] if each["state"] == "alive"}


async def nodes_up(home: Path) -> list[tuple[str, str]]:
    hosts = await moor_json("host", "list", XDG_STATE_HOME=str(home))
    return [(host["name"], host["cell"]) for host in hosts if host["kind"] == "ironic" and host["up"]]


async def test_a_cloud_has_nodes_that_daemons_share_and_that_outlive_a_kill(home: Path) -> None:
    async with up(home, "--nodes", "6", "--daemons", "2") as first:
        before = await nodes_up(home)
        assert sorted(cell for _, cell in before) == ["harbour"] * 3 + ["island"] * 3
        shared = await ring(home)
        assert shared.keys() == {"ironic-1", "ironic-2"}
        assert sum(shared.values()) == 6
        first.send_signal(signal.SIGKILL)
        await first.ended()

    async with up(home, "--nodes", "7", "--daemons", "1"):
        # The new daemons do not wait for the leases of the previous ones.
        assert "ironic-2" not in await ring(home)

        async def has_all() -> bool:
            return await ring(home) == {"ironic-1": 7}

        await wait_until(has_all, "one daemon owns all nodes")
        assert {*before} < {*await nodes_up(home)}


async def test_a_port_in_use_is_reported(home: Path) -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        ran = await moor("up", "--nodes", "1", "--ironic-listen", address, XDG_STATE_HOME=str(home))

    assert ran.code == 1
    assert "--ironic-listen names another address" in ran.err


@pytest.mark.parametrize(
    ("options", "environment", "told"),
    [
        (("--ironic-listen", "6385"), {}, "--ironic-listen is '6385': write host:port"),
        ((), {"MOOR_IRONIC_URL": "http://ironic"}, "ironic_url"),
    ],
)
async def test_options_that_contradict_the_simulated_ironic_are_named(
    home: Path, options: tuple[str, ...], environment: dict[str, str], told: str
) -> None:
    ran = await moor("up", "--nodes", "1", *options, XDG_STATE_HOME=str(home), **environment)

    assert ran.code == 2
    assert told in ran.err


async def test_an_operator_takes_nodes_out_of_use_and_gives_them_back(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    async with up(home, "--nodes", "4", "--daemons", "2") as process:

        async def are_offered() -> bool:
            offers = [each["offered"]["amount"] for each in await moor_json("node", "list", **environment)]
            return offers == [1] * 4

        await wait_until(are_offered, "all nodes are offered")
        listed = await moor_json("node", "list", **environment)
        assert [each["name"] for each in listed] == [f"node-0000{number}" for number in range(4)]
        assert {each["daemon"] for each in listed} <= {"ironic-1", "ironic-2"}

        (kept,) = await moor_json(
            "node", "maintenance", "on", "node-00001", "--reason", "disk", **environment
        )
        assert kept["ironic"]["maintenance_reason"] == "disk"
        assert kept["offered"]["amount"] == 0
        assert kept["offered"]["reasons"] == ["the node is in maintenance: 'disk'"]
        (managed,) = await moor_json("node", "manage", listed[2]["id"], **environment)
        assert managed["ironic"]["provision_state"] == "manageable"
        assert managed["offered"]["amount"] == 0
        out = await moor_json("node", "list", "--unavailable", **environment)
        assert [each["name"] for each in out] == ["node-00001", "node-00002"]
        process.send_signal(signal.SIGKILL)
        await process.ended()

    async with up(home, "--nodes", "4"):
        states = {each["name"]: each["ironic"] for each in await moor_json("node", "list", **environment)}
        assert states["node-00001"]["maintenance"]
        assert states["node-00002"]["provision_state"] == "manageable"

        (free,) = await moor_json("node", "maintenance", "off", "node-00001", **environment)
        assert free["offered"]["amount"] == 1
        # The command waits until the node is clean.
        (provided,) = await moor_json("node", "provide", "node-00002", **environment)
        assert provided["ironic"]["provision_state"] == "available"
        assert provided["offered"]["amount"] == 1
        (booted,) = await moor_json("node", "power", "on", "node-00002", **environment)
        assert booted["ironic"]["instance_uuid"] is None

        shown = await moor("node", "show", "node-00001", **environment)
        assert "1 CUSTOM_BAREMETAL" in shown.out
        assert "ironic-1, epoch" in shown.out


async def test_refusals_of_ironic_are_shown_and_the_other_nodes_are_changed(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    async with up(home, "--nodes", "2"):
        await moor_json("node", "manage", "node-00001", **environment)

        ran = await moor("node", "provide", "node-00000", "node-00001", **environment)
        assert ran.code == 1
        assert "node node-00000: Ironic refuses 'provide' (400): " in ran.err
        assert "node-00001" not in ran.err
        states = {each["name"]: each["ironic"] for each in await moor_json("node", "list", **environment)}
        assert {each["provision_state"] for each in states.values()} == {"available"}

        unknown = await moor("node", "manage", "node-00001", "nope", **environment)
        assert unknown.code == 1
        assert "there is no node 'nope', so nothing was done" in unknown.err
        suspended = await moor_json("node", "show", "node-00001", **environment)
        assert suspended["ironic"]["provision_state"] == "available"

        await moor_json("node", "manage", "node-00001", **environment)
        late = await moor("node", "provide", "node-00001", "--timeout", "0.1", **environment)
        assert late.code == 3
        assert "Ironic has not finished within 0.1 s" in late.err


async def test_without_an_ironic_the_commands_say_so(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    for arguments in (("list",), ("manage", "x"), ("maintenance", "off", "x")):
        ran = await moor("node", *arguments, **environment)
        assert ran.code == 2
        assert "MOOR_IRONIC_URL" in ran.err
    away = await moor("node", "list", "--ironic", "http://127.0.0.1:1", **environment)
    assert away.code == 1
    assert "Ironic at http://127.0.0.1:1 cannot be reached" in away.err


async def test_a_node_is_built_on_and_given_back(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    drive = home / "drive.gz"
    drive.write_bytes(b"\x1f\x8b a zipped image")
    async with up(home, "--nodes", "2"):
        image = ("--image", "http://images/debian", "--image-checksum", "0a1b")
        ran = await moor_json(
            *("boot", "--flavor", "metal", "--name", "m", *image),
            *("--config-drive", str(drive), "--port", "port-1", "--port", "port-2"),
            **environment,
        )
        (instance,) = ran["instances"]
        assert instance["state"] == "active"
        node = await moor_json("node", "show", instance["host"], **environment)
        assert node["ironic"]["instance_uuid"] == instance["id"]
        assert node["ironic"]["provision_state"] == "active"
        assert await vifs(home, instance["host"]) == ["port-1", "port-2"]
        info = await instance_info(home, instance["host"])
        assert info["image_source"] == "http://images/debian"
        assert info["image_checksum"] == "0a1b"
        # Ironic shows the instance on the node.
        assert info["configdrive"] == "******"

        named = (
            "--image",
            "http://images/fedora",
            "--image-checksum",
            "1b2c",
            "--request-id",
            str(UUID(int=7)),
        )
        for _ in range(2):
            rebuilt = await moor_json("rebuild", instance["id"], *named, **environment)
            assert (rebuilt["state"], rebuilt["host"]) == ("active", instance["host"])
            assert rebuilt["rebuild"]["image"]["source"] == "http://images/fedora"
            assert rebuilt["rebuild"]["number"] < rebuilt["sequence"]
        info = await instance_info(home, instance["host"])
        assert info["image_source"] == "http://images/fedora"
        assert await vifs(home, instance["host"]) == ["port-1", "port-2"]
        shown = await moor("show", instance["id"], **environment)
        assert "http://images/fedora" in shown.out

        (deleted,) = await moor_json("delete", instance["id"], "--wait", **environment)
        assert deleted["state"] == "deleted"
        refused = await moor("rebuild", instance["id"], "--image", "http://images/fedora", **environment)
        assert refused.code == 1
        assert f"rejected: instance is '{instance['id']}': it is deleted" in refused.err

        async def is_free() -> bool:
            node = await moor_json("node", "show", instance["host"], **environment)
            return bool(node["offered"]["amount"] == 1)

        await wait_until(is_free, "the node is clean and offered again")


# Some twenty commands, each a process: 77 s beside seven others on two cores.
@pytest.mark.timeout(300)
async def test_an_instance_that_only_ironic_has_is_found_by_an_audit_and_undeployed(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    stray = str(UUID(int=404))

    async def faults() -> list[tuple[str, str]]:
        ran = await moor("audit", "--settle", "0", "-o", "json", **environment)
        lines = [json.loads(line) for line in ran.out.splitlines()]
        assert (ran.code, ran.err) == (4 if len(lines) > 1 else 0, "")
        return [(each["fault"], each["about"]) for each in lines[:-1]]

    async with up(home, "--nodes", "2"):
        image = ("--image", "http://images/debian", "--image-checksum", "0a1b")
        ran = await moor_json("boot", "--flavor", "metal", "--name", "db", *image, **environment)
        (instance,) = ran["instances"]
        own = await moor_json("node", "show", "db", **environment)
        assert own["id"] == instance["host"]
        (other,) = {each["id"] for each in await moor_json("node", "list", **environment)} - {own["id"]}
        assert await faults() == []

        async with httpx.AsyncClient(base_url=ironic_url(home), headers=VERSION) as ironic:
            operations = [{"op": "add", "path": "/instance_uuid", "value": stray}]
            (await ironic.patch(f"/v1/nodes/{other}", json=operations)).raise_for_status()
            deploy = {"target": "active"}
            (await ironic.put(f"/v1/nodes/{other}/states/provision", json=deploy)).raise_for_status()
            await until_state(other, "active", **environment)
            assert await faults() == [("stray on node", stray)]

            undeploy = ("node", "undeploy", "--settle", "0")
            refused = await moor(*undeploy, "--yes", "db", other, **environment)
            assert refused.code == 1
            assert f"`moor delete {instance['id']}` takes it off: nothing was done" in refused.err
            unsure = await moor(*undeploy, other, **environment)
            assert (unsure.code, "say so with --yes" in unsure.err) == (1, True)
            done = await moor(*undeploy, "--yes", other, **environment)
            assert done.code == 0, done.err
            assert await faults() == []
            await until_state(other, "available", **environment)
            nothing = await moor(*undeploy, "--yes", other, **environment)
            assert "has no instance in Ironic, so nothing was done" in nothing.err

            # An operator takes the instance off in Ironic.
            tear_down = {"target": "deleted"}
            (await ironic.put(f"/v1/nodes/{own['id']}/states/provision", json=tear_down)).raise_for_status()
            await until_state(own["id"], "available", **environment)
            assert await faults() == [("lost", instance["id"])]
            # Its name stands for no node any more.
            gone = await moor("node", "power", "off", "db", **environment)
            assert (gone.code, "there is no node 'db'" in gone.err) == (1, True)


async def until_state(node: str, state: str, **environment: str) -> None:
    async def is_so() -> bool:
        shown = await moor_json("node", "show", node, **environment)
        return bool(shown["ironic"]["provision_state"] == state)

    await wait_until(is_so, f"node {node} is {state}")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--image-kernel", "k"), "--image-kernel is 'k', but --image is not given"),
        (("--config-drive", "/nowhere"), "--config-drive is '/nowhere', which is neither a URL nor a file"),
    ],
)
async def test_invalid_boots_are_named(home: Path, arguments: tuple[str, ...], told: str) -> None:
    ran = await moor("boot", "--vcpus", "1", *arguments, XDG_STATE_HOME=str(home))

    assert ran.code == 2
    assert told in plainly(ran.err)


async def test_status_names_nodes_and_flavors_that_are_never_used(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    silver = ("flavor", "create", "silver", "--resources", "CUSTOM_SILVER=1")
    async with up(home, "--nodes", "3"):
        well = await moor_json("status", **environment)
        assert well["healthy"]
        assert not told_of_nodes(well)

        await set_class(home, "node-00001", None)
        await set_class(home, "node-00002", "gold")
        assert (await moor(*silver, **environment)).code == 0
        assert (await moor("flavor", "create", "vm", "--vcpus", "2", **environment)).code == 0
        told = [
            "node node-00001: it has no resource class",
            "class CUSTOM_GOLD of 1 node: no stored flavor requests it",
            "flavor silver: no node has CUSTOM_SILVER",
        ]
        found = await moor("status", **environment)
        assert found.code == 0
        assert [line for line in found.out.splitlines() if line[2:] in told] == [f"• {each}" for each in told]
        by_url = await moor_json("status", "--ironic", ironic_url(home), **environment)
        assert told_of_nodes(by_url) == told
        unreachable = await moor_json("status", "--ironic", "http://127.0.0.1:1", **environment)
        assert "the bare-metal nodes are not known: " in unreachable["notes"][-1]


def told_of_nodes(status: dict[str, Any]) -> list[str]:
    return [each for each in status["notes"] if each.startswith(("node ", "class ", "flavor "))]


def ironic_url(home: Path) -> str:
    return (home / "moorage" / "ironic.url").read_text().strip()


async def set_class(home: Path, node: str, resource_class: str | None) -> None:
    """Change the class as an operator of Ironic does, with another program."""
    patch = [{"op": "replace", "path": "/resource_class", "value": resource_class}]
    async with httpx.AsyncClient(base_url=ironic_url(home), headers=VERSION) as client:
        (await client.patch(f"/v1/nodes/{node}", json=patch)).raise_for_status()


async def vifs(home: Path, node: str) -> list[str]:
    async with httpx.AsyncClient(base_url=ironic_url(home), headers=VERSION) as client:
        found = (await client.get(f"/v1/nodes/{node}/vifs")).raise_for_status().json()
    return sorted(each["id"] for each in found["vifs"])


async def instance_info(home: Path, node: str) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=ironic_url(home), headers=VERSION) as client:
        found = (await client.get(f"/v1/nodes/{node}")).raise_for_status().json()
    info: dict[str, Any] = found["instance_info"]
    return info


def plainly(text: str) -> str:
    """Without the frame and the line breaks of an error."""
    return " ".join(text.replace("│", " ").split())


async def test_a_simulated_ironic_and_a_daemon_may_be_processes_of_their_own(home: Path) -> None:
    async with up(home), AsyncExitStack() as stack:
        servers = {
            "MOOR_BUS_URL": f"unix://{home}/moorage/bus.sock",
            "MOOR_IRONIC_DB_URL": f"sqlite:///{home}/ironic.db",
        }
        ironic = await stack.enter_async_context(
            started("run", "simulated-ironic", "--nodes", "3", "--groups", "harbour,island", **servers)
        )
        url = (await ironic.until_printed_to_stderr("API at")).split()[-1]
        servers |= {
            "MOOR_IRONIC_URL": url,
            # The only cell that is named is that of all other nodes.
            "MOOR_CELLS": "harbour",
            "MOOR_IRONIC_GROUPS": "island=island",
            "MOOR_BUS_URL": f"unix://moor-ironic@{home}/moorage/bus.sock",
        }
        await stack.enter_async_context(started("run", "ironic", "--name", "d1", **servers))

        async def are_offered() -> bool:
            listed = await moor("node", "list", "-o", "json", **servers)
            nodes = json.loads(listed.out) if listed.code == 0 else []
            return [(each["cell"], each["offered"]["amount"]) for each in nodes] == [
                ("harbour", 1),
                ("island", 1),
                ("harbour", 1),
            ]

        await wait_until(are_offered, "all nodes are offered, each in the cell of its group")


async def test_a_daemon_that_could_give_no_node_a_cell_does_not_start(home: Path) -> None:
    servers = {"MOOR_BUS_URL": f"unix://{home}/none.sock", "MOOR_DB_URL": f"sqlite:///{home}/ironic.db"}

    ran = await moor("run", "ironic", "--name", "d1", **servers, MOOR_CELLS="harbour,island")

    assert ran.code == 2
    assert "ironic_cell is ''" in plainly(ran.err)
    assert "the cells are harbour, island" in plainly(ran.err)


async def test_invalid_options_of_the_simulated_ironic_are_named(home: Path) -> None:
    bus = {"MOOR_BUS_URL": f"unix://{home}/none.sock"}
    for arguments, told in (
        (("--ironic-listen", "6385"), "--ironic-listen is '6385': write host:port"),
        (("--script", str(home / "none.toml")), "none.toml"),
    ):
        ran = await moor("run", "simulated-ironic", *arguments, **bus)
        assert ran.code == 2
        assert told in plainly(ran.err)


FLAVORS = (
    ("gold", "--resources", "CUSTOM_GOLD=1"),
    ("silver", "--resources", "CUSTOM_BAREMETAL=1"),
    ("vm", "--vcpus", "2", "--ram", "1024", "--disk", "5"),
)
SCHEDULING = Path(__file__).parents[3] / "docs" / "scheduling.md"


def commands_of(section: str) -> list[list[str]]:
    """The commands in the blocks of this section of docs/scheduling.md, without `moor`."""
    _, _, after = SCHEDULING.read_text().partition(f"\n{section}\n")
    text, _, _ = after.partition("\n##")
    blocks = text.split("```")[1::2]
    return [line.split()[1:] for block in blocks for line in block.strip().splitlines()]


async def test_requests_accept_several_flavors_as_the_docs_say(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    async with up(home, "--nodes", "3", "--daemons", "1"):
        for flavor in FLAVORS:
            assert (await moor("flavor", "create", *flavor, **environment)).code == 0
        boot, plan = commands_of("## Alternatives")

        booted = await moor_json(*boot, **environment)

        states = booted["instances"]
        assert [each["state"] for each in states] == ["active"] * 4
        assert Counter(each["flavor"]["name"] for each in states) == {"silver": 3, "vm": 1}
        shown = await moor(
            "show", next(each["id"] for each in states if each["flavor"]["name"] == "vm"), **environment
        )
        assert "vm: 2 VCPU, 1024 MEMORY_MB, 5 DISK_GB, in place of gold, silver" in shown.out
        assert "no host for gold among 7" in shown.out
        assert "no host for silver among 7" in shown.out
        listed = await moor("list", **environment)
        assert "silver" in listed.out
        planned = await moor(*plan, **environment)
        assert "the next instance gets: vm" in planned.out
        explained = await moor("explain", states[0]["id"], "--now", **environment)
        assert "the next instance gets: vm" in explained.out

        (preferring,) = commands_of("### A class of nodes that is preferred")
        vm = await moor_json(*preferring, **environment)
        assert vm["instances"][0]["flavor"]["vcpus"] == 4

        deleted = next(each["id"] for each in states if each["flavor"]["name"] == "silver")
        await moor("delete", deleted, **environment)

        async def is_offered() -> bool:
            return 1 in [each["offered"]["amount"] for each in await moor_json("node", "list", **environment)]

        await wait_until(is_offered, "a node is free again")
        # By the flavors that `moor up` stores.
        mixed = await moor_json("boot", "--flavor", "metal", "--else", "small", "--count", "2", **environment)
        assert sorted(each["flavor"]["name"] for each in mixed["instances"]) == ["metal", "small"]
        unknown = await moor("boot", "--flavor", "metal", "--else", "huge", **environment)
        assert unknown.code == 2
        assert "--else is 'huge': no flavor of this name is stored" in unknown.err
        audited = await moor("audit", **environment)
        assert audited.code == 0, audited.out
