"""Claims in the books: the share that is held, the count of consumers on a host, and claims for many at once."""

from collections.abc import Sequence
from uuid import UUID

from msgspec import structs

from bus.messages.placement import ClaimResources, ReleaseClaim, ReportInventory
from bus.messages.together import AllClaimed, ClaimTogether, RefusedPlace, claims_of, taken_together
from engine.inventories import ConsumerId, ProviderId, ShapeSeen, Share
from engine.picture.members import GroupMembers
from engine.refusals import Claimed, DoesNotFit, Shortfall
from placement_worker.core.claims import decide_claims, decide_together, keys_of_orders
from placement_worker.core.ledger import Sent
from tests.contracts.placement_orders import (
    CELL,
    DB,
    GROUP,
    HORIZON,
    HOST,
    MIGRATION,
    NOON,
    OTHER_HOST,
    WEB,
    a_claim,
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
from tests.contracts.store_client import StoreClient, leading
from tests.contracts.stores import undone

TWO_CPUS = a_share(HOST, amounts(HOST, VCPU=2))


async def test_a_claim_is_granted_and_kept(client: StoreClient) -> None:
    asked = a_share(HOST, amounts(HOST, VCPU=2, MEMORY_MB=512))

    assert await client.ask_one(a_claim(asked, group=GROUP)) == Claimed()

    assert await client.used(HOST) == {"VCPU": 2, "MEMORY_MB": 512}
    assert await client.held(WEB) == frozenset(asked.amounts)
    row = await client.row(WEB)
    assert (row.type, row.project, row.user, row.cell) == ("INSTANCE", "shop", "ann", CELL)
    assert (row.generation, row.attempt, row.ended_at) == (1, 1, None)
    assert (row.host, row.group) == (HOST, GROUP.id)


async def test_a_swap_moves_what_is_held_to_another_host(client: StoreClient) -> None:
    """It takes the same amount of a pool again, which counts once."""
    of_pool = amounts(provider("host-3"), MEMORY_MB=512)
    await client.ask(a_claim(a_share(HOST, (*amounts(HOST, VCPU=2), *of_pool))))
    there = (*amounts(OTHER_HOST, VCPU=4), *of_pool)

    assert await client.ask_one(a_swap(a_share(OTHER_HOST, there))) == Claimed()

    assert await client.used(HOST) == {"VCPU": 0, "MEMORY_MB": 0}
    assert (await client.used(provider("host-3")))["MEMORY_MB"] == 512
    assert await client.held(WEB) == {*there}
    assert await client.store.holders_of(HOST, None, 10) == ()


async def test_a_transaction_that_fails_changes_nothing(client: StoreClient) -> None:
    await client.ask(a_claim(a_share(HOST), DB))
    before = await client.providers(), await client.row(DB)

    async with undone(client.store.transaction()) as tx:
        orders = a_claim(TWO_CPUS, WEB), a_release(DB)
        ledger = await tx.lock_claims(keys_of_orders(orders))
        decision = decide_claims(ledger, [Sent(order) for order in orders], NOON, HORIZON)
        await tx.write_claims(decision.changes)

    assert (await client.providers(), await client.row(DB)) == before
    assert (await client.row(WEB)).attempt == 0
    assert await client.ask_one(a_claim(TWO_CPUS, WEB)) == Claimed()


async def test_of_a_claim_for_many_nothing_is_granted_if_one_does_not_fit(client: StoreClient) -> None:
    whos = consumer("a"), consumer("b"), consumer("c")
    asked = [
        Sent(a_claim(a_share(host, amounts(host, VCPU=3)), who))
        for host, who in zip((HOST, OTHER_HOST, HOST), whos, strict=True)
    ]

    async with client.store.transaction() as tx:
        ledger = await tx.lock_claims(keys_of_orders([each.order for each in asked]))
        decision = decide_together(ledger, [asked, asked[:2]], NOON, HORIZON)
        await tx.write_claims(decision.changes)

    short = DoesNotFit(shortfalls=(Shortfall(provider=HOST, resource="VCPU", asked=3, free=1),))
    # Each of the others may be claimed by itself.
    assert decision.verdicts == (
        (RefusedPlace(consumer=whos[2], verdict=short),),
        AllClaimed(is_new=True),
    )
    assert [(await client.used(host))["VCPU"] for host in (HOST, OTHER_HOST)] == [3, 3]
    assert await client.held(whos[2]) == frozenset()


async def test_rows_of_releases_that_came_first_are_counted_by_their_cell(client: StoreClient) -> None:
    """Not those of claims that were released, nor those that live."""
    early = [ConsumerId(UUID(int=number)) for number in range(1, 6)]
    await client.ask(a_claim(a_share(HOST), WEB), a_claim(a_share(HOST), DB))
    await client.ask(a_release(WEB))
    await client.ask(*[a_release(each) for each in early[:3]])
    await client.ask(a_release(early[3], cell="c2"))
    await client.ask(ReleaseClaim(cell="cell0", consumer=early[4], attempt=1, issued_at=NOON, project="shop"))

    async with client.store.transaction() as tx:
        assert await tx.tombstones((CELL, "c2", "cell0", "c9"), 10) == {CELL: 3, "c2": 1, "cell0": 1, "c9": 0}
        assert await tx.tombstones((CELL,), 2) == {CELL: 2}


async def test_the_feed_tells_how_many_live_on_a_host(client: StoreClient) -> None:
    async with leading(client.store) as feed:
        await client.ask(a_claim(a_share(), WEB), a_claim(a_share(), DB))

        assert [usage.consumers for usage in (await feed.read()).usage] == [2]
    assert (await client.provider(HOST)).consumers == 2


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


async def test_shares_of_several_providers_and_trees_are_taken_apart_and_put_together() -> None:
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


POOL = provider("pool")


def pool() -> ReportInventory:
    return a_report(a_provider("pool", holds=inventories(DISK_GB=10, CUSTOM_ADDRESS=2)), root=POOL)


def on(host: ProviderId, vcpu: int, disk: int = 0) -> Share:
    """So many VCPU of the host; with a disk also that much of the pool, and an address."""
    of_pool = amounts(POOL, DISK_GB=disk, CUSTOM_ADDRESS=1) if disk else ()
    return a_share(host, (*amounts(host, VCPU=vcpu), *of_pool), {host: 1, POOL: 1} if disk else {host: 1})


async def test_the_feed_tells_the_members_of_a_move_in_an_order_that_readers_can_merge(
    client: StoreClient,
) -> None:
    await client.report(pool())
    async with leading(client.store) as feed:
        await client.ask(
            a_claim(on(HOST, 1), group=GROUP),
            a_swap(on(OTHER_HOST, 1), migration=MIGRATION, group=GROUP),
            a_swap(on(HOST, 1), held=2, attempt=3, returns=MIGRATION, group=GROUP),
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
