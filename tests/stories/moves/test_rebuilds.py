"""Instances are rebuilt in place, on a bare-metal node of a simulated Ironic and on simulated hypervisors: every worker is real."""

from uuid import UUID

from msgspec import structs

from bus.message import Message
from bus.messages.build import AskInstances, BuildRejected, InstancesFound, RebuildInstance
from bus.messages.catalog import CreateImage, NamedImage
from bus.messages.hosts import SetHost
from engine.flavors import Image, InstanceId, RequestId
from laboratory.ironic import available_nodes
from tests.narrowing import must_be, present
from tests.stories.layouts import BOTH, STAGES
from tests.stories.metal.test_deploys import (
    LONG_DEPLOYS,
    deploy_setup,
)
from tests.stories.moves.test_moves import SILENT, Movers, down, hosts_of_held_time, movers
from tests.waiting import Clock, until

NEW = Image(source="http://images/fedora", checksum="1b2c")


def a_rebuild(instance: InstanceId, number: int = 1, **fields: object) -> RebuildInstance:
    rebuild = RebuildInstance(request_id=RequestId(UUID(int=2000 + number)), instance=instance, image=NEW)
    return structs.replace(rebuild, **fields)


@STAGES
async def test_an_active_instance_is_rebuilt_in_place_and_a_repeated_request_changes_nothing(
    bus: str, books: str
) -> None:
    nodes = available_nodes(1)
    async with deploy_setup(bus, books, *nodes) as metal, metal.daemon("d1"):
        await metal.until_offered(*metal.nodes)
        instance = await metal.boot(1, config_drive="http://drives/1")
        before = await metal.until_active(instance)
        order = a_rebuild(instance)

        answer = await metal.cloud.client.ask(order)
        rebuilt = await metal.cloud.until_state(instance, "active")

        (begun,) = must_be(InstancesFound, answer).instances
        assert (begun.state, begun.host) == ("rebuilding", before.host)
        assert rebuilt.sequence > begun.sequence > before.sequence
        assert rebuilt.rebuild is not None
        assert (rebuilt.rebuild.image, rebuilt.rebuild.failure) == (NEW, "")
        assert (rebuilt.host, rebuilt.attempt, rebuilt.reason) == (before.host, before.attempt, "")
        (node,) = metal.with_instance(instance)
        assert node.provision_state == "active"
        assert node.instance_info["image_source"] == NEW.source
        assert node.instance_info["configdrive"] == "http://drives/1"
        assert [each.used for each in (await metal.stocks()).values()] == [1]

        assert await metal.cloud.client.ask(order) == InstancesFound(instances=(rebuilt,))
        (same,) = metal.with_instance(instance)
        assert same.provision_updated_at == node.provision_updated_at

        await metal.gone(instance, *nodes)


@STAGES
async def test_a_daemon_dies_in_the_middle_of_a_rebuild_and_another_ends_it(bus: str, books: str) -> None:
    nodes = available_nodes(4)
    async with deploy_setup(bus, books, *nodes, settings=LONG_DEPLOYS) as metal, metal.daemon("d2"):
        async with metal.daemon("d1", killed=True):
            await metal.until_offered(*nodes)
            await until(metal.is_shared, "both own nodes")
            instances = [await metal.boot(number) for number in range(1, 5)]
            hosts = {each: (await metal.until_active(each)).host for each in instances}
            await metal.cloud.send(*[a_rebuild(each, number) for number, each in enumerate(instances)])

            await until(metal.deploying, "the daemon that is to die rebuilds", lambda found: "d1" in found)

        async def are_rebuilt() -> bool:
            metal.end_work()
            return {node.instance_info.get("image_source") for node in metal.nodes} == {NEW.source}

        await until(are_rebuilt, "Ironic has the new image everywhere")
        for each in instances:
            active = await metal.until_active(each)
            assert (present(active.rebuild).failure, active.host, active.attempt) == ("", hosts[each], 1)


INTEL = NamedImage(name="intel", source="http://images/intel", properties={"hw_architecture": "x86_64"})
ARM = NamedImage(name="arm", source="http://images/arm", properties={"hw_architecture": "aarch64"})
GOLD = NamedImage(name="gold", source="http://images/gold", properties={"trait:CUSTOM_GOLD": "required"})
PINNED = NamedImage(name="pinned", source="http://images/pinned", properties={"hw_cpu_policy": "dedicated"})


async def rebuild(here: Movers, instance: InstanceId, number: int = 1, **fields: object) -> Message:
    return await here.setup.client.ask(a_rebuild(instance, number, **fields))


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
            refused = must_be(BuildRejected, await rebuild(here, instance, 1, image=None, image_name=name))
            assert (refused.field, refused.value, why in refused.reason) == (field, name, True), refused
        assert (await here.until(instance, "active")).rebuild is None

        await rebuild(here, instance, 2, image=None, image_name="intel")
        active = await here.until(instance, "active")
        assert active.rebuild is not None
        assert (active.rebuild.image, active.rebuild.image_name) == (INTEL.image, "intel")
        found = must_be(InstancesFound, await ask(AskInstances(instances=(instance,))))
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
        refused = must_be(BuildRejected, await rebuild(here, instance, 2))
        assert (refused.field, refused.reason) == ("instance", "its host h1 is down")
        # Its answer was lost. It is asked again.
        held.pass_s(10)
        active = await here.until(instance, "active")
        assert (active.host, active.attempt, present(active.rebuild).failure) == ("h1", 1, "")
        await here.setup.client.ask(SetHost(host="h1", mode="up"))
        await here.setup.until_used(h1=1, h2=0)
