"""Instances on simulated hypervisors are rebuilt in place: every worker is real."""

from uuid import UUID

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.build import AskInstances, BuildRejected, InstancesFound, RebuildInstance
from bus.messages.hosts import SetHost
from bus.messages.stored_names import CreateImage, NamedImage
from engine.flavors import Image, InstanceId, RequestId
from tests.stories.layouts import BOTH, STAGES
from tests.stories.moves.test_moves import Movers, movers
from tests.stories.moves.test_moves_fail import SILENT, down, hosts_of_held_time
from tests.waiting import Clock, until

pytestmark = pytest.mark.asyncio

NEW = Image(source="http://images/fedora", checksum="1b2c")
INTEL = NamedImage(name="intel", source="http://images/intel", properties={"hw_architecture": "x86_64"})
ARM = NamedImage(name="arm", source="http://images/arm", properties={"hw_architecture": "aarch64"})
GOLD = NamedImage(name="gold", source="http://images/gold", properties={"trait:CUSTOM_GOLD": "required"})
PINNED = NamedImage(name="pinned", source="http://images/pinned", properties={"hw_cpu_policy": "dedicated"})


async def rebuild(here: Movers, instance: InstanceId, number: int = 1, **fields: object) -> Message:
    order = RebuildInstance(request_id=RequestId(UUID(int=2000 + number)), instance=instance, image=NEW)
    return await here.setup.client.ask(structs.replace(order, **fields))


@STAGES
async def test_a_stored_image_counts_with_its_properties_for_the_host_and_for_later_moves(
    bus: str, books: str
) -> None:
    async with movers(bus, books, "h1", "h2") as here:
        ask = here.setup.client.ask
        for image in (INTEL, ARM, GOLD, PINNED):
            await ask(CreateImage(image=image))
        instance = await here.booted()

        for name, field, why in (
            ("arch", "image_name", "there is no image of this name"),
            ("arm", "image_name", "image properties: asked aarch64"),
            ("gold", "image_name", "traits: it lacks CUSTOM_GOLD"),
            ("pinned", "image_name", "it asks for other resources than the instance has"),
        ):
            refused = await rebuild(here, instance, 1, image=None, image_name=name)
            assert isinstance(refused, BuildRejected), refused
            assert (refused.field, refused.value, why in refused.reason) == (field, name, True), refused
        assert (await here.until(instance, "active")).rebuild is None

        await rebuild(here, instance, 2, image=None, image_name="intel")
        active = await here.until(instance, "active")
        assert active.rebuild is not None
        assert (active.rebuild.image, active.rebuild.image_name) == (INTEL.image, "intel")
        found = await ask(AskInstances(instances=(instance,)))
        assert isinstance(found, InstancesFound)
        assert [each.image for each in found.details] == ["intel"]
        assert active.rebuild.image_properties == INTEL.properties

        # An image of its own has no properties: those of the stored one stay. It is no stored image any more.
        await rebuild(here, instance, 3)
        active = await here.until(instance, "active")
        assert active.rebuild is not None
        assert (active.rebuild.image_name, active.rebuild.image_properties) == ("", INTEL.properties)
        await here.move(instance)
        await here.until(instance, "moved")
        await here.end(instance, "confirm")
        assert (await here.until(instance, "active", "confirmed")).host == "h2"


@BOTH
async def test_a_host_that_is_lost_in_a_rebuild_is_asked_until_it_says_how_it_ended(
    bus: str, books: str
) -> None:
    held = Clock(0.0)
    async with hosts_of_held_time(bus, books, held, SILENT) as (here, (driver, _)):
        instance = await here.booted()
        held.pass_s(10)
        await rebuild(here, instance)
        await until(driver.images, "its host has the order to rebuild it", lambda found: NEW.source in found)
        await down(here, "h1")

        failed = await here.until(instance, "error")

        assert failed.reason == "its rebuild failed: the host is set down: no power"
        refused = await rebuild(here, instance, 2)
        assert isinstance(refused, BuildRejected)
        assert (refused.field, refused.reason) == ("instance", "its host h1 is down")
        # Its answer was lost. It is asked again.
        held.pass_s(10)
        active = await here.until(instance, "active")
        assert active.rebuild is not None
        assert (active.host, active.attempt, active.rebuild.failure) == ("h1", 1, "")
        await here.setup.client.ask(SetHost(host="h1", mode="up"))
        await here.until_used(h1=1, h2=0)
