"""Contract of all stores: what a project's quota counts, and which claims and swaps it refuses."""

from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio
from msgspec.structs import replace

from bus.messages.administration import (
    AllClaimed,
    ConsumerAllocations,
    DeleteAllocations,
    Done,
    RefusedPlace,
    SetAllocations,
    SetQuota,
    UnknownClass,
    WriteVerdict,
)
from bus.messages.placement import ClaimResources
from engine.inventories import INSTANCES, ProviderId, QuotaState, Share
from engine.refusals import AlreadyClaimed, Claimed, OverLimit, QuotaExceeded, Released
from kit.errors import Transient
from placement_worker.admin_writes import write_allocations, write_quotas
from placement_worker.core.claims import decide_together, keys_of_orders
from placement_worker.core.ledger import ClaimChanges, Sent, keys_of_shares
from placement_worker.store_sql import SqlPlacementStore
from tests.contracts.placement_orders import (
    CLEANUP,
    DB,
    HORIZON,
    HOST,
    MIGRATION,
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
)
from tests.contracts.sql_stores import migrated_database
from tests.contracts.store_client import StoreClient
from tests.contracts.stores import STORES, open_store

pytestmark = pytest.mark.asyncio

SHOP = "shop"


@pytest_asyncio.fixture(params=STORES)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[StoreClient]:
    """Two hosts with four VCPU each. At the end the audit must find nothing: so each quota counts right."""
    async with open_store(request.param) as store:
        client = StoreClient(store)
        await client.report(a_host("host-1"), a_host("host-2"))
        yield client
        assert await store.audit() == ()


def on(host: ProviderId, vcpu: int) -> Share:
    return a_share(host, amounts(host, VCPU=vcpu), {host: 1})


def claiming(name: str, vcpu: int = 1, host: ProviderId = HOST, project: str = SHOP) -> ClaimResources:
    return replace(a_claim(on(host, vcpu), consumer(name)), project=project)


async def limit(client: StoreClient, project: str = SHOP, **limits: int | None) -> WriteVerdict:
    async with client.store.transaction() as tx:
        (verdict,) = await write_quotas(tx, [SetQuota(project=project, limits=limits)], VOCABULARY, NOON)
    return verdict


async def used(client: StoreClient, project: str = SHOP) -> dict[str, int]:
    (quota,) = await client.store.quotas(project, "", 10)
    return quota.used


async def written(client: StoreClient, write: SetAllocations | DeleteAllocations) -> WriteVerdict:
    async with client.store.transaction() as tx:
        (verdict,) = await write_allocations(tx, [write], VOCABULARY, NOON)
    return verdict


def over(name: str, limit: int, used: int, asked: int) -> QuotaExceeded:
    return QuotaExceeded(project=SHOP, over=(OverLimit(name=name, limit=limit, used=used, asked=asked),))


async def test_a_claim_over_the_quota_is_refused_with_limit_used_and_asked(client: StoreClient) -> None:
    await limit(client, VCPU=4, instances=10)

    assert await client.ask(claiming("a", 3)) == (Claimed(),)
    assert await client.ask(claiming("b", 2, OTHER_HOST)) == (over("VCPU", 4, 3, 2),)

    assert await used(client) == {"VCPU": 3, INSTANCES: 1}
    assert await client.held(consumer("b")) == frozenset()


async def test_a_refusal_names_each_limit_that_is_exceeded(client: StoreClient) -> None:
    await limit(client, VCPU=1, instances=0, DISK_GB=5)

    (verdict,) = await client.ask(claiming("a", 2))

    assert isinstance(verdict, QuotaExceeded)
    assert [(each.name, each.limit, each.used, each.asked) for each in verdict.over] == [
        ("VCPU", 1, 0, 2),
        (INSTANCES, 0, 0, 1),
    ]


async def test_claims_of_one_batch_are_judged_one_by_one(client: StoreClient) -> None:
    await limit(client, instances=2)

    verdicts = await client.ask(
        claiming("a"),
        claiming("b"),
        claiming("c"),
        a_release(consumer("a")),
        claiming("d"),
        claiming("of another project", project="bank"),
    )

    assert verdicts == (
        *(Claimed(), Claimed(), over(INSTANCES, 2, 2, 1)),
        *(Released(freed=True), Claimed(), Claimed()),
    )
    assert await used(client) == {"VCPU": 2, INSTANCES: 2}


async def test_a_repeated_claim_is_told_what_it_holds_although_the_quota_is_full(client: StoreClient) -> None:
    await limit(client, instances=1)
    await client.ask(claiming("a"))

    (again,) = await client.ask(claiming("a"))

    assert isinstance(again, AlreadyClaimed)


async def test_the_first_limit_counts_what_is_held_already(client: StoreClient) -> None:
    await client.ask(claiming("a", 2), claiming("b", 1), claiming("other", 1, project="bank"))
    await client.ask(a_release(consumer("b")))

    assert await limit(client, VCPU=2) == Done()

    assert await used(client) == {"VCPU": 2, INSTANCES: 1}
    assert await client.ask(claiming("c", 1)) == (over("VCPU", 2, 2, 1),)


async def test_another_limit_needs_no_new_count(client: StoreClient) -> None:
    await limit(client, instances=9)
    await client.ask(claiming("a", 2))

    await limit(client, VCPU=2)

    assert await client.store.quotas("", "", 9) == (
        QuotaState(project=SHOP, limits={INSTANCES: 9, "VCPU": 2}, used={"VCPU": 2, INSTANCES: 1}),
    )
    assert await client.ask(claiming("b")) == (over("VCPU", 2, 2, 1),)


async def test_a_project_without_limits_has_no_quota(client: StoreClient) -> None:
    await limit(client, VCPU=1)
    await client.ask(claiming("a"))

    await limit(client, VCPU=None)

    assert await client.store.quotas("", "", 9) == ()
    assert await client.ask(claiming("b")) == (Claimed(),)
    await limit(client, VCPU=3)
    assert await used(client) == {"VCPU": 2, INSTANCES: 2}


async def test_an_unknown_class_has_no_limit(client: StoreClient) -> None:
    assert await limit(client, VCPUS=1, instances=4) == UnknownClass(names=("VCPUS",))

    assert await client.store.quotas("", "", 9) == ()


async def test_quotas_are_read_page_by_page(client: StoreClient) -> None:
    for project in ("bank", "mill", SHOP):
        await limit(client, project, VCPU=1)

    first = await client.store.quotas("", "", 2)
    rest = await client.store.quotas("", first[-1].project, 2)

    assert [each.project for each in (*first, *rest)] == ["bank", "mill", SHOP]
    assert [each.project for each in await client.store.quotas("mill", "", 2)] == ["mill"]


async def test_nothing_is_taken_from_a_project_whose_limit_was_lowered(client: StoreClient) -> None:
    await client.ask(claiming("a", 3))
    await limit(client, VCPU=1)

    # An alternate, an evacuation from a silent host, and a migration are no growth.
    assert await client.ask(a_swap(on(OTHER_HOST, 3), consumer("a"))) == (Claimed(),)
    assert await client.ask(a_swap(on(HOST, 3), consumer("a"), 2, 3, cleanup=CLEANUP)) == (Claimed(),)
    await client.ask(a_release(CLEANUP, 2))
    assert await client.ask(a_swap(on(OTHER_HOST, 3), consumer("a"), 3, 4, migration=MIGRATION)) == (
        Claimed(),
    )
    assert await used(client) == {"VCPU": 3, INSTANCES: 1}
    # But growth is: larger by one, and a new one.
    await client.ask(a_release(MIGRATION, 3))
    assert await client.ask(a_swap(on(HOST, 4), consumer("a"), 4, 5)) == (over("VCPU", 1, 3, 1),)
    assert await client.ask(claiming("b", 1)) == (over("VCPU", 1, 3, 1),)


async def test_what_a_silent_host_still_holds_is_not_the_projects(client: StoreClient) -> None:
    await limit(client, VCPU=4)
    await client.ask(claiming("a", 4))

    assert await client.ask(a_swap(on(OTHER_HOST, 4), consumer("a"), cleanup=CLEANUP)) == (Claimed(),)

    assert await used(client) == {"VCPU": 4, INSTANCES: 1}


@pytest.mark.parametrize("there", [HOST, OTHER_HOST])
async def test_a_smaller_instance_counts_its_old_size_until_it_cannot_come_back(
    client: StoreClient, there: ProviderId
) -> None:
    """Otherwise others would take what a revert needs, and the revert would exceed the quota."""
    await limit(client, VCPU=4)
    await client.ask(claiming("web", 3))

    await client.ask(a_swap(on(there, 1), migration=MIGRATION))

    assert await used(client) == {"VCPU": 3, INSTANCES: 1}
    assert await client.ask(claiming("b", 2, OTHER_HOST)) == (over("VCPU", 4, 3, 2),)
    await limit(client, VCPU=1)
    assert await client.ask(a_swap(on(HOST, 3), held=2, attempt=3, returns=MIGRATION)) == (Claimed(),)
    assert await used(client) == {"VCPU": 3, INSTANCES: 1}


async def test_a_confirmed_smaller_instance_counts_its_new_size(client: StoreClient) -> None:
    await client.ask(claiming("web", 3))
    await client.ask(a_swap(on(OTHER_HOST, 1), migration=MIGRATION))
    # The limit comes while the instance moves.
    await limit(client, VCPU=4)
    assert await used(client) == {"VCPU": 3, INSTANCES: 1}

    await client.ask(a_release(MIGRATION, 1))

    assert await used(client) == {"VCPU": 1, INSTANCES: 1}


async def test_a_larger_instance_counts_its_new_size_at_once(client: StoreClient) -> None:
    await limit(client, VCPU=4)
    await client.ask(claiming("web", 2))

    assert await client.ask(a_swap(on(OTHER_HOST, 4), migration=MIGRATION)) == (Claimed(),)

    assert await used(client) == {"VCPU": 4, INSTANCES: 1}
    assert await client.ask(a_swap(on(HOST, 2), held=2, attempt=3, returns=MIGRATION)) == (Claimed(),)
    assert await used(client) == {"VCPU": 2, INSTANCES: 1}


async def test_a_write_by_name_counts_and_is_not_refused(client: StoreClient) -> None:
    await limit(client, VCPU=2)
    two_each = [
        ConsumerAllocations(
            consumer=who,
            amounts=amounts(HOST, VCPU=2),
            project=SHOP,
            user="ann",
            type="INSTANCE",
            generation=None,
        )
        for who in (WEB, DB)
    ]

    assert await written(client, SetAllocations(consumers=tuple(two_each))) == Done()

    assert await used(client) == {"VCPU": 4, INSTANCES: 2}
    assert await client.ask(claiming("a", 1, OTHER_HOST)) == (over("VCPU", 2, 4, 1),)
    # To another project, and to nothing.
    await limit(client, "bank", VCPU=9)
    given = replace(two_each[0], project="bank", generation=1)
    assert await written(client, SetAllocations(consumers=(given,))) == Done()
    assert await written(client, DeleteAllocations(consumer=DB)) == Done()
    assert await used(client) == {}
    assert await used(client, "bank") == {"VCPU": 2, INSTANCES: 1}


async def test_a_claim_for_many_is_refused_whole_with_what_all_ask(client: StoreClient) -> None:
    await limit(client, instances=2)
    claims = [Sent(claiming(name)) for name in ("a", "b", "c")]

    assert await together(client, claims) == tuple(
        RefusedPlace(consumer=consumer(name), verdict=over(INSTANCES, 2, 0, 3)) for name in ("a", "b", "c")
    )
    assert await used(client) == {}
    assert await together(client, claims[:2]) == AllClaimed(is_new=True)
    assert await together(client, claims[:2]) == AllClaimed(is_new=False)
    assert await used(client) == {"VCPU": 2, INSTANCES: 2}


async def test_a_claim_for_many_that_finds_no_room_counts_nothing(client: StoreClient) -> None:
    await limit(client, VCPU=9)

    refused = await together(client, [Sent(claiming("a", 3)), Sent(claiming("b", 3))])

    assert isinstance(refused, tuple)
    assert await used(client) == {}


async def together(client: StoreClient, claims: Sequence[Sent[ClaimResources]]) -> object:
    async with client.store.transaction() as tx:
        ledger = await tx.lock_claims(keys_of_orders([each.order for each in claims]))
        decision = decide_together(ledger, [claims], NOON, HORIZON)
        await tx.write_claims(decision.changes)
    return decision.verdicts[0]


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
    async with client.store.transaction() as tx:
        await tx.recount()

    assert await used(client) == {"VCPU": 2, INSTANCES: 1}


@pytest.mark.parametrize("books", STORES[1:])
async def test_a_worker_that_does_not_know_of_a_first_limit_yet_tries_again(books: str) -> None:
    async with migrated_database(books) as url:
        one, other = SqlPlacementStore(url), SqlPlacementStore(url)
        ours, theirs = StoreClient(one), StoreClient(other)
        await ours.report(a_host("host-1"))
        await ours.ask(claiming("a"))
        await theirs.ask(claiming("b"))
        await limit(ours, instances=2)

        with pytest.raises(Transient, match="first limit"):
            await theirs.ask(claiming("c"))

        assert await theirs.ask(claiming("c")) == (over(INSTANCES, 2, 2, 1),)
        await one.close()
        await other.close()
