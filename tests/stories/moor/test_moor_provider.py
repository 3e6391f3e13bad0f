"""`moor provider`: an operator looks at providers, gives a host a device, and asks which hosts could give it."""

from pathlib import Path

import pytest

from tests.stories.moor.moor_process import moor, moor_json, started

pytestmark = pytest.mark.asyncio

FIRST, SECOND = "harbour-host-00001", "harbour-host-00002"


async def test_an_operator_gives_a_host_a_device_and_asks_who_could_give_it(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    async with started("up", "--cells", "harbour", "--hosts", "2", **environment) as up:
        await up.until_printed("ready")
        assert [each["name"] for each in await moor_json("provider", "list", **environment)] == [
            FIRST,
            SECOND,
        ]

        made = await moor_json("provider", "create", "gpu0", "--parent", FIRST, **environment)
        assert (made["name"], made["cell"]) == ("gpu0", "harbour")
        for order in (
            ("inventory", "gpu0", "PGPU=4,reserved=1", "VGPU=8,max=2,ratio=1.5"),
            ("traits", "gpu0", "HW_GPU_API_VULKAN"),
            ("aggregates", "gpu0", made["id"]),
        ):
            ran = await moor("provider", "set", *order, **environment)
            assert ran.code == 0, ran.err
        shown = await moor("provider", "show", "gpu0", **environment)
        assert "below       harbour-host-00001" in shown.out
        assert "VGPU   0/12" in shown.out
        assert "1 to 2" in shown.out
        tree = await moor("provider", "tree", "gpu0", **environment)
        assert "└── gpu0  PGPU 0/3  VGPU 0/12  HW_GPU_API_VULKAN" in tree.out

        asked = ("candidates", "VCPU=1", "--group", "_GPU PGPU=2 HW_GPU_API_VULKAN")
        (found,) = await moor_json(*asked, **environment)
        assert found["mappings"]["_GPU"] == [made["id"]]
        told = await moor(*asked, **environment)
        assert f"{FIRST}: 1 VCPU; gpu0: 2 PGPU for _GPU" in told.out

        await moor_json("boot", "--vcpus", "3", "--name", "web", "--project", "shop", **environment)
        (used,) = await moor_json("quota", "usage", "shop", **environment)
        assert (used["type"], used["consumers"], used["used"]["VCPU"]) == ("INSTANCE", 1, 3)
        held = [
            holder
            for host in (FIRST, SECOND)
            for holder in await moor_json("provider", "holders", host, **environment)
        ]
        assert [(holder["project"], holder["type"]) for holder in held] == [("shop", "INSTANCE")]


async def test_an_instance_gets_a_port_of_a_network_card_and_a_volume_of_a_pool(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    pool = ("--pool", "nfs:DISK_GB=50")
    async with started("up", "--cells", "harbour", "--hosts", "2", *pool, **environment) as up:
        await up.until_printed("ready")
        host = "harbour-host-00002"
        await moor_json("provider", "create", "nic", "--parent", host, **environment)
        await moor_json("provider", "trait", "create", "CUSTOM_PHYSNET_PUBLIC", **environment)
        await moor_json("provider", "set", "traits", "nic", "CUSTOM_PHYSNET_PUBLIC", **environment)
        await moor_json(
            "provider", "set", "inventory", "nic", "NET_BW_EGR_KILOBIT_PER_SEC=150", **environment
        )

        port = ("--port", "p1 NET_BW_EGR_KILOBIT_PER_SEC=100 network=public")
        boot = ("boot", "--vcpus", "1", *port, "--volume", "v1 DISK_GB=20")
        (booted,) = (await moor_json(*boot, **environment))["instances"]
        assert (booted["state"], booted["host"]) == ("active", host)
        for provider, amount in (("nic", 100), ("harbour-nfs", 20)):
            (holder,) = await moor_json("provider", "holders", provider, **environment)
            held = {each["resource"]: each["amount"] for each in holder["held"]}
            assert (holder["id"], amount in held.values()) == (booted["id"], True)
        again = await moor(*boot, **environment)
        assert (again.code, "port p1: NET_BW_EGR_KILOBIT_PER_SEC asked 100, free 50 of 150" in again.out) == (
            1,
            True,
        )
