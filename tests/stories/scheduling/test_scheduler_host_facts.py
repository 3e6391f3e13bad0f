"""What hosts tell, from the host to the choice: capabilities, metrics, failed builds; and the host of another instance."""

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from bus.messages.build import BuildRejected
from engine.flavors import Flavor
from engine.hosts import Supported
from engine.picture.picture import Picture
from laboratory.computes.hosts import HostSize, SimulatedHost
from moor.client.bus_client import hosts_of
from tests.stories.cloud import QUICK, Cloud, a_build, cloud, failing, funnel_of, instance_of
from tests.stories.layouts import STAGES
from tests.waiting import until

COOL_FIRST = structs.replace(QUICK, metrics_weights=("temperature=-1.0",), metrics_weight_multiplier=100.0)


def a_host(name: str, temperature: float, vcpus: int = 8, model: str = "Rome") -> SimulatedHost:
    return SimulatedHost(
        name=name,
        size=HostSize(vcpus=vcpus),
        metrics={"temperature": temperature},
        supports=(Supported(architecture="x86_64", hypervisor_type="qemu", vm_mode="hvm"),),
        capabilities={"cpu_info:model": model},
    )


async def until_measured(picture: Picture, *hosts: str) -> None:
    async def is_so() -> bool:
        column = picture.columns.metrics.get("temperature")
        rows = [row for name in hosts for row in picture.rows_named(name)]
        return column is not None and len(rows) == len(hosts) and all(column[row] > 0 for row in rows)

    await until(is_so, f"{', '.join(hosts)} told their temperature")


async def host_of(
    setup: Cloud, number: int, extra_specs: Mapping[str, str] | None = None, **other: Any
) -> str:
    flavor = Flavor(name="small", vcpus=1, ram_mb=64, root_gb=1, extra_specs=dict(extra_specs or {}))
    return (await setup.boot(number, flavor=flavor, **other)).host


@STAGES
async def test_boots_go_where_it_is_cool_and_where_the_capability_is_and_to_the_host_of_another(
    bus: str, books: str
) -> None:
    picture = Picture()
    hosts = (a_host("cool", 40.0), a_host("hot", 95.0, vcpus=32), a_host("sky", 90.0, model="Skylake"))
    async with (
        cloud(bus, books, scripted=("c2",)) as setup,
        setup.placement(),
        setup.scheduler(settings=COOL_FIRST, picture=picture),
        setup.cell(*hosts),
    ):
        await until_measured(picture, "cool", "hot", "sky")
        asks_for_sky = {"capabilities:cpu_info:model": "s== Skylake"}

        assert await host_of(setup, 1) == "cool"
        assert await host_of(setup, 2, asks_for_sky) == "sky"
        second = instance_of(a_build(2))
        assert await host_of(setup, 3, same_host=(second,)) == "sky"
        assert await host_of(setup, 4, different_host=(instance_of(a_build(1)), second)) == "hot"
        refused = await setup.ask(a_build(5, image_properties={"hw_colour": "blue"}), BuildRejected)
        assert refused.field == "image_properties.hw_colour"


@STAGES
async def test_a_host_where_builds_fail_in_a_row_is_disabled_and_the_next_request_is_told_why(
    bus: str, books: str
) -> None:
    async with (
        cloud(bus, books, scripted=("c2",)) as setup,
        setup.placement(),
        setup.scheduler(settings=structs.replace(QUICK, failed_builds_max=2)),
        setup.cell(a_host("bad", 40.0), script=failing()),
    ):
        for number in (1, 2):
            await setup.boot(number, "error")

        await until(
            lambda: hosts_of(setup.client, "bad"),
            "the host is disabled",
            lambda found: found[0].setting.mode == "draining",
        )

        (step,) = funnel_of(await setup.boot(3, "error")).steps
        assert (step.step, step.removed) == ("enabled", 1)
        assert step.example == "bad: is draining: 2 builds in a row failed (failed_builds_max is 2)"
