"""An instance of another cloud is taken over as it is, may come again after it was given back, and leaves no claim if it is refused."""

from collections.abc import Sequence
from uuid import UUID

from msgspec import structs

from bus.messages.audit import AdoptInstance, GiveBackInstance
from bus.messages.build import InstanceDeleted
from bus.messages.cell import AdoptInCell
from bus.workers.handlers import Said, Tell
from engine.flavors import Flavor, Image, InstanceId, RequestId
from engine.inventories import ConsumerId, ResourceAmount, Share
from tests.unit.choosing.scheduler_worlds import a_host
from tests.unit.examples.values import STATE
from tests.unit.scheduler.lone_scheduler import NOON, LoneScheduler, rejection, released

HOST = a_host("h1", mode="draining")
ORDER = AdoptInstance(
    instance=InstanceId(ConsumerId(UUID(int=1))),
    request_id=RequestId(UUID(int=500)),
    of_cell=HOST.cell,
    host=HOST.name,
    share=Share(host=HOST.id, amounts=(ResourceAmount(provider=HOST.id, resource="VCPU", amount=1),)),
    state="stopped",
    flavor=Flavor(vcpus=1),
    created_at=NOON,
    image=Image(source="debian"),
)


def taken_over(said: Sequence[Said]) -> list[tuple[str, int, Image | None]]:
    """The state in which the cell is to take it over, by which attempt, and its image."""
    told = [each.message for each in said if isinstance(each, Tell)]
    return [(each.state, each.attempt, each.image) for each in told if isinstance(each, AdoptInCell)]


async def test_an_instance_is_taken_over_as_it_is_and_again_and_another_one_in_its_place_leaves_no_claim() -> (
    None
):
    scheduler = LoneScheduler()
    await scheduler.has([HOST])
    assert taken_over(await scheduler.handle(ORDER)) == [("stopped", 1, ORDER.image)]

    refused = await scheduler.handle(structs.replace(ORDER, instance=InstanceId(ConsumerId(UUID(int=2)))))
    assert (rejection(refused).field, released(refused)) == ("request_id", [UUID(int=2)])

    await scheduler.handle(GiveBackInstance(instance=ORDER.instance))
    gone = structs.replace(STATE, id=ORDER.instance, sequence=101, state="deleted", attempt=1)
    await scheduler.hear(InstanceDeleted(cell=HOST.cell, instance=gone))
    assert taken_over(await scheduler.handle(ORDER)) == [("stopped", 2, ORDER.image)]
