"""What a claim leaves in the books: what is held, counted on its host, and claimed for many."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
import pytest_asyncio
from msgspec import structs

from bus.messages.administration import (
    AllClaimed,
    ClaimsAnswered,
    ClaimTogether,
    ConsumerAllocations,
    Done,
    NoneClaimed,
    RefusedPlace,
    SetAllocations,
)
from bus.messages.placement import NO_OWNER, ClaimResources, ReleaseClaim
from bus.messages.together import claims_of, taken_together
from bus.workers.handling import Answer, Received, Weighed
from engine.inventories import ConsumerId, ProviderId, ServerGroup, ShapeSeen
from engine.refusals import (
    AlreadyClaimed,
    Claimed,
    DoesNotFit,
    Shortfall,
)
from kit.errors import Transient
from placement_worker.admin_writes import write_allocations
from placement_worker.core.claims import decide_claims, keys_of_orders
from placement_worker.core.ledger import ClaimOrder, Sent
from placement_worker.handlers import together_handlers
from tests.contracts.placement_orders import (
    CELL,
    DB,
    GROUP,
    HORIZON,
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
    an_id,
    consumer,
    inventories,
    provider,
)
from tests.contracts.store_client import StoreClient
from tests.contracts.stores import STORES, open_store

pytestmark = pytest.mark.asyncio

TWO_CPUS = a_share(HOST, amounts(HOST, VCPU=2))
THREE_CPUS = a_share(HOST, amounts(HOST, VCPU=3))


@pytest_asyncio.fixture(params=STORES)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[StoreClient]:
    """Three hosts with four VCPU each. At the end the audit must find nothing."""
    async with open_store(request.param) as store:
        client = StoreClient(store)
        await client.report(a_host("host-1"), a_host("host-2"), a_host("host-3"))
        yield client
        assert await store.audit() == ()


async def test_a_claim_is_granted_and_kept(client: StoreClient) -> None:
    asked = a_share(HOST, amounts(HOST, VCPU=2, MEMORY_MB=512))

    assert await client.ask_one(a_claim(asked, group=GROUP)) == Claimed()

    assert await client.used(HOST) == {"VCPU": 2, "MEMORY_MB": 512}
    assert await client.held(WEB) == frozenset(asked.amounts)
    row = await client.row(WEB)
    assert (row.type, row.project, row.user, row.cell) == ("INSTANCE", "shop", "ann", CELL)
    assert (row.generation, row.attempt, row.ended_at) == (1, 1, None)
    assert (row.host, row.group) == (HOST, GROUP.id)


async def test_a_redelivered_claim_is_answered_with_what_is_really_held(client: StoreClient) -> None:
    await client.ask(a_claim(TWO_CPUS))

    verdict = await client.ask_one(a_claim(a_share(OTHER_HOST, amounts(OTHER_HOST, VCPU=3))))

    assert verdict == AlreadyClaimed(attempt=1, share=a_share(HOST, TWO_CPUS.amounts, shapes={}))
    assert await client.used(HOST) == {"VCPU": 2, "MEMORY_MB": 0}
    assert await client.used(OTHER_HOST) == {"VCPU": 0, "MEMORY_MB": 0}


async def test_a_swap_moves_what_is_held_to_another_host(client: StoreClient) -> None:
    await client.ask(a_claim(THREE_CPUS, group=GROUP))

    swap = a_swap(a_share(OTHER_HOST, amounts(OTHER_HOST, VCPU=4)), group=GROUP)
    assert await client.ask_one(swap) == Claimed()

    assert await client.used(HOST) == {"VCPU": 0, "MEMORY_MB": 0}
    assert await client.used(OTHER_HOST) == {"VCPU": 4, "MEMORY_MB": 0}
    row = await client.row(WEB)
    assert (row.attempt, row.host, row.generation, row.project, row.group) == (
        2,
        OTHER_HOST,
        2,
        "shop",
        GROUP.id,
    )
    assert await client.held(WEB) == {*amounts(OTHER_HOST, VCPU=4)}
    assert await client.store.holders_of(HOST, None, 10) == ()


async def test_a_transaction_that_fails_changes_nothing(client: StoreClient) -> None:
    await client.ask(a_claim(a_share(HOST), DB))
    before = await client.providers(), await client.row(DB)

    class PowerCutError(Exception):
        pass

    async def interrupted() -> None:
        async with client.store.transaction() as tx:
            orders = a_claim(TWO_CPUS, WEB), a_release(DB)
            ledger = await tx.lock_claims(keys_of_orders(orders))
            asked = [Sent(order) for order in orders]
            await tx.write_claims(decide_claims(ledger, asked, NOON, HORIZON).changes)
            raise PowerCutError

    with pytest.raises(PowerCutError):
        await interrupted()

    assert (await client.providers(), await client.row(DB)) == before
    assert (await client.row(WEB)).attempt == 0
    assert await client.ask_one(a_claim(TWO_CPUS, WEB)) == Claimed()


async def test_rows_of_releases_that_came_first_are_counted_by_their_owner(client: StoreClient) -> None:
    """Not those of claims that were released, nor those that live."""
    early = [ConsumerId(UUID(int=number)) for number in range(1, 6)]
    await client.ask(a_claim(a_share(HOST), WEB), a_claim(a_share(HOST), DB))
    await client.ask(a_release(WEB))
    await client.ask(*[a_release(each) for each in early[:3]])
    await client.ask(a_release(early[3], cell="c2"))
    of_shop = ReleaseClaim(cell="cell0", consumer=early[4], attempt=1, issued_at=NOON, project="shop")
    await client.ask(of_shop)
    ours, theirs, shops, nobodys = (CELL, NO_OWNER), ("c2", NO_OWNER), ("cell0", "shop"), ("c9", NO_OWNER)

    async with client.store.transaction() as tx:
        counted = await tx.tombstones((ours, theirs, shops, nobodys), 10)
        assert counted == {ours: 3, theirs: 1, shops: 1, nobodys: 0}
        assert await tx.tombstones((ours,), 2) == {ours: 2}


NUMA = provider("numa-1")


async def counts(client: StoreClient) -> tuple[int, int]:
    return (await client.provider(HOST)).consumers, (await client.provider(OTHER_HOST)).consumers


async def test_the_feed_tells_how_many_live_on_a_host(client: StoreClient) -> None:
    async with client.store.lead_feed() as feed:
        assert feed is not None
        first = await feed.read()
        await feed.mark(1, first.cursor)
        await client.ask(a_claim(a_share(), WEB), a_claim(a_share(), DB))

        assert [usage.consumers for usage in (await feed.read()).usage] == [2]
    assert await counts(client) == (2, 0)


async def test_who_is_moved_by_name_to_a_child_of_another_tree_lives_on_its_root(client: StoreClient) -> None:
    await client.report(a_report(a_provider("numa-1", OTHER_HOST, inventories(VCPU=4)), root=OTHER_HOST))
    await client.ask(a_claim(a_share(), WEB))

    await set_allocations(client, WEB, NUMA)
    assert await counts(client) == (0, 1)

    await again_if_transient(client, a_release(WEB))
    assert await counts(client) == (0, 0)


async def again_if_transient(client: StoreClient, order: ClaimOrder) -> None:
    """As the worker loop does: PostgreSQL's store had the host in its cache in another tree."""
    try:
        await client.ask(order)
    except Transient:
        await client.ask(order)


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


if TYPE_CHECKING:
    from bus.message import Message


def named(*names: str) -> list[ConsumerId]:
    return [consumer(name) for name in names]


def claims(
    hosts: Sequence[ProviderId],
    whos: Sequence[ConsumerId],
    vcpus: int = 1,
    *,
    group: ServerGroup | None = None,
    issued_at: datetime = NOON,
) -> list[ClaimResources]:
    return [
        a_claim(a_share(host, amounts(host, VCPU=vcpus)), who, group=group, issued_at=issued_at)
        for host, who in zip(hosts, whos, strict=True)
    ]


def together(singles: Sequence[ClaimResources], claim: str = "claim") -> ClaimTogether:
    first = singles[0]
    templates, places = taken_together(singles)
    return ClaimTogether(
        claim=an_id(claim),
        attempt=first.attempt,
        issued_at=first.issued_at,
        templates=templates,
        places=places,
        project=first.project,
        user=first.user,
        group=first.group,
    )


async def asked(client: StoreClient, *messages: ClaimTogether, now: datetime = NOON) -> Sequence[object]:
    """The verdicts on these claims, which come in one batch."""
    handler = together_handlers(lambda: now, HORIZON)[ClaimTogether]
    assert isinstance(handler, Weighed)
    batch: list[Received[Message]] = [
        Received(message=each, id="1", trace="", sender="", reply_to="me", attempts=0) for each in messages
    ]
    async with client.store.transaction() as tx:
        said = await handler.handle(batch, tx)
    verdicts = []
    for each in said:
        assert isinstance(each, Answer)
        assert isinstance(each.message, ClaimsAnswered)
        verdicts.append(each.message.verdict)
    return verdicts


async def asked_whole(client: StoreClient, singles: Sequence[ClaimResources], claim: str = "claim") -> object:
    (verdict,) = await asked(client, together(singles, claim))
    return verdict


async def vcpus(client: StoreClient, host: ProviderId) -> int:
    return (await client.used(host))["VCPU"]


async def test_one_too_many_and_nothing_is_claimed(client: StoreClient) -> None:
    whos = named("a", "b", "c")

    verdict = await asked_whole(client, claims([HOST, OTHER_HOST, HOST], whos, 3))

    short = DoesNotFit(shortfalls=(Shortfall(provider=HOST, resource="VCPU", asked=3, free=1),))
    assert verdict == NoneClaimed(refused=(RefusedPlace(consumer=whos[2], verdict=short),), count=1)
    assert [await client.held(who) for who in whos] == [frozenset()] * 3
    assert (await client.row(whos[0])).attempt == 0
    assert await vcpus(client, HOST) == await vcpus(client, OTHER_HOST) == 0
    assert (await client.provider(HOST)).generation == 1
    # Each of the others may be claimed by itself.
    assert await asked_whole(client, claims([HOST, OTHER_HOST], whos[:2], 3)) == AllClaimed(is_new=True)


async def test_shares_of_several_providers_and_trees_are_taken_apart_and_put_together(
    client: StoreClient,
) -> None:
    del client
    numa, pool = provider("numa"), provider("pool")
    compound = structs.replace(
        a_share(HOST, (*amounts(numa, VCPU=2, MEMORY_MB=10), *amounts(pool, DISK_GB=5)), instances_max=3),
        shapes=(ShapeSeen(root=HOST, shape=4), ShapeSeen(root=pool, shape=9)),
    )
    singles = [
        a_claim(compound, consumer("a")),
        a_claim(a_share(OTHER_HOST, amounts(OTHER_HOST, VCPU=1)), consumer("b")),
        a_claim(structs.replace(compound, instances_max=0), consumer("c"), cell="c2"),
        a_claim(compound, consumer("d")),
    ]

    whole = together(singles)
    assert claims_of(whole) == singles
    assert len(whole.templates) == 3
    assert isinstance(whole.claim, UUID)
