"""`moor provider`: an operator looks at providers, gives a host a device, and asks which hosts could give it."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stories.moor.moor_process import moor, moor_json, started

pytestmark = pytest.mark.asyncio

FIRST, SECOND = "harbour-host-00001", "harbour-host-00002"


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: the path of a socket may not be long."""
    with tempfile.TemporaryDirectory(prefix="moor-") as place:
        yield Path(place)


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
        assert "VGPU   0     12" in shown.out
        assert "1 to 2" in shown.out
        tree = await moor("provider", "tree", "gpu0", **environment)
        assert "└── gpu0  PGPU 0/3  VGPU 0/12  HW_GPU_API_VULKAN" in tree.out

        asked = ("candidates", "VCPU=1", "--group", "_GPU PGPU=2 HW_GPU_API_VULKAN")
        (found,) = await moor_json(*asked, **environment)
        assert found["mappings"]["_GPU"] == [made["id"]]
        told = await moor(*asked, **environment)
        assert f"{FIRST}: 1 VCPU; gpu0: 2 PGPU for _GPU" in told.out

        await moor_json("boot", "--vcpus", "3", "--name", "web", "--project", "shop", **environment)
        (used,) = await moor_json("usage", "shop", **environment)
        assert (used["type"], used["consumers"], used["used"]["VCPU"]) == ("INSTANCE", 1, 3)
        held = [
            holder
            for host in (FIRST, SECOND)
            for holder in await moor_json("provider", "holders", host, **environment)
        ]
        assert [(holder["project"], holder["type"]) for holder in held] == [("shop", "INSTANCE")]


async def test_a_host_owns_its_inventory_and_what_an_operator_has_made_beside_it_stays(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    up_again = ("up", "--cells", "harbour", "--hosts", "2")
    async with started(*up_again, **environment) as up:
        await up.until_printed("ready")
        before = await moor_json("provider", "show", FIRST, **environment)
        await moor_json("provider", "create", "shelf0", "--parent", FIRST, **environment)
        for order in (("inventory", "shelf0", "VGPU=2"), ("inventory", FIRST, "VCPU=1")):
            ran = await moor("provider", "set", *order, **environment)
            assert ran.code == 0, ran.err
        shown = await moor_json("provider", "show", FIRST, **environment)
        assert list(shown["inventories"]) == ["VCPU"]
    async with started(*up_again, **environment) as up:
        await up.until_printed("ready")
        # The host is reported anew after its restart.
        after = await moor_json("provider", "show", FIRST, **environment)
        assert after["inventories"] == before["inventories"]
        shelf = await moor_json("provider", "show", "shelf0", **environment)
        assert (shelf["inventories"]["VGPU"]["total"], shelf["made_by_name"]) == (2, True)
        said = await moor("provider", "show", "shelf0", **environment)
        assert "no report has named it" in " ".join(said.out.split())
        assert (await moor("audit", **environment)).code == 0


async def test_an_impossible_change_is_reported_and_nothing_is_written(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    async with started("up", "--cells", "harbour", "--hosts", "2", **environment) as up:
        await up.until_printed("ready")
        made = await moor_json("provider", "create", "gpu0", "--parent", FIRST, **environment)
        as_client = f"unix://moor-app-local@{home}/moorage/bus.sock"
        wrong = (
            (("provider", "show", "nowhere"), 1, "there is no provider 'nowhere'"),
            (("provider", "create", SECOND), 1, f"{SECOND!r} is already the name of provider"),
            (("provider", "create", "x", "--id", made["id"]), 1, f"provider {made['id']} already exists"),
            (("provider", "delete", FIRST), 1, f"it has a child, provider {made['id']}"),
            (("provider", "move", FIRST, "--parent", "gpu0"), 1, "not done: parent"),
            (("provider", "move", FIRST), 2, "give either --parent PROVIDER or --alone"),
            (
                ("provider", "set", "inventory", "gpu0", "PGPU=x"),
                2,
                "'PGPU=x': the total is 'x', must be a number",
            ),
            (("provider", "set", "inventory", "gpu0", "PGPU=1,half=2"), 2, "'half' must be one of reserved"),
            (("provider", "set", "inventory", "gpu0", "FOO=1"), 1, "FOO"),
            (("provider", "set", "traits", "gpu0", "CUSTOM_NEW"), 1, "there is no trait CUSTOM_NEW"),
            (("provider", "set", "traits", "gpu0", "low"), 2, "Expected `str` matching regex"),
            (("provider", "delete", "gpu0", "--bus", as_client), 1, "'moor-app-local' may not publish"),
            (("candidates", "VCPU=1", "CUSTOM_NEW"), 2, "unknown resource class or trait: CUSTOM_NEW"),
            (("candidates", "VCPU=1", "no:Fast"), 2, "groups[0].forbidden[0] is 'Fast', and cannot be sent"),
            (("candidates", "VCPU=1", "in:x"), 2, "groups[0].member_of[0][0] is 'x', and cannot be sent"),
            (("candidates", "VCPU=many"), 2, "'VCPU=many': the amount is 'many', must be a whole number"),
            (("candidates", "HW_CPU_X86_AVX2"), 2, "groups[0].resources: the group asks for no resource"),
            (("candidates", "VCPU=500"), 1, "no provider can satisfy this now"),
        )
        told = await asyncio.gather(*(moor(*arguments, **environment) for arguments, _, _ in wrong))
        for ran, (arguments, code, what) in zip(told, wrong, strict=True):
            assert (ran.code, what in ran.err, "Traceback" in ran.err) == (code, True, False), (
                arguments,
                ran,
            )

        assert (await moor("provider", "delete", "gpu0", **environment)).code == 0
        assert [each["name"] for each in await moor_json("provider", "list", **environment)] == [
            FIRST,
            SECOND,
        ]


async def test_an_operator_makes_custom_traits_and_classes_and_deletes_those_that_nothing_has(
    home: Path,
) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    async with started("up", "--cells", "harbour", "--hosts", "1", **environment) as up:
        await up.until_printed("ready")
        for kind, name, other, standard in (
            ("trait", "CUSTOM_GPU", "CUSTOM_GPUS", "HW_CPU_X86_AVX"),
            ("class", "CUSTOM_FPGA", "CUSTOM_FPGAS", "VCPU"),
        ):
            for _ in range(2):
                assert await moor_json(kind, "create", name, **environment) == {
                    "name": name,
                    "kind": "custom",
                }
            assert name in [each["name"] for each in await moor_json(kind, "list", **environment)]
            every = {
                each["name"]: each["kind"] for each in await moor_json(kind, "list", "--all", **environment)
            }
            assert (every[name], every[standard]) == ("custom", "standard")

            refused = await moor(kind, "create", standard, **environment)
            assert (refused.code, "must begin with CUSTOM_" in refused.err) == (2, True)
            unknown = await moor(kind, "delete", other, **environment)
            assert (unknown.code, f"{other}; near it are {name}" in unknown.err) == (1, True)

            what = ("traits", name) if kind == "trait" else ("inventory", "VCPU=4", f"{name}=2")
            await moor_json("provider", "set", what[0], "harbour-host-00001", *what[1:], **environment)
            used = await moor(kind, "delete", name, **environment)
            assert (used.code, f"{name} is in use, by provider" in used.err) == (1, True)
            back = (
                ("traits", "harbour-host-00001")
                if kind == "trait"
                else ("inventory", "harbour-host-00001", "VCPU=4")
            )
            await moor_json("provider", "set", *back, **environment)
            assert (await moor(kind, "delete", name, **environment)).out == f"deleted {name}\n"
            assert name not in [each["name"] for each in await moor_json(kind, "list", **environment)]


async def test_an_instance_gets_a_port_of_a_network_card_and_a_volume_of_a_pool(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    pool = ("--pool", "nfs:DISK_GB=50")
    async with started("up", "--cells", "harbour", "--hosts", "2", *pool, **environment) as up:
        await up.until_printed("ready")
        host = "harbour-host-00002"
        await moor_json("provider", "create", "nic", "--parent", host, **environment)
        await moor_json("trait", "create", "CUSTOM_PHYSNET_PUBLIC", **environment)
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


async def test_simulated_hosts_give_ports_the_bandwidth_of_their_network(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    network = ("--network", "physnet0=150")
    async with started("up", "--cells", "harbour", "--hosts", "1", *network, **environment) as up:
        await up.until_printed("ready")
        boot = (
            "boot",
            "--vcpus",
            "1",
            "--port",
            "p1 NET_BW_EGR_KILOBIT_PER_SEC=100 network=physnet0 type=normal",
        )

        (booted,) = (await moor_json(*boot, **environment))["instances"]

        provider = "harbour-host-00001:physnet0"
        (holder,) = await moor_json("provider", "holders", provider, **environment)
        assert (booted["state"], holder["id"]) == ("active", booted["id"])
        again = await moor(*boot, **environment)
        assert "port p1: NET_BW_EGR_KILOBIT_PER_SEC asked 100, free 50 of 150" in again.out
        alone = await moor("boot", "--vcpus", "1", "--port", "p2", **environment)
        assert "a port on a hypervisor names the resources that it needs there" in alone.err
