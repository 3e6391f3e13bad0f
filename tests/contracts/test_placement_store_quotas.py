"""Quotas and server groups in the books."""

import pytest
from msgspec.structs import replace

from bus.messages.audit import MendConsumer, MendedClaim, SeenConsumer
from bus.messages.books import (
    ConsumerAllocations,
    ConsumerMoved,
    Done,
    SetAllocations,
    SetQuota,
    WriteVerdict,
)
from bus.messages.placement import ClaimResources
from engine.inventories import INSTANCES, ConsumerId, GroupMember, Holder, ProviderId, Share
from engine.refusals import Claimed, NotAllowed, OverLimit, QuotaExceeded
from kit.errors import Transient
from placement_worker.admin_writes import write_quotas
from placement_worker.core.allocation_writes import decide_allocations, keys_of_allocation_writes
from placement_worker.core.ledger import ClaimChanges, keys_of_shares
from placement_worker.store_sql import PlacementStore
from tests.contracts.placement_orders import (
    CLEANUP,
    DB,
    GROUP,
    HOST,
    NOON,
    OTHER_HOST,
    VOCABULARY,
    WEB,
    a_claim,
    a_host,
    a_release,
    a_share,
    a_swap,
    amounts,
    consumer,
    provider,
)
from tests.contracts.sql_stores import migrated_database
from tests.contracts.store_client import StoreClient, leading, pages_of
from tests.contracts.stores import STORES
from tests.running import closing, once

SHOP = "shop"


def on(host: ProviderId, vcpu: int) -> Share:
    return a_share(host, amounts(host, VCPU=vcpu), {host: 1})


def claiming(name: str, vcpu: int = 1, host: ProviderId = HOST, project: str = SHOP) -> ClaimResources:
    return replace(a_claim(on(host, vcpu), consumer(name)), project=project)


async def limit(client: StoreClient, project: str = SHOP, **limits: int | None) -> WriteVerdict:
    (verdict,) = await once(
        client.store.transaction,
        lambda tx: write_quotas(tx, [SetQuota(project=project, limits=limits)], VOCABULARY, NOON),
    )
    return verdict


async def used(client: StoreClient, project: str = SHOP) -> dict[str, int]:
    (quota,) = await client.store.quotas(project, "", 10)
    return quota.used


def over(name: str, limit: int, used: int, asked: int) -> QuotaExceeded:
    return QuotaExceeded(project=SHOP, over=(OverLimit(name=name, limit=limit, used=used, asked=asked),))


async def test_quotas_are_read_page_by_page(client: StoreClient) -> None:
    for project in ("bank", "mill", SHOP):
        await limit(client, project, VCPU=1)

    first = await client.store.quotas("", "", 2)
    rest = await client.store.quotas("", first[-1].project, 2)

    assert [each.project for each in (*first, *rest)] == ["bank", "mill", SHOP]
    assert [each.project for each in await client.store.quotas("mill", "", 2)] == ["mill"]


async def test_a_wrong_count_is_found_and_corrected(client: StoreClient) -> None:
    await limit(client, VCPU=4)
    await client.ask(claiming("a", 2))
    async with client.store.transaction() as tx:
        ledger = await tx.lock_claims(keys_of_shares([consumer("a")], []))
        wrong = replace(ledger.quotas[SHOP], used={"VCPU": 3})
        await tx.write_claims(ClaimChanges(quotas=(wrong,)))

    assert await client.store.audit() == (
        "the quota of project shop counts 3 of VCPU, but its consumers use 2",
    )
    await client.recount()

    assert await used(client) == {"VCPU": 2, INSTANCES: 1}


async def test_what_an_audit_gives_to_a_consumer_without_a_row_counts_for_its_project(
    client: StoreClient,
) -> None:
    await limit(client, VCPU=3)
    claim = MendedClaim(cell="c1", attempt=1, share=on(HOST, 2), project=SHOP)
    lost = [MendConsumer(consumer=consumer(name), claim=claim) for name in ("a", "b")]

    assert await client.mend(*lost) == (Done(), Done())

    assert await used(client) == {"VCPU": 4, INSTANCES: 2}
    assert await client.ask(claiming("c", host=OTHER_HOST)) == (over("VCPU", 3, 4, 1),)


async def test_a_mend_that_gives_a_consumer_to_another_project_counts_for_that_one(
    client: StoreClient,
) -> None:
    await limit(client, VCPU=4)
    await limit(client, "bank", VCPU=4)
    await client.ask(claiming("a", 2))
    claim = MendedClaim(cell="c1", attempt=1, share=on(HOST, 3), project="bank")
    seen = SeenConsumer(generation=1, attempt=1, ended=False)

    assert await client.mend(MendConsumer(consumer=consumer("a"), seen=seen, claim=claim)) == (Done(),)

    assert (await used(client), await used(client, "bank")) == ({}, {"VCPU": 3, INSTANCES: 1})


async def test_a_write_counts_for_its_project_though_a_later_one_of_its_batch_is_refused(
    client: StoreClient,
) -> None:
    await limit(client, VCPU=4)
    held = ConsumerAllocations(
        consumer=consumer("a"),
        amounts=amounts(HOST, VCPU=2),
        project=SHOP,
        user="ann",
        generation=None,
        type="INSTANCE",
    )
    writes = [
        SetAllocations(consumers=(each,)) for each in (held, replace(held, project="bank", generation=7))
    ]

    async with client.store.transaction() as tx:
        ledger = await tx.lock_claims(keys_of_allocation_writes(writes))
        decision = decide_allocations(ledger, writes, VOCABULARY, NOON)
        await tx.write_claims(decision.changes)

    assert [type(each) for each in decision.verdicts] == [Done, ConsumerMoved]
    assert await used(client) == {"VCPU": 2, INSTANCES: 1}


@pytest.mark.parametrize("books", STORES[1:])
async def test_a_worker_that_does_not_know_of_a_first_limit_yet_tries_again(books: str) -> None:
    async with (
        migrated_database(books) as url,
        closing(PlacementStore(url), PlacementStore(url)) as stores,
    ):
        ours, theirs = map(StoreClient, stores)
        await ours.report(a_host("host-1"))
        await ours.ask(claiming("a"))
        await theirs.ask(claiming("b"))
        await limit(ours, instances=2)

        with pytest.raises(Transient, match="first limit"):
            await theirs.ask(claiming("c"))

        assert await theirs.ask(claiming("c")) == (over(INSTANCES, 2, 2, 1),)


THIRD_HOST = provider("host-3")
TOGETHER = replace(GROUP, policy="affinity")


def member_on(host: ProviderId) -> Share:
    return a_share(host, amounts(host, VCPU=1))


def a_member(who: ConsumerId, host: ProviderId, attempt: int = 1) -> GroupMember:
    return GroupMember(group=GROUP.id, consumer=who, attempt=attempt, host=host)


async def members(client: StoreClient) -> dict[ConsumerId, GroupMember]:
    pages = await pages_of(lambda after: client.store.members_page(after, 1))
    return {member.consumer: member for page in pages for member in page.members}


async def test_the_feed_tells_who_joined_and_who_left(client: StoreClient) -> None:
    async with leading(client.store) as feed:
        before = (await client.store.snapshot_page(0, 10)).cursor
        await client.ask(a_claim(member_on(HOST), WEB, group=GROUP), a_claim(member_on(THIRD_HOST), DB))
        await client.ask(a_swap(member_on(OTHER_HOST), WEB, cleanup=CLEANUP, group=GROUP))
        assert {*await members(client)} == {WEB, CLEANUP}
        await client.ask(a_release(CLEANUP), a_release(DB))
        await client.ask(a_release(WEB, 7))

        changes = await feed.read()

    assert changes.joined == (
        a_member(WEB, HOST),
        a_member(CLEANUP, HOST),
        a_member(WEB, OTHER_HOST, 2),
    )
    assert changes.left == (Holder(consumer=CLEANUP, attempt=1), Holder(consumer=WEB, attempt=7))
    page = await client.changes(before)
    assert (page.joined, page.left) == (changes.joined, changes.left)
    assert await members(client) == {}


async def test_a_group_is_forgotten_when_its_last_member_has_left(client: StoreClient) -> None:
    await client.ask(a_claim(member_on(HOST), WEB, group=GROUP))

    await client.store.prune(NOON, NOON)
    assert isinstance(await client.ask_one(a_claim(member_on(OTHER_HOST), DB, group=TOGETHER)), NotAllowed)
    await client.ask(a_release(WEB))
    assert isinstance(await client.ask_one(a_claim(member_on(OTHER_HOST), DB, group=TOGETHER)), NotAllowed)
    await client.store.prune(NOON, NOON)
    assert await client.ask_one(a_claim(member_on(OTHER_HOST), DB, group=TOGETHER)) == Claimed()
