"""A writer that commits after writers that began later is not missed by the publisher of the log.

PostgreSQL numbers rows when they are written, and shows them when their transaction commits: in another order. A reader
that remembers the highest number it saw misses rows that commit below it.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bus.messages.placement import ClaimResources
from engine.inventories import Holder
from kit.clock import now
from kit.errors import Unavailable
from placement_worker.core.claims import decide_claims, keys_of_orders
from placement_worker.core.ledger import Sent
from placement_worker.store_sql import PlacementStore, PlacementTransaction
from tests.contracts.placement_orders import (
    DB,
    HORIZON,
    HOST,
    NOON,
    OTHER_HOST,
    WEB,
    a_claim,
    a_host,
    a_share,
    consumer,
)
from tests.contracts.sql_stores import end_sessions
from tests.contracts.store_client import StoreClient, leading
from tests.running import closing

pytestmark = pytest.mark.postgresql

LATE = a_claim(a_share(HOST), WEB)
EARLY = a_claim(a_share(OTHER_HOST), DB)


@pytest.fixture
async def client(url: str) -> AsyncIterator[StoreClient]:
    async with closing(PlacementStore(url)) as (store,):
        client = StoreClient(store)
        await client.report(a_host("host-1"), a_host("host-2"))
        yield client


async def test_what_commits_late_is_found_by_the_next_reading(client: StoreClient) -> None:
    async with leading(client.store) as feed:
        async with _committing_late(client):
            meanwhile = await feed.read()
            await feed.mark(2, meanwhile.cursor)
        afterwards = await feed.read()

    assert [state.id for state in meanwhile.usage] == [OTHER_HOST]
    assert meanwhile.claimed == (Holder(consumer=DB, attempt=1),)
    assert [state.id for state in afterwards.usage] == [HOST]
    assert afterwards.claimed == (Holder(consumer=WEB, attempt=1),)


async def test_what_commits_late_is_in_none_of_the_pages_before_and_in_the_next(client: StoreClient) -> None:
    """Pages end between transactions. The cursor of a page does not include a transaction that began before the page's
    end and is still open.
    """
    others = [consumer(f"vm-{number}") for number in range(4)]
    async with leading(client.store) as feed:
        told: list[tuple[Holder, ...]] = []

        async def read(entries_max: int) -> bool:
            page = await feed.read(entries_max)
            told.append(page.claimed)
            await feed.mark(1 + len(told), page.cursor)
            return page.is_cut

        await client.ask(a_claim(a_share(OTHER_HOST), others[0]))
        async with client.store.transaction() as late:
            await _write(late, LATE)
            for each in others[1:]:
                await client.ask(a_claim(a_share(OTHER_HOST), each))
            assert await read(2)
            assert not await read(3)
        assert not await read(3)
        assert not await read(3)

    consumers = [[holder.consumer for holder in claimed] for claimed in told]
    assert consumers == [others[:2], others[2:], [WEB], []]


async def test_what_commits_late_is_among_the_changes_since_a_cursor_that_did_not_see_it(
    client: StoreClient,
) -> None:
    async with _committing_late(client):
        meanwhile = (await client.store.snapshot_page(0, 10)).cursor

    assert [state.id for state in (await client.changes(meanwhile)).providers] == [HOST]


async def test_late_rows_are_not_pruned_before_they_were_read(client: StoreClient) -> None:
    async with leading(client.store) as feed:
        async with _committing_late(client):
            await feed.mark(2, (await feed.read()).cursor)
        await client.store.prune(ended_before=NOON, logged_before=now())

        afterwards = await feed.read()

    assert afterwards.claimed == (Holder(consumer=WEB, attempt=1),)


async def test_who_did_not_see_what_was_committed_late_and_forgotten_is_told_so(client: StoreClient) -> None:
    async with leading(client.store) as feed:
        async with _committing_late(client):
            meanwhile = (await client.store.snapshot_page(0, 10)).cursor
        await feed.mark(2, (await feed.read()).cursor)
        await client.store.prune(ended_before=NOON, logged_before=now())

        assert await client.store.changes_since(meanwhile) is None
        assert await client.store.changes_page(meanwhile, 0, 10) is None


async def test_whoever_publishes_and_loses_its_connection_leads_no_longer(
    client: StoreClient, url: str
) -> None:
    async with closing(PlacementStore(url)) as (other,), leading(client.store) as feed:
        cursor = (await feed.read()).cursor
        await end_sessions(url)

        async with leading(other) as successor:
            assert successor.published.term == feed.published.term + 1
        with pytest.raises(Unavailable):
            await feed.read()
        with pytest.raises(Unavailable):
            await feed.mark(1, cursor)


@asynccontextmanager
async def _committing_late(client: StoreClient) -> AsyncIterator[None]:
    """A transaction that began before another, and commits after it."""
    async with client.store.transaction() as late:
        await _write(late, LATE)
        await client.ask(EARLY)
        yield


async def _write(transaction: PlacementTransaction, order: ClaimResources) -> None:
    ledger = await transaction.lock_claims(keys_of_orders([order]))
    await transaction.write_claims(decide_claims(ledger, [Sent(order)], NOON, HORIZON).changes)
