"""An instance on a bare-metal node of a simulated Ironic gets another image in place: every worker is real."""

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.build import InstancesFound, RebuildInstance
from engine.flavors import Image, InstanceId, RequestId
from laboratory.ironic import available_nodes
from tests.contracts.placement_orders import an_id
from tests.stories.layouts import STAGES
from tests.stories.metal.test_deploys import (
    LONG_DEPLOYS,
    DeploySetup,
    deploy_setup,
)
from tests.waiting import until

pytestmark = pytest.mark.asyncio

NEW = Image(source="http://images/fedora", checksum="1b2c")


def a_rebuild(instance: InstanceId, number: int = 1, **fields: object) -> RebuildInstance:
    rebuild = RebuildInstance(request_id=RequestId(an_id(f"rebuild-{number}")), instance=instance, image=NEW)
    return structs.replace(rebuild, **fields)


async def ask(metal: DeploySetup, order: RebuildInstance) -> Message:
    return await metal.cloud.client.ask(order)


async def an_active_instance(metal: DeploySetup) -> InstanceId:
    await metal.until_offered(*metal.nodes)
    instance = await metal.boot(1, config_drive="http://drives/1")
    await metal.until_active(instance)
    return instance


@STAGES
async def test_an_active_instance_is_rebuilt_in_place_and_a_repeated_request_changes_nothing(
    bus: str, books: str
) -> None:
    nodes = available_nodes(1)
    async with deploy_setup(bus, books, *nodes) as metal, metal.daemon("d1"):
        instance = await an_active_instance(metal)
        before = await metal.cloud.until_state(instance, "active")
        order = a_rebuild(instance)

        answer = await ask(metal, order)
        rebuilt = await metal.cloud.until_state(instance, "active")

        assert isinstance(answer, InstancesFound)
        (begun,) = answer.instances
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

        assert await ask(metal, order) == InstancesFound(instances=(rebuilt,))
        (same,) = metal.with_instance(instance)
        assert same.provision_updated_at == node.provision_updated_at

        await metal.delete(instance)
        await metal.cloud.until_state(instance, "deleted")
        await metal.until_free(*nodes)


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
            assert active.rebuild is not None
            assert (active.rebuild.failure, active.host, active.attempt) == ("", hosts[each], 1)
