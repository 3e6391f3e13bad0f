"""Contract of all stores: what instance and migration hold through a move, and the way back.

Both hosts take disk and addresses from one pool. At every moment, what two shares both need of it is held once.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bus.messages.placement import ReportInventory
from engine.inventories import ProviderId, Share
from engine.picture.members import GroupMembers
from tests.contracts.placement_orders import (
    GROUP,
    HOST,
    MIGRATION,
    OTHER_HOST,
    WEB,
    a_claim,
    a_host,
    a_provider,
    a_report,
    a_share,
    a_swap,
    amounts,
    inventories,
    provider,
)
from tests.contracts.store_client import StoreClient
from tests.contracts.stores import STORES, open_store

pytestmark = pytest.mark.asyncio

POOL = provider("pool")


@pytest_asyncio.fixture(params=STORES)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[StoreClient]:
    """Three hosts with four VCPU each. At the end the audit must find nothing."""
    async with open_store(request.param) as store:
        client = StoreClient(store)
        await client.report(a_host("host-1"), a_host("host-2"), a_host("host-3"), pool())
        yield client
        assert await store.audit() == ()


def pool() -> ReportInventory:
    return a_report(a_provider("pool", holds=inventories(DISK_GB=10, CUSTOM_ADDRESS=2)), root=POOL)


def on(host: ProviderId, vcpu: int, disk: int = 0) -> Share:
    """So many VCPU of the host; with a disk also that much of the pool, and an address."""
    of_pool = amounts(POOL, DISK_GB=disk, CUSTOM_ADDRESS=1) if disk else ()
    return a_share(host, (*amounts(host, VCPU=vcpu), *of_pool), {host: 1, POOL: 1} if disk else {host: 1})


async def test_the_feed_tells_the_members_of_a_move_in_an_order_that_readers_can_merge(
    client: StoreClient,
) -> None:
    async with client.store.lead_feed() as feed:
        assert feed is not None
        await feed.mark(1, (await feed.read()).cursor)
        back = a_swap(on(HOST, 1), held=2, attempt=3, returns=MIGRATION, group=GROUP)
        await client.ask(
            a_claim(on(HOST, 1), group=GROUP),
            a_swap(on(OTHER_HOST, 1), migration=MIGRATION, group=GROUP),
            back,
            # The next destination is tried with the same migration.
            a_swap(on(OTHER_HOST, 1), held=3, attempt=4, migration=MIGRATION, group=GROUP),
        )
        changes = await feed.read()

    reader = GroupMembers()
    reader.join(changes.joined)
    reader.leave(changes.left)
    assert {(each.consumer, each.attempt, each.host) for each in reader.of_group(GROUP.id)} == {
        (WEB, 4, OTHER_HOST),
        (MIGRATION, 3, HOST),
    }
    assert {(each.consumer, each.attempt) for each in changes.ended} == {
        (WEB, 1),
        (WEB, 2),
        (MIGRATION, 1),
        (WEB, 3),
    }
