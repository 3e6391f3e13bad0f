"""Contract of the stores of a compute: instances and attempts."""

from collections.abc import AsyncIterator
from uuid import UUID

import pytest
import pytest_asyncio
from msgspec import structs

from bus.messages.cell import ReceiveInstance, SpawnInstance
from compute_sim.core.attempts import AttemptRecord, AttemptState
from compute_sim.core.hosts import Load
from compute_sim.handlers import ComputeStore
from engine.flavors import Flavor
from engine.inventories import ConsumerId, ProviderId, ResourceAmount, Share
from tests.contracts.compute_stores import KEPT, STORES, Again, open_again, open_compute_store

pytestmark = pytest.mark.asyncio

HOST = ProviderId(UUID(int=7))


class Clock:
    def __init__(self) -> None:
        self.at_s = 0.0

    def __call__(self) -> float:
        return self.at_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest_asyncio.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, clock: Clock) -> AsyncIterator[ComputeStore]:
    async with open_compute_store(request.param, clock) as store:
        yield store


@pytest_asyncio.fixture(params=KEPT)
async def again(request: pytest.FixtureRequest, clock: Clock) -> AsyncIterator[Again]:
    async with open_again(request.param, clock) as again:
        yield again


def an_attempt(
    number: int, state: AttemptState = AttemptState.BUILDING, due_s: float | None = None, cell: str = "c1"
) -> AttemptRecord:
    return AttemptRecord(
        cell=cell, host=HOST, instance=ConsumerId(UUID(int=number)), attempt=1, state=state, due_s=due_s
    )


async def save(store: ComputeStore, *attempts: AttemptRecord) -> None:
    async with store.transaction() as tx:
        await tx.save(attempts)


async def known(store: ComputeStore, *attempts: AttemptRecord) -> set[AttemptRecord]:
    async with store.transaction() as tx:
        return set((await tx.load([each.key for each in attempts])).values())


async def test_what_is_saved_is_known_and_counted(store: ComputeStore) -> None:
    building, built, failed = (
        an_attempt(1),
        an_attempt(2, AttemptState.BUILT),
        an_attempt(3, AttemptState.FAILED),
    )

    await save(store, building, built, failed)

    assert await known(store, building, built, failed, an_attempt(4)) == {building, built, failed}
    assert await store.loads([HOST]) == {HOST: Load(instances=2, io_ops=1)}
    assert await store.take_changed() == [HOST]
    assert await store.take_changed() == []


async def test_an_attempt_is_due_once_however_often_it_was_saved_and_again_if_its_batch_fails(
    store: ComputeStore,
) -> None:
    woken: list[bool] = []
    store.wake_with(lambda: woken.append(True))
    attempt = an_attempt(1, AttemptState.BUILT, due_s=5.0)
    asked_again = structs.replace(attempt, cause="asked again")
    await save(store, attempt)
    await save(store, asked_again)
    assert await store.next_due_s() == 5.0

    with pytest.raises(ZeroDivisionError):
        await take_and_fail(store, 5.0)
    async with store.transaction() as tx:
        assert await tx.due(4.9, 10) == []
        assert await tx.due(5.0, 10) == [asked_again]
        await tx.save([structs.replace(asked_again, due_s=None)])

    assert await store.next_due_s() is None
    assert woken == [True]


async def take_and_fail(store: ComputeStore, at_s: float) -> None:
    async with store.transaction() as tx:
        assert len(await tx.due(at_s, 10)) == 1
        raise ZeroDivisionError


async def test_an_attempt_that_was_taken_is_due_again_only_when_it_could_not_be_said(
    store: ComputeStore,
) -> None:
    building = an_attempt(1, due_s=5.0)
    built = structs.replace(building, state=AttemptState.BUILT)
    await save(store, building)
    async with store.transaction() as tx:
        assert await tx.due(5.0, 10) == [building]
        await tx.remember([built])

    # It counts as built, and is not handed out twice while its answer is on its way.
    assert await known(store, building) == {built}
    assert await store.loads([HOST]) == {HOST: Load(instances=1, io_ops=0)}
    assert await store.next_due_s() is None

    woken: list[bool] = []
    store.wake_with(lambda: woken.append(True))
    store.due_again([built.key, an_attempt(9).key], 7.0)
    assert (await store.next_due_s(), woken) == (7.0, [True])
    async with store.transaction() as tx:
        assert await tx.due(6.9, 10) == []
        assert await tx.due(7.0, 10) == [built]
        await tx.save([structs.replace(built, due_s=None)])
    store.due_again([built.key], 8.0)
    assert await store.next_due_s() is None


async def test_what_was_not_confirmed_is_due_in_the_process_after(again: Again) -> None:
    before = await again("c1")
    building = an_attempt(1, due_s=5.0)
    await save(before, building)
    async with before.transaction() as tx:
        await tx.due(5.0, 10)
        await tx.remember([structs.replace(building, state=AttemptState.BUILT)])

    after = await again("c1")

    assert await known(after, building) == {structs.replace(building, due_s=0.0)}
    assert await after.next_due_s() == 0.0


async def test_what_was_over_for_long_is_forgotten(store: ComputeStore, clock: Clock) -> None:
    failed, destroyed, built = (
        an_attempt(1, AttemptState.FAILED),
        an_attempt(2, AttemptState.DESTROYED),
        an_attempt(3, AttemptState.BUILT),
    )
    await save(store, failed, built)
    clock.at_s = 50.0
    await save(store, destroyed)

    assert await store.forget(over_before_s=40.0) == [failed.key]
    assert await known(store, failed, destroyed, built) == {destroyed, built}
    assert await store.forget(over_before_s=60.0) == [destroyed.key]
    assert await store.forget(over_before_s=60.0) == []


async def test_hosts_have_what_they_had_after_a_restart(again: Again, clock: Clock) -> None:
    before = await again("c1")
    clock.at_s = 1000.0
    built, building = an_attempt(1, AttemptState.BUILT), an_attempt(2, due_s=1003.0)
    gone = an_attempt(3, AttemptState.FAILED)
    await save(before, built, building, gone)
    await save(before, structs.replace(built, cause="asked again"))
    clock.at_s = 2000.0
    await before.forget(over_before_s=1500.0)

    clock.at_s = 0.0
    after = await again("c1")

    assert await known(after, built, building, gone) == {
        structs.replace(built, cause="asked again"),
        # Its deadline was of the process that is gone.
        structs.replace(building, due_s=0.0),
    }
    assert await after.next_due_s() == 0.0
    assert await after.loads([HOST]) == {HOST: Load(instances=2, io_ops=1)}


async def test_attempts_that_wait_are_in_progress_and_come_in_their_order(store: ComputeStore) -> None:
    first, second = a_waiting_attempt(2), a_waiting_attempt(1)
    building = an_attempt(3)
    await save(store, first, building, second)

    async with store.transaction() as tx:
        assert (tx.building(HOST), tx.waiting(HOST)) == (1, [first, second])
    assert await store.loads([HOST]) == {HOST: Load(instances=3, io_ops=3)}
    assert await store.next_due_s() is None

    begun = structs.replace(first, state=AttemptState.BUILDING, order=None)
    await save(store, begun, structs.replace(building, state=AttemptState.FAILED))
    async with store.transaction() as tx:
        assert (tx.building(HOST), tx.waiting(HOST)) == (1, [second])
    await save(store, structs.replace(second, state=AttemptState.DESTROYED, order=None))
    async with store.transaction() as tx:
        assert (tx.building(HOST), list(tx.waiting(HOST))) == (1, [])
    assert await store.loads([HOST]) == {HOST: Load(instances=1, io_ops=1)}


@pytest.mark.parametrize("number", [1, 2])
async def test_attempts_still_wait_after_a_restart(again: Again, number: int) -> None:
    waiting = a_waiting_attempt(number)
    await save(await again("c1"), waiting)

    async with (await again("c1")).transaction() as tx:
        assert tx.waiting(HOST) == [waiting]


async def test_a_stopped_instance_is_stopped_by_the_same_move_after_a_restart(again: Again) -> None:
    stopped = structs.replace(an_attempt(1, AttemptState.STOPPED), rank=12)
    starting = structs.replace(an_attempt(2, AttemptState.STARTING, due_s=1.0), rank=13)
    await save(await again("c1"), stopped, starting)

    after = await again("c1")

    assert await known(after, stopped, starting) == {stopped, structs.replace(starting, due_s=0.0)}
    assert await after.loads([HOST]) == {HOST: Load(instances=2)}


async def test_what_a_host_receives_counts_as_a_build_and_two_attempts_of_an_instance_as_one(
    store: ComputeStore,
) -> None:
    stopped = an_attempt(1, AttemptState.STOPPED)
    receiving = structs.replace(an_attempt(1, AttemptState.RECEIVING), attempt=2)
    await save(store, stopped, receiving)

    async with store.transaction() as tx:
        assert tx.building(HOST) == 1
    assert await store.loads([HOST]) == {HOST: Load(instances=1, io_ops=1)}

    await save(store, structs.replace(stopped, state=AttemptState.DESTROYED))
    assert await store.loads([HOST]) == {HOST: Load(instances=1, io_ops=1)}
    await save(store, structs.replace(receiving, state=AttemptState.FAILED))
    assert await store.loads([HOST]) == {HOST: Load()}


def a_waiting_attempt(number: int) -> AttemptRecord:
    """Number 1 waits to be built, the others to be received."""
    attempt = an_attempt(number, AttemptState.WAITING)
    share = Share(host=HOST, amounts=(ResourceAmount(provider=HOST, resource="VCPU", amount=1),))
    if number == 1:
        order = SpawnInstance(
            cell="c1", instance=attempt.instance, attempt=1, host=HOST, flavor=Flavor(vcpus=1), share=share
        )
        return structs.replace(attempt, order=order)
    return structs.replace(
        attempt,
        order=ReceiveInstance(
            cell="c1",
            instance=attempt.instance,
            attempt=1,
            host=HOST,
            flavor=Flavor(vcpus=1),
            share=share,
            source=ProviderId(UUID(int=8)),
            source_attempt=3,
            live=True,
        ),
    )


async def test_each_cell_has_its_own(again: Again) -> None:
    attempt = an_attempt(1, AttemptState.BUILT)
    await save(await again("c1"), attempt)

    assert await known(await again("c2"), attempt) == set()
