"""`moor up --nodes`, `moor node`, `moor status` and `moor boot` on bare metal, each as a process of its own."""

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from tests.stories.moor.moor_process import Process, moor, moor_json, started
from tests.waiting import until

pytestmark = pytest.mark.asyncio

VERSION = {"X-OpenStack-Ironic-API-Version": "1.82"}


@asynccontextmanager
async def up(home: Path, *arguments: str, **environment: str) -> AsyncIterator[Process]:
    async with started("up", "--hosts", "2", *arguments, XDG_STATE_HOME=str(home), **environment) as process:
        await process.until_printed("ready")
        yield process


async def ring(home: Path) -> dict[str, int]:
    """How many nodes each live daemon owns."""
    shown = await moor_json("node", "ring", XDG_STATE_HOME=str(home))
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
        await until(lambda: ring(home), "one daemon owns all nodes", lambda found: found == {"ironic-1": 7})
        assert {*before} < {*await nodes_up(home)}


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
        await until(
            lambda: moor_json("node", "show", instance["host"], **environment),
            "the node is clean and offered again",
            lambda node: bool(node["offered"]["amount"] == 1),
        )


# Some twenty commands, each a process: 77 s beside seven others on two cores.
@pytest.mark.timeout(300)
async def test_an_instance_that_only_ironic_has_is_found_by_an_audit_and_undeployed(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    stray = str(UUID(int=404))

    async with up(home, "--nodes", "2"):
        image = ("--image", "http://images/debian", "--image-checksum", "0a1b")
        ran = await moor_json("boot", "--flavor", "metal", "--name", "db", *image, **environment)
        (instance,) = ran["instances"]
        own = await moor_json("node", "show", "db", **environment)
        assert own["id"] == instance["host"]
        (other,) = {each["id"] for each in await moor_json("node", "list", **environment)} - {own["id"]}
        assert await faults(**environment) == []

        async with httpx.AsyncClient(base_url=ironic_url(home), headers=VERSION) as ironic:
            operations = [{"op": "add", "path": "/instance_uuid", "value": stray}]
            (await ironic.patch(f"/v1/nodes/{other}", json=operations)).raise_for_status()
            deploy = {"target": "active"}
            (await ironic.put(f"/v1/nodes/{other}/states/provision", json=deploy)).raise_for_status()
            await until_state(other, "active", **environment)
            assert await faults(**environment) == [("stray on node", stray)]

            undeploy = ("node", "undeploy", "--settle", "0")
            refused = await moor(*undeploy, "--yes", "db", other, **environment)
            assert refused.code == 1
            assert f"`moor delete {instance['id']}` takes it off: nothing was done" in refused.err
            unsure = await moor(*undeploy, other, **environment)
            assert (unsure.code, "say so with --yes" in unsure.err) == (1, True)
            done = await moor(*undeploy, "--yes", other, **environment)
            assert done.code == 0, done.err
            assert await faults(**environment) == []
            await until_state(other, "available", **environment)
            nothing = await moor(*undeploy, "--yes", other, **environment)
            assert "has no instance in Ironic, so nothing was done" in nothing.err

            # An operator takes the instance off in Ironic.
            tear_down = {"target": "deleted"}
            (await ironic.put(f"/v1/nodes/{own['id']}/states/provision", json=tear_down)).raise_for_status()
            await until_state(own["id"], "available", **environment)
            assert await faults(**environment) == [("lost", instance["id"])]
            # Its name stands for no node any more.
            gone = await moor("node", "power", "off", "db", **environment)
            assert (gone.code, "there is no node 'db'" in gone.err) == (1, True)


async def test_a_node_that_ironic_has_deployed_for_nobody_is_named_and_released(home: Path) -> None:
    """The instance was deleted while the order of a daemon that stood still was on its way to Ironic."""
    environment = {"XDG_STATE_HOME": str(home)}
    async with up(home, "--nodes", "1"):
        (node,) = [each["id"] for each in await moor_json("node", "list", **environment)]
        async with httpx.AsyncClient(base_url=ironic_url(home), headers=VERSION) as ironic:
            order = await ironic.put(f"/v1/nodes/{node}/states/provision", json={"target": "active"})
            order.raise_for_status()
        await until_state(node, "active", **environment)

        assert await faults(**environment) == [("deployed for nobody", "")]
        status = await moor("status", "-o", "json", **environment)
        assert "has no instance there: `moor node undeploy` releases it" in status.out
        assert "Ironic and the books disagree about 1 bare-metal nodes" in status.out
        assert status.code == 1
        shown = await moor("node", "show", node, **environment)
        assert "an instance runs" not in shown.out
        assert "has no instance there" in shown.out
        released = await moor("node", "undeploy", "--settle", "0", "--yes", node, **environment)
        assert released.code == 0, released.err
        await until_state(node, "available", **environment)
        assert await faults(**environment) == []


async def faults(**environment: str) -> list[tuple[str, str]]:
    ran = await moor("audit", "--settle", "0", "-o", "json", **environment)
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert (ran.code, ran.err) == (4 if len(lines) > 1 else 0, "")
    return [(each["fault"], each["about"]) for each in lines[:-1]]


async def until_state(node: str, state: str, **environment: str) -> None:
    await until(
        lambda: moor_json("node", "show", node, **environment),
        f"node {node} is {state}",
        lambda shown: bool(shown["ironic"]["provision_state"] == state),
    )


def ironic_url(home: Path) -> str:
    return (home / "moorage" / "ironic.url").read_text().strip()


async def vifs(home: Path, node: str) -> list[str]:
    async with httpx.AsyncClient(base_url=ironic_url(home), headers=VERSION) as client:
        found = (await client.get(f"/v1/nodes/{node}/vifs")).raise_for_status().json()
    return sorted(each["id"] for each in found["vifs"])


async def instance_info(home: Path, node: str) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=ironic_url(home), headers=VERSION) as client:
        found = (await client.get(f"/v1/nodes/{node}")).raise_for_status().json()
    info: dict[str, Any] = found["instance_info"]
    return info
