"""Images, flavors and device profiles that are stored under names: created once, named by requests, kept as they were."""

from msgspec import structs

from bus.messages.build import (
    AskInstances,
    BuildAccepted,
    BuildInstance,
    BuildRejected,
    FlavorChange,
    InstanceDetails,
    InstancesFound,
    Size,
)
from bus.messages.catalog import (
    AskDeviceProfiles,
    CreateDeviceProfile,
    CreateFlavor,
    CreateImage,
    DeleteDeviceProfile,
    DeleteFlavor,
    DeleteImage,
    DeviceProfilesFound,
    FlavorsFound,
    ImagesFound,
    NamedImage,
    SetImage,
)
from bus.messages.moves import EndMove, MoveInstance
from bus.messages.planning import AskPlan, PlanFound
from engine.flavors import DeviceGroup, DeviceProfile, Flavor, Image, RequestId
from laboratory.computes.hosts import Device, HostSize, SimulatedHost
from tests.contracts.placement_orders import an_id
from tests.stories.cloud import Cloud, a_build, cloud, instance_of
from tests.stories.layouts import STAGES
from tests.waiting import until

NO_GOLD = {"trait:CUSTOM_GOLD": "forbidden"}
GOLD = {"trait:CUSTOM_GOLD": "required"}
DEBIAN = NamedImage(name="debian", source="http://images/debian-13", checksum="0a1b", properties=NO_GOLD)


def with_image(number: int, name: str = "debian", **fields: object) -> BuildInstance:
    return a_build(number, image_name=name, **fields)


async def details_of(setup: Cloud, request: BuildInstance) -> InstanceDetails:
    found = await setup.ask(AskInstances(instances=(instance_of(request),)), InstancesFound)
    return found.details[0]


@STAGES
async def test_a_request_names_an_image_and_keeps_it_as_it_was(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.scheduling("h1"):
        for _ in range(2):
            assert await setup.client.ask(CreateImage(image=DEBIAN)) == ImagesFound(images=(DEBIAN,))
        request = with_image(1)

        await setup.built(request)
        assert setup.placed[0].image == Image(source="http://images/debian-13", checksum="0a1b")
        assert (await details_of(setup, request)).image == "debian"

        # No host has the trait that the image requires from now on.
        changed = structs.replace(DEBIAN, source="http://images/debian-14", properties=GOLD)
        order = SetImage(name="debian", source="http://images/debian-14", properties=dict(GOLD))
        for _ in range(2):
            assert await setup.client.ask(order) == ImagesFound(images=(changed,))
        # The same request is answered again, and its instance stays as it is.
        assert isinstance(await setup.client.ask(request), BuildAccepted)
        assert len(setup.placed) == 1
        assert (await setup.ask(with_image(1, user="another"), BuildRejected)).field == "request_id"
        (failed,) = await setup.built(with_image(2), "error")
        assert failed.no_valid_host is not None

        assert await setup.client.ask(DeleteImage(name="debian")) == ImagesFound(images=(changed,))
        assert await setup.client.ask(DeleteImage(name="debian")) == ImagesFound(images=())
        assert isinstance(await setup.client.ask(request), BuildAccepted)
        assert await setup.client.ask(order) == ImagesFound(images=())


@STAGES
async def test_a_name_that_is_not_stored_ends_in_error(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.scheduling("h1"):
        await setup.client.ask(CreateImage(image=DEBIAN))

        (failed,) = await setup.built(with_image(1, "debain"), "error")
        assert failed.reason == (
            "image_name is 'debain': there is no image of this name; `moor image list` shows all"
        )
        # A request that was delivered once more, now that there is such an image, has ended.
        await setup.client.ask(CreateImage(image=structs.replace(DEBIAN, name="debain")))
        assert isinstance(await setup.client.ask(with_image(1, "debain")), BuildAccepted)
        assert setup.placed == []

        unknown = await setup.ask(AskPlan(request=with_image(3, "arch")), BuildRejected)
        assert unknown.field == "request.image_name"


TWO = Flavor(name="small", vcpus=2, extra_specs={"trait:CUSTOM_GOLD": "forbidden"})
GIANT = Flavor(name="giant", vcpus=64)


def with_flavor(number: int, *names: str, **fields: object) -> BuildInstance:
    return a_build(number, flavor=None, flavor_names=names, **fields)


@STAGES
async def test_a_request_names_a_flavor_and_keeps_it_as_it_was(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.scheduling("h1"):
        for _ in range(2):
            assert await setup.client.ask(CreateFlavor(flavor=TWO)) == FlavorsFound(flavors=(TWO,))
        request = with_flavor(1, "small")

        await setup.built(request)
        assert setup.placed[0].flavor == TWO
        assert (await details_of(setup, request)).size == Size(flavor="small", amounts={"VCPU": 2})

        assert await setup.client.ask(DeleteFlavor(name="small")) == FlavorsFound(flavors=(TWO,))
        assert await setup.client.ask(DeleteFlavor(name="small")) == FlavorsFound(flavors=())
        await setup.client.ask(CreateFlavor(flavor=Flavor(name="small", vcpus=3)))
        # The same request is answered again, and its instance stays as it is.
        assert isinstance(await setup.client.ask(request), BuildAccepted)
        assert (await details_of(setup, request)).size == Size(flavor="small", amounts={"VCPU": 2})
        assert len(setup.placed) == 1
        assert (await setup.ask(with_flavor(1, "small", name="another"), BuildRejected)).field == "request_id"
        await setup.built(with_flavor(2, "small"))
        size = (await details_of(setup, with_flavor(2))).size
        assert size == Size(flavor="small", amounts={"VCPU": 3})


@STAGES
async def test_several_names_are_alternatives_and_an_unknown_one_ends_in_error(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.scheduling("h1"):
        for flavor in (GIANT, TWO):
            await setup.client.ask(CreateFlavor(flavor=flavor))

        (active,) = await setup.built(with_flavor(1, "giant", "small"))
        assert active.flavor == TWO
        assert [each.flavor for each in active.passed_over] == ["giant"]

        (failed,) = await setup.built(with_flavor(2, "small", "tiny"), "error")
        assert failed.reason == (
            "flavor_names has 'tiny': there is no flavor of this name; `moor flavor list` shows all"
        )
        assert (await setup.ask(AskPlan(request=with_flavor(4, "small")), PlanFound)).fit == 3
        unknown = await setup.ask(AskPlan(request=with_flavor(4, "tiny")), BuildRejected)
        assert unknown.field == "request.flavor_names"


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


async def store_profiles(setup: Cloud, *profiles: DeviceProfile) -> None:
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
        setup.cell(HOST),
    ):
        await store_profiles(setup, FAST, SLOW)
        assert await setup.client.ask(CreateFlavor(flavor=WITH_FAST)) == FlavorsFound(flavors=(WITH_FAST,))
        build = a_build(1, flavor=None, flavor_names=("with-fast",))

        await setup.built(build)
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
        state = await setup.boot(2, "error", flavor=WITH_FAST)
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
        await setup.ask(resize, InstancesFound)
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
async def test_profiles_are_listed_and_planned_with(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        await store_profiles(setup, SLOW, FAST, FAST)
        assert await setup.client.ask(AskDeviceProfiles(limit=1)) == DeviceProfilesFound(
            profiles=(FAST,), next="fast"
        )
        assert await setup.client.ask(AskDeviceProfiles(after="fast")) == DeviceProfilesFound(
            profiles=(SLOW,)
        )
        assert await setup.client.ask(AskDeviceProfiles(name="none")) == DeviceProfilesFound(profiles=())
        # A plan reads the profile, and names one that is not there.
        await setup.ask(AskPlan(request=BuildInstance(flavor=WITH_FAST)), PlanFound)
        other = structs.replace(WITH_FAST, extra_specs={"accel:device_profile": "none"})
        refused = await setup.ask(AskPlan(request=BuildInstance(flavor=other)), BuildRejected)
        assert (refused.field, refused.value) == ("request.flavor.extra_specs.accel:device_profile", "none")
