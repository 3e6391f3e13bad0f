"""Reports of trees that do not exist yet, handled at the same time: there is no row that the later one could wait for."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bus.messages.placement import ReportAccepted, ReportInventory
from engine.inventories import ReportedProvider
from kit.errors import Transient
from placement_worker.core.ledger import Sent
from placement_worker.core.reports import decide_reports, keys_of_reports
from placement_worker.store_sql import PlacementStore
from tests.contracts.placement_orders import (
    HOST,
    OTHER_HOST,
    VOCABULARY,
    a_host,
    a_provider,
    a_report,
    provider,
)
from tests.contracts.sql_stores import migrated_database
from tests.contracts.store_client import StoreClient

pytestmark = [pytest.mark.asyncio, pytest.mark.postgresql]

NUMA = provider("numa-1")
PLANTED = a_host()
GROWN = a_host(VCPU=8)
FELLED = a_report(removed=(HOST,))


@pytest_asyncio.fixture
async def client() -> AsyncIterator[StoreClient]:
    async with migrated_database("postgresql") as url:
        store = PlacementStore(url)
        yield StoreClient(store)
        assert await store.audit() == ()
        await store.close()


async def test_a_tree_that_somebody_else_has_just_planted_is_not_written_over(client: StoreClient) -> None:
    with pytest.raises(Transient, match="has just written the same provider"):
        await _report_late(client, PLANTED, meanwhile=(PLANTED, GROWN))

    assert await client.report_one(GROWN) == ReportAccepted(shape=2, shape_moved=False)


async def test_a_provider_that_somebody_else_has_just_planted_is_not_moved(client: StoreClient) -> None:
    below_other = a_report(a_provider("host-2"), a_provider("numa-1", OTHER_HOST), root=OTHER_HOST)
    below = a_report(a_provider("host-1"), a_provider("numa-1", HOST))

    with pytest.raises(Transient, match="has just written the same provider"):
        await _report_late(client, below_other, meanwhile=(below,))

    assert (await client.provider(NUMA)).root == HOST


async def test_a_name_that_somebody_else_has_just_taken_is_not_borne_twice(client: StoreClient) -> None:
    namesake = a_report(ReportedProvider(id=OTHER_HOST, name="host-1"), root=OTHER_HOST)

    with pytest.raises(Transient, match="has just written the same provider"):
        await _report_late(client, namesake, meanwhile=(PLANTED,))

    assert set(await client.providers()) == {HOST}


async def test_a_tree_is_not_created_beside_a_tombstone_that_was_not_seen(client: StoreClient) -> None:
    with pytest.raises(Transient, match="has just deleted the tree"):
        await _report_late(client, PLANTED, meanwhile=(PLANTED, FELLED))

    assert await client.report_one(PLANTED) == ReportAccepted(shape=3, shape_moved=True)


async def test_a_tombstone_that_was_not_seen_is_not_set_back(client: StoreClient) -> None:
    await _report_late(client, PLANTED, FELLED, meanwhile=(PLANTED, FELLED, PLANTED, FELLED))

    assert await client.report_one(PLANTED) == ReportAccepted(shape=5, shape_moved=True)


async def _report_late(
    client: StoreClient, *reports: ReportInventory, meanwhile: tuple[ReportInventory, ...]
) -> None:
    """Other reports are written between the reading and the writing of this one."""
    async with client.store.transaction() as late:
        forest = await late.lock_trees(keys_of_reports(reports))
        for report in meanwhile:
            assert isinstance(await client.report_one(report), ReportAccepted)
        decision = decide_reports(forest, [Sent(report) for report in reports], VOCABULARY)
        await late.write_trees(decision.changes)
