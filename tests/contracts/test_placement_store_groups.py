"""Contract of all stores: server groups. Which consumers are members, and which claim or swap their group refuses."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from msgspec.structs import replace

from bus.messages.placement import SwapClaim
from engine.inventories import ConsumerId, GroupMember, Holder, ProviderId, ServerGroup, Share
from engine.refusals import Claimed, DoesNotFit, GroupRefused, NotAllowed
from placement_worker.core.ledger import ClaimOrder, Sent
from tests.contracts.placement_orders import (
    CELL,
    CLEANUP,
    DB,
    GROUP,
    HOST,
    NOON,
    OTHER_HOST,
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
from tests.contracts.store_client import StoreClient
from tests.contracts.stores import STORES, open_store

pytestmark = pytest.mark.asyncio

THIRD_HOST = provider("host-3")
TOGETHER = replace(GROUP, policy="affinity")


@pytest_asyncio.fixture(params=STORES)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[StoreClient]:
    """Three hosts with four VCPU each. At the end of each test the audit must find nothing."""
    async with open_store(request.param) as store:
        client = StoreClient(store)
        await client.report(a_host("host-1"), a_host("host-2"), a_host("host-3"))
        yield client
        assert await store.audit() == ()


def on(host: ProviderId) -> Share:
    return a_share(host, amounts(host, VCPU=1))


def refused(
    group: ServerGroup, host: ProviderId, *members: ConsumerId, count: int | None = None
) -> GroupRefused:
    return GroupRefused(
        group=group.id,
        policy=group.policy,
        host=host,
        members=tuple(sorted(members, key=lambda each: each.int)),
        count=len(members) if count is None else count,
        max_per_host=group.max_per_host,
    )


def a_member(who: ConsumerId, host: ProviderId, attempt: int = 1) -> GroupMember:
    return GroupMember(group=GROUP.id, consumer=who, attempt=attempt, host=host)


async def members(client: StoreClient) -> dict[ConsumerId, GroupMember]:
    found: dict[ConsumerId, GroupMember] = {}
    after: int | None = 0
    while after is not None:
        page = await client.store.members_page(after, 1)
        found |= {member.consumer: member for member in page.members}
        after = page.next
    return found


async def test_anti_affinity_refuses_a_second_member_on_a_host_and_names_the_first(
    client: StoreClient,
) -> None:
    assert await client.ask_one(a_claim(on(HOST), WEB, group=GROUP)) == Claimed()

    assert await client.ask_one(a_claim(on(HOST), DB, group=GROUP)) == refused(GROUP, HOST, WEB)

    assert await client.used(HOST) == {"VCPU": 1, "MEMORY_MB": 0}
    assert (await client.row(DB)).attempt == 0, "a refused claim leaves nothing behind"
    assert await client.ask_one(a_claim(on(OTHER_HOST), DB, group=GROUP)) == Claimed()
    assert await members(client) == {WEB: a_member(WEB, HOST), DB: a_member(DB, OTHER_HOST)}


async def test_members_of_one_batch_count(client: StoreClient) -> None:
    first, second = consumer("1"), consumer("2")

    verdicts = await client.ask(
        a_claim(on(HOST), first, group=GROUP),
        a_claim(on(HOST), second, group=GROUP),
        a_release(first),
        a_claim(on(HOST), WEB, group=GROUP),
        a_claim(on(HOST), DB, group=GROUP),
    )

    assert [type(verdict).__name__ for verdict in verdicts] == [
        "Claimed",
        "GroupRefused",
        "Released",
        "Claimed",
        "GroupRefused",
    ]
    assert verdicts[1] == refused(GROUP, HOST, first)
    assert verdicts[4] == refused(GROUP, HOST, WEB)
    assert await members(client) == {WEB: a_member(WEB, HOST)}


async def test_a_host_may_have_as_many_members_as_the_group_allows(client: StoreClient) -> None:
    pairs = replace(GROUP, max_per_host=2)
    await client.ask(a_claim(on(HOST), WEB, group=pairs), a_claim(on(HOST), DB, group=pairs))

    third = await client.ask_one(a_claim(on(HOST), consumer("third"), group=pairs))

    assert third == refused(pairs, HOST, WEB, DB)
    assert set(await members(client)) == {WEB, DB}


async def test_a_refusal_names_at_most_ten_members_and_says_how_many_there_are(client: StoreClient) -> None:
    many = replace(GROUP, max_per_host=12)
    await client.report(a_host("host-1", VCPU=50))
    there = sorted((consumer(str(number)) for number in range(12)), key=lambda each: each.int)
    host = (await client.provider(HOST)).shape
    share = a_share(HOST, amounts(HOST, VCPU=1), {HOST: host})
    await client.ask(*[a_claim(share, each, group=many) for each in there])

    verdict = await client.ask_one(a_claim(share, WEB, group=many))

    assert verdict == refused(many, HOST, *there[:10], count=12)


async def test_the_first_member_of_an_affinity_group_fixes_the_host(client: StoreClient) -> None:
    assert await client.ask_one(a_claim(on(HOST), WEB, group=TOGETHER)) == Claimed()

    verdict = await client.ask_one(a_claim(on(OTHER_HOST), DB, group=TOGETHER))

    assert verdict == refused(TOGETHER, HOST, WEB)
    assert await client.ask_one(a_claim(on(HOST), DB, group=TOGETHER)) == Claimed()


async def test_a_group_that_lost_its_last_member_is_bound_to_no_host(client: StoreClient) -> None:
    await client.ask(a_claim(on(HOST), WEB, group=TOGETHER))
    await client.ask(a_release(WEB))

    assert await client.ask_one(a_claim(on(OTHER_HOST), DB, group=TOGETHER)) == Claimed()
    assert set(await members(client)) == {DB}


@pytest.mark.parametrize("policy", ["soft-affinity", "soft-anti-affinity"])
async def test_a_soft_group_refuses_nothing_and_has_members(client: StoreClient, policy: str) -> None:
    soft = replace(GROUP, policy=policy)

    verdicts = await client.ask(a_claim(on(HOST), WEB, group=soft), a_claim(on(HOST), DB, group=soft))
    later = await client.ask_one(a_claim(on(OTHER_HOST), consumer("third"), group=soft))

    assert (*verdicts, later) == (Claimed(), Claimed(), Claimed())
    assert len(await members(client)) == 3


async def test_another_definition_under_a_known_id_is_refused(client: StoreClient) -> None:
    await client.ask(a_claim(on(HOST), WEB, group=GROUP))

    other_policy = await client.ask_one(a_claim(on(OTHER_HOST), DB, group=TOGETHER))
    other_number = await client.ask_one(a_claim(on(OTHER_HOST), DB, group=replace(GROUP, max_per_host=2)))

    assert isinstance(other_policy, NotAllowed)
    assert other_policy.field == "group.policy"
    assert "'anti-affinity'" in other_policy.reason
    assert isinstance(other_number, NotAllowed)
    assert other_number.field == "group.max_per_host"


async def test_a_cell_brings_nobody_into_the_group_of_another_project(client: StoreClient) -> None:
    def by_cell(order: ClaimOrder) -> Sent[ClaimOrder]:
        return Sent(order, CELL)

    await client.ask(a_claim(on(HOST), WEB, group=GROUP))
    theirs, alone = replace(a_claim(on(OTHER_HOST), DB, group=GROUP), project="bank"), consumer("alone")
    await client.ask(replace(a_claim(on(OTHER_HOST), alone), project="bank"))
    joins = a_swap(on(THIRD_HOST), alone, group=GROUP)

    claimed, swapped = await client.judge([by_cell(theirs), by_cell(joins)])

    foreign = NotAllowed(field="group.id", reason=f"server group {GROUP.id} is another project's")
    assert (claimed, swapped) == (foreign, foreign)
    assert await members(client) == {WEB: a_member(WEB, HOST)}
    # The members themselves go on, and so does an offloaded one that its cell claims again.
    assert await client.judge([by_cell(a_swap(on(OTHER_HOST), WEB, group=GROUP))]) == (Claimed(),)
    await client.ask(a_release(WEB, attempt=2))
    assert await client.judge([by_cell(a_claim(on(HOST), WEB, attempt=3, group=GROUP))]) == (Claimed(),)


async def test_what_a_cell_says_of_a_group_holds_only_until_the_api_level_claims_for_it(
    client: StoreClient,
) -> None:
    early = replace(a_claim(on(HOST), WEB, group=TOGETHER), project="bank")
    assert await client.judge([Sent(early, CELL)]) == (Claimed(),)

    assert await client.ask_one(a_claim(on(OTHER_HOST), DB, group=GROUP)) == Claimed()

    late = replace(a_claim(on(THIRD_HOST), consumer("late"), group=GROUP), project="bank")
    (verdict,) = await client.judge([Sent(late, CELL)])
    assert isinstance(verdict, NotAllowed)
    assert verdict.field == "group.id"
    assert await client.ask_one(a_claim(on(OTHER_HOST), consumer("third"), group=GROUP)) == refused(
        GROUP, OTHER_HOST, DB
    )


async def test_a_group_for_which_the_api_level_claims_twice_is_of_all_projects(client: StoreClient) -> None:
    theirs = replace(a_claim(on(OTHER_HOST), DB, group=GROUP), project="bank")
    late = replace(a_claim(on(THIRD_HOST), consumer("late"), group=GROUP), project="yard")
    refused_too = replace(a_claim(a_share(HOST, amounts(HOST, VCPU=9)), CLEANUP, group=GROUP), project="yard")

    await client.ask(a_claim(on(HOST), WEB, group=GROUP))
    # A claim that is refused says nothing of the group.
    assert isinstance(await client.ask_one(refused_too), DoesNotFit)
    (verdict,) = await client.judge([Sent(late, CELL)])
    assert isinstance(verdict, NotAllowed)
    assert await client.ask_one(theirs) == Claimed()

    assert await client.judge([Sent(late, CELL)]) == (Claimed(),)


async def test_a_claim_that_is_refused_defines_no_group(client: StoreClient) -> None:
    too_much = a_share(HOST, amounts(HOST, VCPU=9))

    first, second = await client.ask(
        a_claim(too_much, WEB, group=TOGETHER), a_claim(on(HOST), DB, group=GROUP)
    )
    assert (type(first), second) == (DoesNotFit, Claimed())
    assert isinstance(await client.ask_one(a_claim(too_much, WEB, group=TOGETHER)), DoesNotFit)
    assert await client.ask_one(a_claim(on(HOST), WEB, group=GROUP)) == refused(GROUP, HOST, DB)


async def test_a_refused_claim_alone_leaves_no_group(client: StoreClient) -> None:
    await client.ask(a_claim(a_share(HOST, amounts(HOST, VCPU=9)), WEB, group=TOGETHER))

    assert await client.ask_one(a_claim(on(HOST), WEB, group=GROUP)) == Claimed()


async def test_a_swap_is_judged_and_leaves_the_place_that_it_gives_up(client: StoreClient) -> None:
    await client.ask(a_claim(on(HOST), WEB, group=GROUP), a_claim(on(OTHER_HOST), DB, group=GROUP))

    assert await client.ask_one(a_swap(on(OTHER_HOST), WEB, group=GROUP)) == refused(GROUP, OTHER_HOST, DB)
    assert (await client.row(WEB)).host == HOST
    assert await client.ask_one(a_swap(on(THIRD_HOST), WEB, group=GROUP)) == Claimed()

    assert await members(client) == {WEB: a_member(WEB, THIRD_HOST, 2), DB: a_member(DB, OTHER_HOST)}
    assert await client.ask_one(a_claim(on(HOST), consumer("third"), group=GROUP)) == Claimed()


async def test_the_cleanup_of_a_silent_host_still_counts_there(client: StoreClient) -> None:
    await client.ask(a_claim(on(HOST), WEB, group=GROUP))

    swap = a_swap(on(OTHER_HOST), WEB, cleanup=CLEANUP, group=GROUP)
    assert await client.ask_one(swap) == Claimed()

    assert await members(client) == {CLEANUP: a_member(CLEANUP, HOST), WEB: a_member(WEB, OTHER_HOST, 2)}
    assert await client.ask_one(a_claim(on(HOST), DB, group=GROUP)) == refused(GROUP, HOST, CLEANUP)
    await client.ask(a_release(CLEANUP))
    assert await client.ask_one(a_claim(on(HOST), DB, group=GROUP)) == Claimed()


async def test_an_affinity_group_moves_with_its_only_member_unless_its_host_is_silent(
    client: StoreClient,
) -> None:
    await client.ask(a_claim(on(HOST), WEB, group=TOGETHER))

    silent = await client.ask_one(a_swap(on(OTHER_HOST), WEB, cleanup=CLEANUP, group=TOGETHER))
    assert silent == refused(TOGETHER, HOST, WEB)
    assert await client.ask_one(a_swap(on(OTHER_HOST), WEB, group=TOGETHER)) == Claimed()
    assert await client.ask_one(a_claim(on(OTHER_HOST), DB, group=TOGETHER)) == Claimed()
    assert await client.ask_one(a_swap(on(HOST), WEB, 2, 3, group=TOGETHER)) == refused(
        TOGETHER, OTHER_HOST, DB
    )


async def test_the_swap_of_a_member_names_its_group(client: StoreClient) -> None:
    await client.ask(a_claim(on(HOST), WEB, group=GROUP))
    another = replace(GROUP, id=consumer("another group"))

    for group in (None, another):
        verdict = await client.ask_one(a_swap(on(OTHER_HOST), WEB, group=group))
        assert isinstance(verdict, NotAllowed)
        assert verdict.field == "group"
        assert str(GROUP.id) in verdict.reason
    assert (await client.row(WEB)).host == HOST


async def test_a_repeated_claim_of_a_member_is_answered_by_what_it_holds(client: StoreClient) -> None:
    await client.ask(a_claim(on(HOST), WEB, group=GROUP))

    again, elsewhere = await client.ask(
        a_claim(on(HOST), WEB, group=GROUP), a_claim(on(OTHER_HOST), WEB, group=GROUP)
    )

    assert again == elsewhere
    assert type(again).__name__ == "AlreadyClaimed"


async def test_the_feed_tells_who_joined_and_who_left(client: StoreClient) -> None:
    async with client.store.lead_feed() as feed:
        assert feed is not None
        await feed.mark(1, (await feed.read()).cursor)
        before = (await client.store.snapshot_page(0, 10)).cursor
        await client.ask(a_claim(on(HOST), WEB, group=GROUP), a_claim(on(THIRD_HOST), DB))
        await client.ask(a_swap(on(OTHER_HOST), WEB, cleanup=CLEANUP, group=GROUP))
        await client.ask(a_release(CLEANUP), a_release(DB))
        await client.ask(a_release(WEB, 7))

        changes = await feed.read()

    assert changes.joined == (
        a_member(WEB, HOST),
        a_member(CLEANUP, HOST),
        a_member(WEB, OTHER_HOST, 2),
    )
    assert changes.left == (Holder(consumer=CLEANUP, attempt=1), Holder(consumer=WEB, attempt=7))
    page = await client.store.changes_page(before, 0, 10)
    assert page is not None
    assert (page.joined, page.left) == (changes.joined, changes.left)
    assert await members(client) == {}


async def test_a_group_is_forgotten_when_its_last_member_has_left(client: StoreClient) -> None:
    await client.ask(a_claim(on(HOST), WEB, group=GROUP))

    await client.store.prune(NOON, NOON)
    assert isinstance(await client.ask_one(a_claim(on(OTHER_HOST), DB, group=TOGETHER)), NotAllowed)
    await client.ask(a_release(WEB))
    assert isinstance(await client.ask_one(a_claim(on(OTHER_HOST), DB, group=TOGETHER)), NotAllowed)
    await client.store.prune(NOON, NOON)
    assert await client.ask_one(a_claim(on(OTHER_HOST), DB, group=TOGETHER)) == Claimed()


# Members that leave together

OF_WEB, OF_DB = consumer("the heir of web"), consumer("the heir of db")


async def a_group_on(client: StoreClient, host: ProviderId, *more: ConsumerId) -> None:
    for who in (WEB, DB, *more):
        assert await client.ask_one(a_claim(on(host), who, group=TOGETHER)) == Claimed()


def leaving(who: ConsumerId, heir: ConsumerId, to: ProviderId = OTHER_HOST) -> SwapClaim:
    """The swap of a member of a group of which all leave the first host by one order."""
    return replace(a_swap(on(to), who, migration=heir, group=TOGETHER), leaves=(HOST,))


async def test_members_leave_their_host_one_after_another_if_each_names_it(client: StoreClient) -> None:
    await a_group_on(client, HOST)

    alone = await client.ask_one(a_swap(on(OTHER_HOST), WEB, migration=OF_WEB, group=TOGETHER))
    assert alone == refused(TOGETHER, HOST, DB)
    assert await client.ask_one(leaving(WEB, OF_WEB)) == Claimed()
    assert await client.ask_one(leaving(DB, OF_DB)) == Claimed()

    where = {who: each.host for who, each in (await members(client)).items()}
    assert where == {WEB: OTHER_HOST, DB: OTHER_HOST, OF_WEB: HOST, OF_DB: HOST}


async def test_the_others_may_go_nowhere_but_where_the_first_one_went(client: StoreClient) -> None:
    await a_group_on(client, HOST)
    await client.ask(leaving(WEB, OF_WEB))

    assert await client.ask_one(leaving(DB, OF_DB, THIRD_HOST)) == refused(TOGETHER, OTHER_HOST, WEB)


async def test_the_first_one_comes_back_though_others_have_arrived(client: StoreClient) -> None:
    await a_group_on(client, HOST)
    await client.ask(leaving(WEB, OF_WEB), leaving(DB, OF_DB))

    back = a_swap(on(HOST), WEB, 2, 3, returns=OF_WEB, group=TOGETHER)

    assert await client.ask_one(back) == Claimed()
    assert (await members(client))[WEB] == a_member(WEB, HOST, 3)


async def test_nobody_joins_a_group_while_its_members_are_on_two_hosts(client: StoreClient) -> None:
    await a_group_on(client, HOST)
    await client.ask(leaving(WEB, OF_WEB))
    new = consumer("new")

    assert isinstance(await client.ask_one(a_claim(on(HOST), new, group=TOGETHER)), GroupRefused)
    assert isinstance(await client.ask_one(a_claim(on(OTHER_HOST), new, group=TOGETHER)), GroupRefused)


async def test_an_heir_that_left_the_group_keeps_its_share_and_no_member_from_coming(
    client: StoreClient,
) -> None:
    await client.ask(a_claim(on(HOST), WEB, group=TOGETHER))
    await client.ask(a_swap(on(OTHER_HOST), WEB, migration=OF_WEB, group=TOGETHER))
    assert await client.ask_one(a_claim(on(OTHER_HOST), DB, group=TOGETHER)) == refused(
        TOGETHER, HOST, OF_WEB
    )

    async with client.store.lead_feed() as feed:
        assert feed is not None
        await feed.mark(1, (await feed.read()).cursor)
        await client.ask(replace(a_release(OF_WEB), leaves_group=True))
        assert (await feed.read()).left == (Holder(consumer=OF_WEB, attempt=1),)

    assert (await client.row(OF_WEB)).host == HOST
    assert await members(client) == {WEB: a_member(WEB, OTHER_HOST, 2)}
    assert await client.ask_one(a_claim(on(OTHER_HOST), DB, group=TOGETHER)) == Claimed()


async def test_who_is_unknown_or_has_gone_on_leaves_no_group(client: StoreClient) -> None:
    await client.ask(a_claim(on(HOST), WEB, group=TOGETHER))
    await client.ask(a_swap(on(OTHER_HOST), WEB, group=TOGETHER))

    await client.ask(replace(a_release(WEB), leaves_group=True), replace(a_release(DB), leaves_group=True))

    assert await members(client) == {WEB: a_member(WEB, OTHER_HOST, 2)}
    assert await client.ask_one(a_claim(on(OTHER_HOST), DB, group=TOGETHER)) == Claimed()
