"""Contract of the stores of a compute: instances and attempts."""

from collections.abc import AsyncIterator
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.cell import ReceiveInstance, SpawnInstance
from compute_sim.core.attempts import AttemptRecord, AttemptState
from compute_sim.core.hosts import Load
from compute_sim.store_sql import SqlComputeStore
from engine.flavors import Flavor
from engine.inventories import ConsumerId, ProviderId, ResourceAmount, Share
from tests.contracts.stores import STORES, Again, open_again, undone
from tests.running import once
from tests.waiting import Clock

HOST = ProviderId(UUID(int=7))


@pytest.fixture
def clock() -> Clock[float]:
    return Clock(0.0)


@pytest.fixture(params=STORES)
async def again(request: pytest.FixtureRequest, clock: Clock[float]) -> AsyncIterator[Again]:
    async with open_again(request.param, clock) as again:
        yield again


@pytest.fixture
async def store(again: Again) -> SqlComputeStore:
    return await again("c1")


def an_attempt(
    number: int, state: AttemptState = AttemptState.BUILDING, ends_s: float | None = None, cell: str = "c1"
) -> AttemptRecord:
    return AttemptRecord(
        cell=cell, host=HOST, instance=ConsumerId(UUID(int=number)), attempt=1, state=state, ends_s=ends_s
    )


async def save(store: SqlComputeStore, *attempts: AttemptRecord) -> None:
    await once(store.transaction, lambda tx: tx.save(attempts))


async def known(store: SqlComputeStore, *attempts: AttemptRecord) -> set[AttemptRecord]:
    return set((await once(store.transaction, lambda tx: tx.load([each.key for each in attempts]))).values())


async def test_an_attempt_is_due_once_however_often_it_was_saved_and_again_if_its_batch_fails(
    store: SqlComputeStore,
) -> None:
    woken: list[bool] = []
    store.wake_with(lambda: woken.append(True))
    attempt = an_attempt(1, AttemptState.BUILT, ends_s=5.0)
    asked_again = structs.replace(attempt, cause="asked again")
    await save(store, attempt)
    await save(store, asked_again)
    assert store.next_end_s() == 5.0

    async with undone(store.transaction()) as tx:
        assert len(await tx.ending(5.0, 10)) == 1
    async with store.transaction() as tx:
        assert await tx.ending(4.9, 10) == []
        assert await tx.ending(5.0, 10) == [asked_again]
        await tx.save([structs.replace(asked_again, ends_s=None)])

    assert (store.next_end_s(), woken) == (None, [True])


async def test_an_attempt_that_was_taken_is_due_again_only_when_it_could_not_be_said(
    store: SqlComputeStore,
) -> None:
    building = an_attempt(1, ends_s=5.0)
    built = structs.replace(building, state=AttemptState.BUILT)
    await save(store, building)
    async with store.transaction() as tx:
        assert await tx.ending(5.0, 10) == [building]
        await tx.remember([built])

    # It counts as built, and is not handed out twice while its answer is on its way.
    assert await known(store, building) == {built}
    assert await store.loads([HOST]) == {HOST: Load(instances=1, io_ops=0)}
    assert store.next_end_s() is None

    woken: list[bool] = []
    store.wake_with(lambda: woken.append(True))
    store.end_again([built.key, an_attempt(9).key], 7.0)
    assert (store.next_end_s(), woken) == (7.0, [True])
    async with store.transaction() as tx:
        assert await tx.ending(6.9, 10) == []
        assert await tx.ending(7.0, 10) == [built]
        await tx.save([structs.replace(built, ends_s=None)])
    store.end_again([built.key], 8.0)
    assert store.next_end_s() is None


async def test_what_was_not_confirmed_is_due_in_the_process_after(again: Again) -> None:
    before = await again("c1")
    building = an_attempt(1, ends_s=5.0)
    await save(before, building)
    async with before.transaction() as tx:
        await tx.ending(5.0, 10)
        await tx.remember([structs.replace(building, state=AttemptState.BUILT)])

    after = await again("c1")

    assert await known(after, building) == {structs.replace(building, ends_s=0.0)}
    assert after.next_end_s() == 0.0


async def test_hosts_have_what_they_had_after_a_restart(again: Again, clock: Clock[float]) -> None:
    before = await again("c1")
    clock.now = 1000.0
    built, building = an_attempt(1, AttemptState.BUILT), an_attempt(2, ends_s=1003.0)
    gone = an_attempt(3, AttemptState.FAILED)
    await save(before, built, building, gone)
    await save(before, structs.replace(built, cause="asked again"))
    clock.now = 2000.0
    await before.forget(over_before_s=1500.0)

    clock.now = 0.0
    after = await again("c1")

    assert await known(after, built, building, gone) == {
        structs.replace(built, cause="asked again"),
        # Its deadline was of the process that is gone.
        structs.replace(building, ends_s=0.0),
    }
    assert after.next_end_s() == 0.0
    assert await after.loads([HOST]) == {HOST: Load(instances=2, io_ops=1)}


async def test_attempts_that_wait_are_in_progress_and_come_in_their_order(store: SqlComputeStore) -> None:
    first, second = a_waiting_attempt(2), a_waiting_attempt(1)
    building = an_attempt(3)
    await save(store, first, building, second)

    async with store.transaction() as tx:
        assert (tx.building(HOST), tx.waiting(HOST)) == (1, [first, second])
    assert await store.loads([HOST]) == {HOST: Load(instances=3, io_ops=3)}
    assert store.next_end_s() is None

    begun = structs.replace(first, state=AttemptState.BUILDING, order=None)
    await save(store, begun, structs.replace(building, state=AttemptState.FAILED))
    async with store.transaction() as tx:
        assert (tx.building(HOST), tx.waiting(HOST)) == (1, [second])
    await save(store, structs.replace(second, state=AttemptState.DESTROYED, order=None))
    async with store.transaction() as tx:
        assert (tx.building(HOST), list(tx.waiting(HOST))) == (1, [])
    assert await store.loads([HOST]) == {HOST: Load(instances=1, io_ops=1)}


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
