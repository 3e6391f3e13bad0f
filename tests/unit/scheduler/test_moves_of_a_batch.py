"""Orders to move instances that a scheduler takes in one batch, and what those are tried by that wait."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from msgspec import structs

from bus.messages.books import ConsumerState
from bus.messages.build import BuildInstance, BuildRejected, InstancesFound
from bus.messages.moves import MoveInstance, MoveWait
from bus.workers.handlers import Answer, Said
from engine.flavors import Flavor, InstanceId, RequestId
from engine.inventories import ConsumerId, ResourceAmount
from engine.requests import InstanceSpec
from kit.settings import tell_followers
from scheduler_worker.core.instances.history import encoded
from scheduler_worker.core.instances.rows import InstanceRow, accepted
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store_sql import NewRequest
from scheduler_worker.wiring import scheduler_parts
from tests.contracts.placement_orders import provider
from tests.unit.choosing.scheduler_worlds import a_host, a_state, vcpus
from tests.unit.scheduler.lone_scheduler import NOON, LoneScheduler

LONG = MoveWait(for_s=600)


def an_instance(number: int) -> InstanceId:
    return InstanceId(UUID(int=number))


def a_row(number: int, host: str, vcpu: int) -> InstanceRow:
    build = BuildInstance(request_id=RequestId(UUID(int=100 + number)), flavor=Flavor(vcpus=vcpu))
    spec = encoded(InstanceSpec((("VCPU", vcpu),)), build)
    (row,) = accepted(build, [an_instance(number)], NOON, NOON + timedelta(hours=1), spec)
    told = structs.replace(row.told, state="active", cell="c1", host=host, sequence=10, attempt=1)
    return structs.replace(row, told=told, heard=10)


def an_order(number: int, *hosts: str, wait: MoveWait | None = None, **fields: object) -> MoveInstance:
    order = MoveInstance(
        request_id=RequestId(UUID(int=200 + number)),
        instance=an_instance(number),
        kind="migrate",
        hosts=hosts,
        wait=wait,
    )
    return structs.replace(order, **fields)


class Batches(LoneScheduler):
    """Each host has so many processors, and none is free but the number that is given."""

    def __init__(self, free: dict[str, int], settings: SchedulerSettings | None = None) -> None:
        super().__init__(settings)
        self._free = free
        self._states = {
            name: a_state(name, vcpus(8, 8 - free[name]), internal=number)
            for number, name in enumerate(free, 1)
        }

    async def begin(self, *rows: InstanceRow) -> None:
        self.picture.apply([*self._states.values()])
        await self.has([a_host(name) for name in self._free])
        async with self.store.transaction() as transaction:
            await transaction.accept([NewRequest(row.told.request_id, b"", (row,)) for row in rows])

    async def digests(self, *numbers: int) -> list[bytes]:
        found = await self.store.find_waiting([an_instance(each) for each in numbers])
        return [each.digest for each in sorted(found, key=lambda each: each.id)]


def answers(said: Sequence[Said]) -> list[InstancesFound | BuildRejected]:
    found = [each.message for each in said if isinstance(each, Answer)]
    return [each for each in found if isinstance(each, InstancesFound | BuildRejected)]


async def test_moves_that_are_refused_together_leave_their_room_to_the_next_order() -> None:
    scheduler = Batches({"h1": 0, "h2": 8}, SchedulerSettings(moves_per_host_max=2))
    await scheduler.begin(*[a_row(number, "h1", 1) for number in (1, 2, 3, 4)])

    said = await scheduler.handle(
        an_order(1),
        # The second of these moves already.
        an_order(2, together=(an_instance(1),)),
        an_order(3),
        an_order(4),
    )

    told = answers(said)
    assert [type(each) for each in told] == [InstancesFound, BuildRejected, InstancesFound, BuildRejected], (
        told
    )


async def test_resizes_on_one_host_are_tried_each_by_what_its_instance_holds_there() -> None:
    scheduler = Batches({"h1": 0})
    await scheduler.begin(a_row(1, "h1", 1), a_row(2, "h1", 1), a_row(3, "h1", 1))
    for number, amount in ((1, 1), (2, 3), (3, 3)):
        held = ResourceAmount(provider=provider("h1"), resource="VCPU", amount=amount)
        scheduler.consumers[an_instance(number)] = ConsumerState(
            id=ConsumerId(an_instance(number)),
            project="",
            user="",
            type="INSTANCE",
            generation=1,
            attempt=1,
            held=(held,),
        )

    said = await scheduler.handle(
        *[an_order(each, "h1", kind="resize", flavor=Flavor(vcpus=6), wait=LONG) for each in (1, 2, 3)]
    )

    assert [type(each) for each in answers(said)] == [InstancesFound] * 3, answers(said)
    one, other, third = await scheduler.digests(1, 2, 3)
    assert one != other
    assert other == third


async def test_limits_that_change_while_a_scheduler_runs_wake_what_waits_by_the_old_ones() -> None:
    settings = SchedulerSettings(instances_per_host_max=1)
    scheduler = Batches({"h1": 8})
    parts = scheduler_parts(
        scheduler.station, scheduler.store, settings, lambda: NOON, picture=scheduler.picture
    )
    assert parts
    await scheduler.begin()
    scheduler.picture.touched.watch(watches=True)
    scheduler.picture.touched.take()

    tell_followers(settings, structs.replace(settings, instances_per_host_max=2))

    assert scheduler.picture.touched.take()[0] is None
