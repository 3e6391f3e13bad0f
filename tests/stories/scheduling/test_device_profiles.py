"""Device profiles that are stored under names: a flavor names one, its groups are in the claim, and the order to the host has both."""

import pytest
from msgspec import structs

from bus.messages.build import BuildInstance, BuildRejected, FlavorChange, InstancesFound
from bus.messages.moves import EndMove, MoveInstance
from bus.messages.planning import AskPlan, PlanFound
from bus.messages.stored_names import (
    AskDeviceProfiles,
    CreateDeviceProfile,
    CreateFlavor,
    DeleteDeviceProfile,
    DeviceProfilesFound,
    FlavorsFound,
)
from engine.flavors import DeviceGroup, DeviceProfile, Flavor, RequestId
from laboratory.computes.hosts import Device, HostSize, SimulatedHost
from tests.contracts.conductor_stores import open_conductor_store
from tests.contracts.placement_orders import an_id
from tests.stories.cloud import Cloud, a_build, cloud, instance_of
from tests.stories.layouts import STAGES
from tests.waiting import until

pytestmark = pytest.mark.asyncio

FAST = DeviceProfile(
    name="fast",
    groups=(
        DeviceGroup(resources={"FPGA": 1}, required=("CUSTOM_FAST",)),
        DeviceGroup(resources={"FPGA": 1}, forbidden=("CUSTOM_FAST",)),
    ),
)
SLOW = DeviceProfile(name="slow", groups=(DeviceGroup(resources={"FPGA": 1}, forbidden=("CUSTOM_FAST",)),))
HOST = SimulatedHost(
    name="h1",
    size=HostSize(
        vcpus=8,
        devices=(Device({"FPGA": 1}, frozenset({"CUSTOM_FAST"})), Device({"FPGA": 1}), Device({"FPGA": 2})),
    ),
)
FPGAS = ("h1_0000:81:00.0", "h1_0000:82:00.0", "h1_0000:83:00.0")
WITH_FAST = Flavor(
    name="with-fast", vcpus=1, ram_mb=64, root_gb=1, extra_specs={"accel:device_profile": "fast"}
)


async def store(setup: Cloud, *profiles: DeviceProfile) -> None:
    for profile in profiles:
        found = await setup.client.ask(CreateDeviceProfile(profile=profile))
        assert found == DeviceProfilesFound(profiles=(profile,))


@STAGES
async def test_an_instance_gets_the_devices_of_the_profile_that_its_flavor_names(
    bus: str, books: str
) -> None:
    async with (
        cloud(bus, books, scripted=("c2",)) as setup,
        setup.placement(),
        setup.scheduler(),
        open_conductor_store(books, "c1") as rows,
        setup.cell(rows, HOST),
    ):
        await setup.until_reported("h1")
        await store(setup, FAST, SLOW)
        assert await setup.client.ask(CreateFlavor(flavor=WITH_FAST)) == FlavorsFound(flavors=(WITH_FAST,))
        build = a_build(1, flavor=None, flavor_names=("with-fast",))

        await setup.send(build)
        await setup.until_state(instance_of(build), "active")
        # The first one is taken, and one of the others.
        found = await setup.providers()
        used = {name: found[name].inventories["FPGA"].used for name in FPGAS}
        assert used[FPGAS[0]] == 1
        assert sum(used.values()) == 2

        # What is stored changes no instance; a request that is sent again gets the same answer.
        assert await setup.client.ask(DeleteDeviceProfile(name="fast")) == DeviceProfilesFound(
            profiles=(FAST,)
        )
        await setup.send(build)
        again = a_build(2, flavor=WITH_FAST)
        await setup.send(again)
        state = await setup.until_state(instance_of(again), "error")
        assert state.reason == (
            "flavor.extra_specs.accel:device_profile is 'fast': there is no device-profile of this name; `moor device-profile list` "
            "shows all"
        )

        # A resize to another profile gives the devices back that only the first one has.
        resize = MoveInstance(
            request_id=RequestId(an_id("resize")),
            instance=instance_of(build),
            kind="resize",
            change=FlavorChange(extra_specs={"accel:device_profile": "slow"}),
            hosts=("h1",),
        )
        answer = await setup.client.ask(resize)
        assert isinstance(answer, InstancesFound), answer
        await setup.until_state(instance_of(build), "moved")
        confirm = EndMove(request_id=resize.request_id, instance=instance_of(build), how="confirm")
        assert isinstance(await setup.client.ask(confirm), InstancesFound)
        await setup.until_state(instance_of(build), "active")
        await until(
            setup.providers,
            "one slow device is used",
            lambda found: [found[name].inventories["FPGA"].used for name in FPGAS] in ([0, 1, 0], [0, 0, 1]),
        )


@STAGES
async def test_profiles_are_listed_shown_and_refused_by_their_fields(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        await store(setup, SLOW, FAST, FAST)
        assert await setup.client.ask(AskDeviceProfiles(limit=1)) == DeviceProfilesFound(
            profiles=(FAST,), next="fast"
        )
        assert await setup.client.ask(AskDeviceProfiles(after="fast")) == DeviceProfilesFound(
            profiles=(SLOW,)
        )
        assert await setup.client.ask(AskDeviceProfiles(name="none")) == DeviceProfilesFound(profiles=())
        for wrong, field, value in (
            (structs.replace(FAST, groups=SLOW.groups), "profile.groups", None),
            (structs.replace(FAST, name=""), "profile.name", ""),
            (structs.replace(FAST, name="new", groups=()), "profile.groups", ""),
            (
                DeviceProfile(name="new", groups=(DeviceGroup(resources={}),)),
                "profile.groups[0].resources",
                "",
            ),
            (
                DeviceProfile(name="new", groups=(DeviceGroup(resources={"NONE": 1}),)),
                "profile.groups[0]",
                "NONE",
            ),
            (
                DeviceProfile(
                    name="new",
                    groups=(*FAST.groups, DeviceGroup(resources={"FPGA": 1}, required=("NO_TRAIT",))),
                ),
                "profile.groups[2]",
                "NO_TRAIT",
            ),
        ):
            refused = await setup.client.ask(CreateDeviceProfile(profile=wrong))
            assert isinstance(refused, BuildRejected), wrong
            assert refused.field == field
            assert value in (None, refused.value)


@STAGES
async def test_a_plan_reads_the_profile_and_refuses_one_that_is_not_there(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        await store(setup, FAST)
        plan = await setup.client.ask(AskPlan(request=BuildInstance(flavor=WITH_FAST)))
        assert isinstance(plan, PlanFound)
        other = structs.replace(WITH_FAST, extra_specs={"accel:device_profile": "none"})
        refused = await setup.client.ask(AskPlan(request=BuildInstance(flavor=other)))
        assert isinstance(refused, BuildRejected)
        assert (refused.field, refused.value) == ("request.flavor.extra_specs.accel:device_profile", "none")
