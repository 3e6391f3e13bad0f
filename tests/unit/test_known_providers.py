"""A SQLite store does not read again what it knows; here it must notice that it does not know it any more."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from bus.messages.placement import Claimed, DoesNotFit, ReportInventory
from placement_worker.core.claims import decide_claims
from placement_worker.core.ledger import Asked, ClaimOrder, ProviderRow, Reported
from placement_worker.core.reports import decide_reports
from placement_worker.core.shares import MovedRoots
from placement_worker.store import PlacementTransaction
from placement_worker.store_sql import SqlPlacementStore
from placement_worker.store_sql.known import KnownProviders, Moment
from tests.contracts.desk import Desk
from tests.contracts.placement_orders import (
    DB,
    HORIZON,
    HOST,
    NOON,
    VOCABULARY,
    WEB,
    a_claim,
    a_host,
    a_share,
    amounts,
)
from tests.contracts.sql_stores import migrated_database

pytestmark = pytest.mark.asyncio

ONE_CPU = a_share(HOST, amounts(HOST, VCPU=1))
THREE_CPUS = a_share(HOST, amounts(HOST, VCPU=3))


class GivenUpError(Exception):
    """What a transaction is left with."""


@pytest_asyncio.fixture
async def desks() -> AsyncIterator[tuple[Desk, Desk]]:
    """Two stores on one file, which know a host of four VCPU."""
    async with migrated_database("sqlite") as url:
        stores = SqlPlacementStore(url), SqlPlacementStore(url)
        ours, theirs = Desk(stores[0]), Desk(stores[1])
        await ours.report(a_host("host-1"))
        for desk in (ours, theirs):
            await desk.ledger(a_claim(ONE_CPU))
        yield ours, theirs
        assert await ours.store.audit() == ()
        for store in stores:
            await store.close()


async def test_what_is_known_stands_until_somebody_writes() -> None:
    known, now = KnownProviders(), Moment(written_by_others=1, written_by_us=7)
    rows = known.at(now)
    rows[HOST.int] = (1, ProviderRow(HOST, HOST))

    assert known.at(now) == {HOST.int: (1, ProviderRow(HOST, HOST))}
    assert known.at(Moment(written_by_others=1, written_by_us=8)) == {}


async def test_what_this_store_has_claimed_counts_in_its_next_batch(desks: tuple[Desk, Desk]) -> None:
    ours, _ = desks
    await ours.ask(a_claim(THREE_CPUS, WEB))

    assert isinstance(await ours.ask_one(a_claim(THREE_CPUS, DB)), DoesNotFit)


async def test_what_another_store_has_claimed_is_seen(desks: tuple[Desk, Desk]) -> None:
    ours, theirs = desks
    await theirs.ask(a_claim(THREE_CPUS, WEB))

    assert isinstance(await ours.ask_one(a_claim(THREE_CPUS, DB)), DoesNotFit)


async def test_a_report_to_the_same_store_is_seen(desks: tuple[Desk, Desk]) -> None:
    ours, _ = desks
    await ours.report(_grown())

    assert isinstance(await ours.ask_one(a_claim(ONE_CPU)), MovedRoots)


async def test_a_claim_that_was_rolled_back_is_forgotten(desks: tuple[Desk, Desk]) -> None:
    ours, _ = desks

    async def claimed(tx: PlacementTransaction) -> None:
        await _claim(tx, a_claim(THREE_CPUS, WEB))
        # Written at the latest when something is read again.
        await tx.read_trees((HOST,))

    await _given_up(ours, claimed)

    assert await ours.ask_one(a_claim(THREE_CPUS, DB)) == Claimed()


async def test_what_was_read_behind_a_report_that_was_rolled_back_is_forgotten(
    desks: tuple[Desk, Desk],
) -> None:
    ours, _ = desks

    async def reported(tx: PlacementTransaction) -> None:
        forest = await tx.lock_trees((_grown(),))
        await tx.write_trees(decide_reports(forest, (Reported(_grown()),), VOCABULARY).changes)
        await tx.lock_claims((a_claim(ONE_CPU),))

    await _given_up(ours, reported)

    assert await ours.ask_one(a_claim(ONE_CPU)) == Claimed()


async def test_two_writes_of_one_transaction_both_count(desks: tuple[Desk, Desk]) -> None:
    ours, _ = desks
    async with ours.store.transaction() as tx:
        await _claim(tx, a_claim(ONE_CPU, WEB))
        await _claim(tx, a_claim(ONE_CPU, DB))

    assert (await ours.ledger(a_claim(ONE_CPU))).providers[HOST.int].inventories["VCPU"].used == 2


async def _given_up(desk: Desk, work: Callable[[PlacementTransaction], Awaitable[None]]) -> None:
    async def begun() -> None:
        async with desk.store.transaction() as tx:
            await work(tx)
            raise GivenUpError

    with pytest.raises(GivenUpError):
        await begun()


def _grown() -> ReportInventory:
    return a_host("host-1", VCPU=8, MEMORY_MB=4096)


async def _claim(tx: PlacementTransaction, order: ClaimOrder) -> None:
    ledger = await tx.lock_claims((order,))
    decision = decide_claims(ledger, (Asked(order),), NOON, HORIZON)
    assert decision.verdicts == (Claimed(),)
    await tx.write_claims(decision.changes)
