"""Contract of the scheduler's stores: rows of instances that are taken over from another cloud."""

from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import pytest
import pytest_asyncio
from msgspec import structs

from bus.messages.audit import AdoptInstance
from bus.messages.cell import AdoptInCell
from engine.flavors import Flavor, Image
from engine.inventories import ResourceAmount, Share
from scheduler_worker.core.instances.lifecycle import adopted_row
from scheduler_worker.core.instances.rows import InstanceRow, messages_of
from scheduler_worker.store import AdoptedRow, InstanceQuery, SchedulerStore
from tests.contracts.scheduler_rows import LATER, NOON, a_request, accept, instance, note, request_id, rows_of
from tests.contracts.scheduler_stores import STORES, open_scheduler_store

pytestmark = pytest.mark.asyncio

HOST = UUID(int=55)
SHARE = Share(host=HOST, amounts=(ResourceAmount(provider=HOST, resource="VCPU", amount=2),))  # type: ignore[arg-type]


@pytest_asyncio.fixture(params=STORES)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[SchedulerStore]:
    async with open_scheduler_store(request.param) as store:
        yield store


def an_adoption(number: int, of_request: int, place: int) -> AdoptedRow:
    order = AdoptInstance(
        instance=instance(number),
        request_id=request_id(of_request),
        number=place,
        of_cell="c1",
        host="h1",
        share=SHARE,
        state="stopped",
        flavor=Flavor(name="old", vcpus=2),
        created_at=NOON - timedelta(days=3000),
        name="old-1",
        project="shop",
        user="ann",
        image=Image(source="debian"),
    )
    row = adopted_row(order, None, 1, NOON, timedelta(minutes=5), spec=b"a spec", group=None, by="operator")
    return AdoptedRow(row, place, b"digest")


async def adopt(store: SchedulerStore, *rows: AdoptedRow) -> list[UUID]:
    async with store.transaction() as transaction:
        return [*await transaction.adopt(rows)]


async def test_they_are_kept_whole_with_the_order_to_their_cell(store: SchedulerStore) -> None:
    one = an_adoption(1, 1, 0)
    assert await adopt(store, one, an_adoption(2, 1, 1)) == []
    await note(store, [one.row])

    (noted,) = (await store.unconfirmed(LATER + timedelta(days=1), None, 10))[0].rows
    assert noted == one.row
    assert isinstance(messages_of(noted)[0], AdoptInCell)
    found = await store.instances(InstanceQuery(request_id=request_id(1)))
    assert {row.id for row in found} == {instance(1), instance(2)}
    assert found[0].issued_at == NOON - timedelta(days=3000)


async def test_one_that_is_there_and_a_number_that_is_taken_are_refused_and_the_others_written(
    store: SchedulerStore,
) -> None:
    await accept(store, a_request(5))
    await adopt(store, an_adoption(1, 1, 0))

    refused = await adopt(
        store, an_adoption(1, 2, 0), an_adoption(5, 3, 0), an_adoption(6, 1, 0), an_adoption(7, 4, 0)
    )

    assert refused == [instance(1), instance(5), instance(6)]
    kept = {row.id for row in await rows_of(store, 1, 5, 6, 7)}
    assert kept == {instance(1), instance(5), instance(7)}


async def test_that_it_is_given_back_stays_on_its_row(store: SchedulerStore) -> None:
    one = an_adoption(1, 1, 0)
    await adopt(store, one)

    async with store.transaction() as transaction:
        (row,) = (await transaction.lock([instance(1)])).values()
        await transaction.save([structs.replace(row, given_back=True)])

    (kept,) = await rows_of(store, 1)
    assert isinstance(kept, InstanceRow)
    assert (kept.adopted, kept.given_back) == (True, True)
