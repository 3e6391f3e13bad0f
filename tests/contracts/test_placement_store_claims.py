"""Contract of all stores: claims, releases and swaps, batch by batch."""

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

import pytest
import pytest_asyncio
from msgspec.structs import replace

from bus.messages.placement import NO_OWNER, ReleaseClaim
from engine.inventories import ConsumerId
from engine.refusals import (
    AlreadyClaimed,
    Claimed,
    DoesNotFit,
    NotAllowed,
    Released,
    ShapeMoved,
    Shortfall,
    Superseded,
    TooOld,
)
from kit.errors import Transient
from placement_worker.core.claims import decide_claims, keys_of_orders
from placement_worker.core.ledger import Sent
from tests.contracts.placement_orders import (
    CELL,
    CLEANUP,
    DB,
    GROUP,
    HORIZON,
    HOST,
    LONG_AGO,
    NOON,
    OTHER_HOST,
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

TWO_CPUS = a_share(HOST, amounts(HOST, VCPU=2))
THREE_CPUS = a_share(HOST, amounts(HOST, VCPU=3))


@pytest_asyncio.fixture(params=STORES)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[StoreClient]:
    """Two hosts with four VCPU each. At the end of each test the audit must find nothing."""
    async with open_store(request.param) as store:
        client = StoreClient(store)
        await client.report(a_host("host-1"), a_host("host-2"))
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


async def test_a_claim_that_does_not_fit_leaves_nothing_behind(client: StoreClient) -> None:
    before = await client.providers()

    verdict = await client.ask_one(a_claim(a_share(HOST, amounts(HOST, VCPU=5, MEMORY_MB=1))))

    assert verdict == DoesNotFit(shortfalls=(Shortfall(provider=HOST, resource="VCPU", asked=5, free=4),))
    assert await client.providers() == before
    assert (await client.row(WEB)).attempt == 0


async def test_a_redelivered_claim_is_answered_with_what_is_really_held(client: StoreClient) -> None:
    await client.ask(a_claim(TWO_CPUS))

    verdict = await client.ask_one(a_claim(a_share(OTHER_HOST, amounts(OTHER_HOST, VCPU=3))))

    assert verdict == AlreadyClaimed(attempt=1, share=a_share(HOST, TWO_CPUS.amounts, shapes={}))
    assert await client.used(HOST) == {"VCPU": 2, "MEMORY_MB": 0}
    assert await client.used(OTHER_HOST) == {"VCPU": 0, "MEMORY_MB": 0}


async def test_two_copies_of_a_claim_in_one_batch_take_once(client: StoreClient) -> None:
    first, second = await client.ask(a_claim(TWO_CPUS), a_claim(TWO_CPUS))

    assert first == Claimed()
    assert second == AlreadyClaimed(attempt=1, share=a_share(HOST, TWO_CPUS.amounts, shapes={}))
    assert await client.used(HOST) == {"VCPU": 2, "MEMORY_MB": 0}


async def test_two_claims_of_one_batch_do_not_both_take_the_last_of_a_provider(client: StoreClient) -> None:
    first, second = await client.ask(a_claim(THREE_CPUS, WEB), a_claim(TWO_CPUS, DB))

    assert first == Claimed()
    assert second == DoesNotFit(shortfalls=(Shortfall(provider=HOST, resource="VCPU", asked=2, free=1),))
    assert await client.used(HOST) == {"VCPU": 3, "MEMORY_MB": 0}
    assert (await client.row(DB)).attempt == 0


async def test_a_claim_after_its_own_release_is_refused(client: StoreClient) -> None:
    await client.ask(a_claim(TWO_CPUS))
    assert await client.ask_one(a_release()) == Released(freed=True)

    assert await client.ask_one(a_claim(TWO_CPUS)) == Superseded(attempt=1, ended=True)
    assert await client.used(HOST) == {"VCPU": 0, "MEMORY_MB": 0}
    assert await client.held(WEB) == frozenset()


async def test_a_release_before_its_claim_leaves_word_for_it(client: StoreClient) -> None:
    assert await client.ask_one(a_release()) == Released(freed=False)

    row = await client.row(WEB)
    assert (row.attempt, row.ended_at, row.cell) == (1, NOON, CELL)
    assert await client.ask_one(a_claim(TWO_CPUS)) == Superseded(attempt=1, ended=True)
    assert await client.ask_one(a_release()) == Released(freed=False)
    assert await client.ask_one(a_claim(TWO_CPUS, attempt=2)) == Claimed()


async def test_a_release_and_a_claim_in_one_batch_end_as_if_they_came_one_by_one(client: StoreClient) -> None:
    await client.ask(a_claim(THREE_CPUS, WEB))

    freed, taken, late = await client.ask(a_release(WEB), a_claim(THREE_CPUS, DB), a_claim(THREE_CPUS, WEB))

    assert (freed, taken, late) == (Released(freed=True), Claimed(), Superseded(attempt=1, ended=True))
    assert await client.used(HOST) == {"VCPU": 3, "MEMORY_MB": 0}


async def test_a_claim_and_its_release_in_one_batch_leave_only_the_tombstone(client: StoreClient) -> None:
    before = await client.provider(HOST)

    assert await client.ask(a_claim(TWO_CPUS), a_release()) == (Claimed(), Released(freed=True))

    after = await client.provider(HOST)
    assert after.inventories == before.inventories
    assert after.revision == before.revision + 1
    row = await client.row(WEB)
    assert (row.attempt, row.ended_at, row.host) == (1, NOON, None)


async def test_what_is_older_than_the_horizon_is_refused_only_where_nothing_is_known(
    client: StoreClient,
) -> None:
    too_old = TooOld(horizon_s=int(HORIZON.total_seconds()))

    assert await client.ask_one(a_claim(TWO_CPUS, issued_at=LONG_AGO)) == too_old
    assert await client.ask_one(a_release(issued_at=LONG_AGO)) == too_old
    assert (await client.row(WEB)).attempt == 0

    await client.ask(a_claim(TWO_CPUS))
    assert await client.ask_one(a_release(issued_at=LONG_AGO)) == Released(freed=True)


async def test_a_claim_on_a_moved_shape_is_refused_even_if_only_a_trait_of_the_root_moved(
    client: StoreClient,
) -> None:
    await client.report(a_report(a_provider("host-1", traits=("STORAGE_DISK_SSD",))))

    assert await client.ask_one(a_claim(TWO_CPUS)) == ShapeMoved(roots=(HOST,))
    assert await client.used(HOST) == {"VCPU": 0, "MEMORY_MB": 0}
    assert await client.ask_one(a_claim(a_share(HOST, TWO_CPUS.amounts, {HOST: 2}))) == Claimed()


async def test_a_claim_on_what_is_gone_names_it(client: StoreClient) -> None:
    nowhere, nothing = provider("nowhere"), provider("nothing")

    verdict = await client.ask_one(
        a_claim(a_share(nowhere, amounts(nothing, VCPU=1), shapes={nowhere: 1, HOST: 7}))
    )

    assert verdict == ShapeMoved(roots=(HOST,), gone=(nowhere, nothing))


async def test_a_claim_takes_from_any_provider_of_a_tree_and_from_sharing_ones(client: StoreClient) -> None:
    numa, pool = provider("numa-1"), provider("pool")
    await client.report(
        a_report(a_provider("numa-1", HOST, inventories(VCPU=8, VGPU=2))),
        a_host("pool", DISK_GB=1000),
    )
    asked = (
        *amounts(numa, VCPU=2, VGPU=1),
        *amounts(HOST, MEMORY_MB=512),
        *amounts(pool, DISK_GB=100),
        *amounts(numa, VCPU=3),
    )

    assert await client.ask_one(a_claim(a_share(HOST, asked, {HOST: 2, pool: 1}))) == Claimed()

    assert await client.used(numa) == {"VCPU": 5, "VGPU": 1}
    assert await client.used(HOST) == {"VCPU": 0, "MEMORY_MB": 512}
    assert await client.used(pool) == {"DISK_GB": 100}
    # A request in two parts is held as one amount.
    assert await client.held(WEB) == {
        *amounts(numa, VCPU=5, VGPU=1),
        *amounts(HOST, MEMORY_MB=512),
        *amounts(pool, DISK_GB=100),
    }


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


async def test_a_refused_swap_leaves_the_held_claim_as_it_was(client: StoreClient) -> None:
    await client.ask(a_claim(TWO_CPUS, WEB), a_claim(a_share(OTHER_HOST), DB))
    before = await client.providers(), await client.row(WEB)

    verdict = await client.ask_one(a_swap(a_share(OTHER_HOST, amounts(OTHER_HOST, VCPU=4)), cleanup=CLEANUP))

    assert verdict == DoesNotFit(
        shortfalls=(Shortfall(provider=OTHER_HOST, resource="VCPU", asked=4, free=3),)
    )
    assert (await client.providers(), await client.row(WEB)) == before
    assert await client.held(WEB) == {*amounts(HOST, VCPU=2)}
    assert (await client.row(CLEANUP)).attempt == 0


async def test_a_swap_may_use_again_what_it_gives_up(client: StoreClient) -> None:
    await client.ask(a_claim(THREE_CPUS))

    assert await client.ask_one(a_swap(a_share(HOST, amounts(HOST, VCPU=4)))) == Claimed()
    assert await client.used(HOST) == {"VCPU": 4, "MEMORY_MB": 0}


async def test_a_swap_with_cleanup_keeps_what_was_held_until_the_cleanup_is_released(
    client: StoreClient,
) -> None:
    await client.ask(a_claim(THREE_CPUS))
    swap = a_swap(a_share(OTHER_HOST, amounts(OTHER_HOST, VCPU=3)), cleanup=CLEANUP)

    assert await client.ask_one(swap) == Claimed()

    assert await client.used(HOST) == {"VCPU": 3, "MEMORY_MB": 0}
    assert await client.used(OTHER_HOST) == {"VCPU": 3, "MEMORY_MB": 0}
    cleanup = await client.row(CLEANUP)
    assert (cleanup.type, cleanup.project, cleanup.user, cleanup.cell) == ("CLEANUP", "shop", "ann", CELL)
    assert (cleanup.attempt, cleanup.host, cleanup.generation) == (1, HOST, 1)
    assert await client.held(CLEANUP) == {*amounts(HOST, VCPU=3)}
    assert await client.ask_one(swap) == AlreadyClaimed(
        attempt=2, share=a_share(OTHER_HOST, amounts(OTHER_HOST, VCPU=3), shapes={})
    )

    assert await client.ask_one(a_release(CLEANUP)) == Released(freed=True)
    assert await client.used(HOST) == {"VCPU": 0, "MEMORY_MB": 0}


async def test_a_swap_with_cleanup_may_not_use_again_what_it_gives_up(client: StoreClient) -> None:
    await client.ask(a_claim(THREE_CPUS))

    verdict = await client.ask_one(a_swap(a_share(HOST, amounts(HOST, VCPU=2)), cleanup=CLEANUP))

    assert verdict == DoesNotFit(shortfalls=(Shortfall(provider=HOST, resource="VCPU", asked=2, free=1),))
    assert await client.held(WEB) == {*amounts(HOST, VCPU=3)}


async def test_two_cells_do_not_touch_each_other(client: StoreClient) -> None:
    await client.report(a_host("far", cell="c2"))
    far = a_share(provider("far"))
    await client.ask(a_claim(TWO_CPUS))

    ask = ((a_release(cell="c2"), "cell"), (a_claim(far, DB), "share.cell"), (a_swap(far), "share.cell"))
    for order, field in ask:
        verdict = await client.ask_one(order)
        assert isinstance(verdict, NotAllowed)
        assert verdict.field == field
    assert await client.held(WEB) == {*TWO_CPUS.amounts}
    assert (await client.row(DB)).attempt == 0


async def test_claims_move_the_generation_and_releases_only_the_revision(client: StoreClient) -> None:
    start = await client.provider(HOST)

    await client.ask(a_claim(a_share(HOST, amounts(HOST, VCPU=1, MEMORY_MB=1)), WEB))
    claimed = await client.provider(HOST)
    await client.ask(a_claim(a_share(HOST), DB), a_claim(a_share(HOST), CLEANUP))
    twice = await client.provider(HOST)
    await client.ask(a_release(WEB))
    released = await client.provider(HOST)

    assert [
        (state.generation - start.generation, state.revision - start.revision, state.shape)
        for state in (claimed, twice, released)
    ] == [(1, 1, 1), (3, 2, 1), (3, 3, 1)]


async def test_an_inventory_that_shrank_takes_nothing_more_until_it_fits(client: StoreClient) -> None:
    await client.ask(a_claim(THREE_CPUS, WEB))
    await client.report(a_host("host-1", VCPU=2, MEMORY_MB=4096))
    small = a_share(HOST, amounts(HOST, VCPU=1), {HOST: 2})

    assert await client.ask_one(a_claim(small, DB)) == DoesNotFit(
        shortfalls=(Shortfall(provider=HOST, resource="VCPU", asked=1, free=-1),)
    )
    assert await client.ask_one(a_swap(a_share(HOST, amounts(HOST, VCPU=3), {HOST: 2}))) == Claimed()
    assert await client.ask_one(a_release(WEB, attempt=2)) == Released(freed=True)
    assert await client.ask_one(a_claim(small, DB)) == Claimed()


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


async def test_a_consumer_lives_again_by_a_later_attempt(client: StoreClient) -> None:
    await client.ask(a_claim(TWO_CPUS), a_release())

    assert (
        await client.ask_one(a_claim(a_share(OTHER_HOST), attempt=2), now=NOON + timedelta(minutes=1))
        == Claimed()
    )

    row = await client.row(WEB)
    assert (row.attempt, row.ended_at, row.host, row.generation) == (2, None, OTHER_HOST, 2)
    assert await client.ask_one(a_release(attempt=1)) == Superseded(attempt=2, ended=False)
    assert await client.ask_one(a_claim(TWO_CPUS, attempt=3)) == AlreadyClaimed(
        attempt=2, share=a_share(OTHER_HOST, amounts(OTHER_HOST, VCPU=1), shapes={})
    )


async def test_a_host_that_was_deleted_and_recreated_takes_claims(client: StoreClient) -> None:
    await client.ask(a_claim(TWO_CPUS, WEB))
    await client.ask(a_release(WEB))
    await client.report(a_report(removed=(HOST,), sequence=1))
    await client.report(replace(a_host("host-1"), sequence=2))
    shape = (await client.provider(HOST)).shape
    claim = a_claim(a_share(HOST, TWO_CPUS.amounts, shapes={HOST: shape}), DB)

    # A transaction that had the old tree in its cache may notice only after locking, and is tried again.
    with suppress(Transient):
        assert await client.ask_one(claim) == Claimed()
        return
    assert await client.ask_one(claim) == Claimed()


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
