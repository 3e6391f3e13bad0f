"""Contract of all stores: how many consumers live on each host, and the limit in claims and swaps."""

from collections.abc import AsyncIterator
from uuid import UUID

import pytest
import pytest_asyncio

from bus.messages.administration import (
    ConsumerAllocations,
    DeleteAllocations,
    DeleteProvider,
    Done,
    ProviderInventories,
    Reshape,
    SetAllocations,
    UpdateProvider,
)
from engine.inventories import ConsumerId, ProviderId
from engine.refusals import AlreadyClaimed, Claimed, DoesNotFit, HostFull, Released
from kit.errors import Transient
from placement_worker.admin_writes import write_allocations, write_providers, write_reshapes
from placement_worker.core.ledger import ClaimOrder
from tests.contracts.placement_orders import (
    CLEANUP,
    DB,
    HOST,
    NOON,
    OTHER_HOST,
    VOCABULARY,
    WEB,
    a_claim,
    a_host,
    a_provider,
    a_release,
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

NUMA = provider("numa-1")


@pytest_asyncio.fixture(params=STORES)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[StoreClient]:
    """Two hosts with four VCPU each. At the end of each test the audit must find nothing."""
    async with open_store(request.param) as store:
        client = StoreClient(store)
        await client.report(a_host("host-1"), a_host("host-2"))
        yield client
        assert await store.audit() == ()


async def counts(client: StoreClient) -> tuple[int, int]:
    return (await client.provider(HOST)).consumers, (await client.provider(OTHER_HOST)).consumers


def full(host: ProviderId = HOST, instances: int = 1, instances_max: int = 1) -> DoesNotFit:
    return DoesNotFit(
        shortfalls=(), full=HostFull(host=host, instances=instances, instances_max=instances_max)
    )


async def test_a_host_takes_no_more_consumers_than_the_claims_allow(client: StoreClient) -> None:
    one = a_share(instances_max=1)

    assert await client.ask(a_claim(one, WEB), a_claim(one, DB)) == (Claimed(), full())
    assert await client.ask_one(a_claim(one, DB)) == full()
    assert await counts(client) == (1, 0)
    # A repeated claim is answered with what it holds, whatever the limit.
    assert isinstance(await client.ask_one(a_claim(one, WEB)), AlreadyClaimed)

    assert await client.ask(a_release(WEB), a_claim(one, DB)) == (Released(freed=True), Claimed())
    assert await counts(client) == (1, 0)
    assert await client.ask_one(a_claim(a_share(), ConsumerId(UUID(int=77)))) == Claimed()
    assert await counts(client) == (2, 0)


async def test_a_lack_of_room_and_of_a_place_are_told_together(client: StoreClient) -> None:
    await client.ask(a_claim(a_share(), WEB))

    verdict = await client.ask_one(a_claim(a_share(HOST, amounts(HOST, VCPU=4), instances_max=1), DB))

    assert isinstance(verdict, DoesNotFit)
    assert [(short.resource, short.free) for short in verdict.shortfalls] == [("VCPU", 3)]
    assert verdict.full == HostFull(host=HOST, instances=1, instances_max=1)


async def test_a_swap_is_held_to_the_limit_and_gives_its_place_back(client: StoreClient) -> None:
    await client.ask(a_claim(a_share(), WEB), a_claim(a_share(OTHER_HOST), DB))
    there = a_share(OTHER_HOST, instances_max=1)

    assert await client.ask_one(a_swap(there)) == full(OTHER_HOST)
    assert await counts(client) == (1, 1)
    # A consumer that stays on its host needs no second place there.
    assert await client.ask_one(a_swap(a_share(instances_max=1))) == Claimed()
    assert await counts(client) == (1, 1)
    assert await client.ask(a_release(DB), a_swap(there, held=2, attempt=3)) == (
        Released(freed=True),
        Claimed(),
    )
    assert await counts(client) == (0, 1)


async def test_who_cleans_up_has_the_place_until_it_is_done(client: StoreClient) -> None:
    await client.ask(a_claim(a_share(), WEB))

    assert await client.ask_one(a_swap(a_share(OTHER_HOST), cleanup=CLEANUP)) == Claimed()

    assert await counts(client) == (1, 1)
    assert await client.ask_one(a_claim(a_share(instances_max=1), DB)) == full()
    await client.ask(a_release(CLEANUP))
    assert await counts(client) == (0, 1)
    assert await client.ask_one(a_claim(a_share(instances_max=1), DB)) == Claimed()


async def test_who_takes_all_from_a_child_lives_on_its_root(client: StoreClient) -> None:
    await client.report(a_report(a_provider("numa-1", HOST, inventories(VCPU=4)), root=HOST))
    before = await client.provider(HOST)
    share = a_share(HOST, amounts(NUMA, VCPU=1), {HOST: before.shape}, instances_max=1)

    assert await client.ask(a_claim(share, WEB), a_claim(share, DB)) == (Claimed(), full())
    after = await client.provider(HOST)
    assert (after.consumers, after.generation) == (1, before.generation)
    assert (await client.provider(NUMA)).consumers == 0

    await client.ask(a_release(WEB))
    assert await counts(client) == (0, 0)


async def test_the_feed_tells_how_many_live_on_a_host(client: StoreClient) -> None:
    async with client.store.lead_feed() as feed:
        assert feed is not None
        first = await feed.read()
        await feed.mark(1, first.cursor)
        await client.ask(a_claim(a_share(), WEB), a_claim(a_share(), DB))

        assert [usage.consumers for usage in (await feed.read()).usage] == [2]
    assert await counts(client) == (2, 0)


async def test_who_is_emptied_by_name_lives_nowhere_and_keeps_its_host_when_rewritten(
    client: StoreClient,
) -> None:
    await client.ask(a_claim(a_share(), WEB), a_claim(a_share(), DB))

    await set_allocations(client, WEB, OTHER_HOST)
    assert await counts(client) == (1, 1)
    async with client.store.transaction() as tx:
        await write_allocations(tx, [DeleteAllocations(consumer=DB)], VOCABULARY, NOON)
    assert await counts(client) == (0, 1)
    # A consumer whose writes never named a host is counted on none.
    await set_allocations(client, ConsumerId(UUID(int=78)), HOST)
    assert await counts(client) == (0, 1)


async def test_who_is_moved_by_name_to_a_child_of_another_tree_lives_on_its_root(client: StoreClient) -> None:
    await client.report(a_report(a_provider("numa-1", OTHER_HOST, inventories(VCPU=4)), root=OTHER_HOST))
    await client.ask(a_claim(a_share(), WEB))

    await set_allocations(client, WEB, NUMA)
    assert await counts(client) == (0, 1)

    await again_if_transient(client, a_release(WEB))
    assert await counts(client) == (0, 0)


async def test_a_reshape_of_the_host_itself_counts_whom_it_moves(client: StoreClient) -> None:
    await client.ask(a_claim(a_share(), WEB))
    host = await client.provider(HOST)
    stocks = ProviderInventories(
        provider=HOST, generation=host.generation, inventories=inventories(VCPU=4, MEMORY_MB=1024)
    )
    moved = ConsumerAllocations(
        consumer=WEB,
        amounts=amounts(OTHER_HOST, VCPU=1),
        project="shop",
        user="ann",
        generation=None,
        judges_generation=False,
    )
    async with client.store.transaction() as tx:
        verdicts = await write_reshapes(
            tx, [Reshape(inventories=(stocks,), allocations=(moved,))], VOCABULARY, NOON
        )

    assert verdicts == (Done(),)
    assert await counts(client) == (0, 1)


async def test_who_lives_on_a_host_that_moved_into_another_tree_is_counted_there_until_it_goes(
    client: StoreClient,
) -> None:
    await client.ask(a_claim(a_share(), WEB), a_claim(a_share(OTHER_HOST), DB))
    under = UpdateProvider(id=HOST, name="host-1", parent=OTHER_HOST, reparents=True)
    async with client.store.transaction() as tx:
        await write_providers(tx, [under], VOCABULARY, NOON)
    assert await counts(client) == (1, 1)

    await again_if_transient(client, a_release(WEB))

    assert await counts(client) == (0, 1)


async def again_if_transient(client: StoreClient, order: ClaimOrder) -> None:
    """As the worker loop does: PostgreSQL's store had the host in its cache in another tree."""
    try:
        await client.ask(order)
    except Transient:
        await client.ask(order)


async def test_a_host_that_is_made_again_counts_whom_its_name_still_means(client: StoreClient) -> None:
    await client.report(a_report(a_provider("numa-1", HOST, inventories(VCPU=4)), root=HOST))
    shape = (await client.provider(HOST)).shape
    await client.ask(a_claim(a_share(HOST, amounts(NUMA, VCPU=1), {HOST: shape}), WEB))
    async with client.store.transaction() as tx:
        by_itself = UpdateProvider(id=NUMA, name="numa-1", parent=None)
        await write_providers(tx, [by_itself, DeleteProvider(id=HOST)], VOCABULARY, NOON)
    assert HOST not in await client.providers()

    await client.report(a_host("host-1"))
    assert await counts(client) == (1, 0)

    await again_if_transient(client, a_release(WEB))
    assert await counts(client) == (0, 0)


async def set_allocations(client: StoreClient, who: ConsumerId, where: ProviderId) -> None:
    wish = ConsumerAllocations(
        consumer=who,
        amounts=amounts(where, VCPU=1),
        project="shop",
        user="ann",
        generation=None,
        judges_generation=False,
    )
    async with client.store.transaction() as tx:
        verdicts = await write_allocations(tx, [SetAllocations(consumers=(wish,))], VOCABULARY, NOON)
    assert verdicts == (Done(),)
