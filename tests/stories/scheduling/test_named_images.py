"""Images that are stored under names: created once, named by requests, and kept by instances as they were."""

import pytest
from msgspec import structs

from bus.messages.build import AskInstances, BuildAccepted, BuildInstance, BuildRejected, InstancesFound
from bus.messages.planning import AskPlan
from bus.messages.stored_names import AskImages, CreateImage, DeleteImage, ImagesFound, NamedImage, SetImage
from engine.flavors import Image
from tests.stories.cloud import Cloud, a_build, cloud, instance_of
from tests.stories.layouts import STAGES
from tests.stories.scheduling.test_all_or_nothing import hosts

pytestmark = pytest.mark.asyncio

NO_GOLD = {"trait:CUSTOM_GOLD": "forbidden"}
GOLD = {"trait:CUSTOM_GOLD": "required"}
DEBIAN = NamedImage(name="debian", source="http://images/debian-13", checksum="0a1b", properties=NO_GOLD)


def named(number: int, name: str = "debian", **fields: object) -> BuildInstance:
    return a_build(number, image_name=name, **fields)


async def stored(setup: Cloud, *names: str) -> tuple[NamedImage, ...]:
    found = await setup.client.ask(AskImages(name=names[0]) if names else AskImages())
    assert isinstance(found, ImagesFound)
    return found.images


async def image_shown(setup: Cloud, request: BuildInstance) -> str:
    found = await setup.client.ask(AskInstances(instances=(instance_of(request),)))
    assert isinstance(found, InstancesFound)
    (details,) = found.details
    return details.image


@STAGES
async def test_a_request_names_an_image_and_keeps_it_as_it_was(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        await hosts(setup, h1=8)
        for _ in range(2):
            assert await setup.client.ask(CreateImage(image=DEBIAN)) == ImagesFound(images=(DEBIAN,))
        request = named(1)

        assert isinstance(await setup.client.ask(request), BuildAccepted)
        await setup.until_state(instance_of(request), "active")
        assert setup.placed[0].image == Image(source="http://images/debian-13", checksum="0a1b")
        assert await image_shown(setup, request) == "debian"

        # No host has the trait that the image requires from now on.
        changed = structs.replace(DEBIAN, source="http://images/debian-14", properties=GOLD)
        order = SetImage(name="debian", source="http://images/debian-14", properties=dict(GOLD))
        for _ in range(2):
            assert await setup.client.ask(order) == ImagesFound(images=(changed,))
        # The same request is answered again, and its instance stays as it is.
        assert isinstance(await setup.client.ask(request), BuildAccepted)
        assert len(setup.placed) == 1
        other = await setup.client.ask(named(1, user="another"))
        assert isinstance(other, BuildRejected)
        assert other.field == "request_id"
        await setup.client.ask(named(2))
        failed = await setup.until_state(instance_of(named(2)), "error")
        assert failed.no_valid_host is not None

        assert await setup.client.ask(DeleteImage(name="debian")) == ImagesFound(images=(changed,))
        assert await setup.client.ask(DeleteImage(name="debian")) == ImagesFound(images=())
        assert isinstance(await setup.client.ask(request), BuildAccepted)
        assert await setup.client.ask(order) == ImagesFound(images=())


@STAGES
async def test_what_no_request_could_use_is_refused_with_the_field(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        await setup.client.ask(CreateImage(image=DEBIAN))

        for wrong, field in (
            (structs.replace(DEBIAN, checksum="2c"), "image.checksum"),
            (structs.replace(DEBIAN, properties={}), "image.properties"),
            (structs.replace(DEBIAN, name=""), "image.name"),
            (NamedImage(name="odd"), "image.source"),
            (NamedImage(name="odd", source="x", properties={"hw_odd": "1"}), "image.properties.hw_odd"),
            (
                NamedImage(name="odd", source="x", properties={"os_type": "x" * 1001}),
                "image.properties.os_type",
            ),
            # `--image` would take these names for an image's own id or URL, and never find the stored one.
            (NamedImage(name="http://images/x", source="x"), "image.name"),
            (NamedImage(name="0b6d1c9e5d3f4a4f9c8e3a0b1c2d3e4f", source="x"), "image.name"),
            *[
                (NamedImage(name=name, source="x"), "image.name")
                for name in (" ", "odd ", "o\nd", "o\u202ed")
            ],
            (
                NamedImage(
                    name="odd", source="x", properties={f"trait:CUSTOM_T{n}": "required" for n in range(401)}
                ),
                "image.properties",
            ),
        ):
            refused = await setup.client.ask(CreateImage(image=wrong))
            assert isinstance(refused, BuildRejected), wrong
            assert refused.field == field
        refused = await setup.client.ask(SetImage(name="debian", properties={"hw_odd": "1", "os_type": None}))
        assert isinstance(refused, BuildRejected)
        assert refused.field == "properties.hw_odd"
        refused = await setup.client.ask(SetImage(name="debian", source=""))
        assert isinstance(refused, BuildRejected)
        assert refused.field == "source"
        assert await stored(setup) == (DEBIAN,)
        assert await stored(setup, "none") == ()


@STAGES
async def test_a_name_that_is_not_stored_ends_in_error(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        await hosts(setup, h1=8)
        await setup.client.ask(CreateImage(image=DEBIAN))

        assert isinstance(await setup.client.ask(named(1, "debain")), BuildAccepted)
        failed = await setup.until_state(instance_of(named(1)), "error")
        assert failed.reason == (
            "image_name is 'debain': there is no image of this name; `moor image list` shows all"
        )
        # A request that was delivered once more, now that there is such an image, has ended.
        await setup.client.ask(CreateImage(image=structs.replace(DEBIAN, name="debain")))
        assert isinstance(await setup.client.ask(named(1, "debain")), BuildAccepted)
        assert setup.placed == []

        both = await setup.client.ask(named(2, image=Image(source="x")))
        assert isinstance(both, BuildRejected)
        assert (both.field, both.value) == ("image_name", "debian")
        unknown = await setup.client.ask(AskPlan(request=named(3, "arch")))
        assert isinstance(unknown, BuildRejected)
        assert unknown.field == "request.image_name"
