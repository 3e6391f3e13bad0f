"""A SQL store caches rows and does not read them again. It must notice when a cached row is outdated."""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest

from bus.messages.placement import ReportAccepted, ReportInventory
from engine.refusals import Claimed, ClaimVerdict, DoesNotFit, ShapeMoved
from kit.errors import Transient
from placement_worker.core.claims import decide_claims, keys_of_orders
from placement_worker.core.ledger import ClaimOrder, Sent
from placement_worker.core.reports import decide_reports, keys_of_reports
from placement_worker.store_sql import PlacementStore, PlacementTransaction
from tests.contracts.placement_orders import (
    DB,
    HORIZON,
    HOST,
    NOON,
    VOCABULARY,
    WEB,
    a_claim,
    a_host,
    a_report,
    a_share,
    amounts,
)
from tests.contracts.sql_stores import migrated_database
from tests.contracts.store_client import StoreClient

ONE_CPU = a_share(HOST, amounts(HOST, VCPU=1))
THREE_CPUS = a_share(HOST, amounts(HOST, VCPU=3))


class AbandonedError(Exception):
    """A transaction is left with this error."""


@pytest.fixture(params=("sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)))
async def two_stores(request: pytest.FixtureRequest) -> AsyncIterator[tuple[StoreClient, StoreClient]]:
    """Two stores on one database that have cached a host of four VCPU."""
    async with migrated_database(request.param) as url:
        stores = PlacementStore(url), PlacementStore(url)
        ours, theirs = StoreClient(stores[0]), StoreClient(stores[1])
        await ours.report(a_host("host-1"))
        for client in (ours, theirs):
            await client.ledger(a_claim(ONE_CPU))
        yield ours, theirs
        assert await ours.store.audit() == ()
        for store in stores:
            await store.close()


async def test_claims_of_another_store_are_seen(two_stores: tuple[StoreClient, StoreClient]) -> None:
    ours, theirs = two_stores
    await theirs.ask(a_claim(THREE_CPUS, WEB))

    assert isinstance(await ours.ask_one(a_claim(THREE_CPUS, DB)), DoesNotFit)


async def test_a_report_to_another_store_is_seen(two_stores: tuple[StoreClient, StoreClient]) -> None:
    ours, theirs = two_stores
    await theirs.report(_grown())

    assert isinstance(await ours.ask_one(a_claim(ONE_CPU)), ShapeMoved)
    of_eight = a_share(HOST, amounts(HOST, VCPU=8), {HOST: 2})
    assert await ours.ask_one(a_claim(of_eight)) == Claimed()


async def test_a_host_that_another_store_created_again_is_found(
    two_stores: tuple[StoreClient, StoreClient],
) -> None:
    ours, theirs = two_stores
    await theirs.report(a_report(removed=(HOST,)))
    await theirs.report(a_host("host-2"), a_host("host-1"))
    state = await theirs.provider(HOST)
    order = a_claim(a_share(HOST, amounts(HOST, VCPU=1), {HOST: state.shape}))

    assert await _until_settled(ours, order) == Claimed()


async def test_a_claim_that_was_rolled_back_leaves_no_cached_row(
    two_stores: tuple[StoreClient, StoreClient],
) -> None:
    ours, _ = two_stores

    async def claimed(tx: PlacementTransaction) -> None:
        await _claim(tx, a_claim(THREE_CPUS, WEB))
        # Written at the latest before the next read.
        await tx.read_trees((HOST,))

    await _abandoned(ours, claimed)

    assert await ours.ask_one(a_claim(THREE_CPUS, DB)) == Claimed()


async def test_a_report_is_not_taken_for_the_one_in_its_place_that_was_rolled_back(
    two_stores: tuple[StoreClient, StoreClient],
) -> None:
    ours, theirs = two_stores
    await _abandoned(ours, _reported_and_read)
    await theirs.report(a_host("host-1", VCPU=5, MEMORY_MB=4096))
    of_eight = a_share(HOST, amounts(HOST, VCPU=8), {HOST: 2})

    assert isinstance(await ours.ask_one(a_claim(of_eight)), DoesNotFit)


async def test_a_name_that_came_with_a_report_that_was_rolled_back_is_made_again(
    two_stores: tuple[StoreClient, StoreClient],
) -> None:
    ours, _ = two_stores
    named = a_host("host-1", VCPU=4, CUSTOM_GOLD=1)

    await _abandoned(ours, partial(_report, report=named))

    assert isinstance(await ours.report_one(named), ReportAccepted)
    assert set((await ours.providers())[HOST].inventories) == {"VCPU", "CUSTOM_GOLD"}


async def _abandoned(client: StoreClient, work: Callable[[PlacementTransaction], Awaitable[None]]) -> None:
    async def begun() -> None:
        async with client.store.transaction() as tx:
            await work(tx)
            raise AbandonedError

    with pytest.raises(AbandonedError):
        await begun()


async def _reported_and_read(tx: PlacementTransaction) -> None:
    await _report(tx, _grown())
    await tx.lock_claims(keys_of_orders((a_claim(ONE_CPU),)))


async def _report(tx: PlacementTransaction, report: ReportInventory) -> None:
    forest = await tx.lock_trees(keys_of_reports((report,)))
    await tx.write_trees(decide_reports(forest, (Sent(report),), VOCABULARY).changes)


async def _until_settled(client: StoreClient, order: ClaimOrder) -> ClaimVerdict:
    """PostgreSQL has locked rows by outdated cached values, and starts again once; by then it has the new values."""
    try:
        return await client.ask_one(order)
    except Transient:
        return await client.ask_one(order)


def _grown() -> ReportInventory:
    return a_host("host-1", VCPU=8, MEMORY_MB=4096)


async def _claim(tx: PlacementTransaction, order: ClaimOrder) -> None:
    ledger = await tx.lock_claims(keys_of_orders((order,)))
    decision = decide_claims(ledger, (Sent(order),), NOON, HORIZON)
    assert decision.verdicts == (Claimed(),)
    await tx.write_claims(decision.changes)
