"""Contract of the scheduler's stores: rows of instances that are taken over from another cloud."""

from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import pytest
import pytest_asyncio

from bus.messages.audit import AdoptInstance
from engine.flavors import Flavor, Image
from engine.inventories import ResourceAmount, Share
from scheduler_worker.core.instances.lifecycle import adopted_row
from scheduler_worker.store_sql import AdoptedRow, SchedulerStore
from tests.contracts.scheduler_rows import NOON, a_request, accept, instance, request_id, rows_of
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
    row = adopted_row(
        order, None, 1, NOON, timedelta(minutes=5), spec=b"a spec", kind="", group=None, by="operator"
    )
    return AdoptedRow(row, place, b"digest")


async def adopt(store: SchedulerStore, *rows: AdoptedRow) -> list[UUID]:
    async with store.transaction() as transaction:
        return [*await transaction.adopt(rows)]


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
