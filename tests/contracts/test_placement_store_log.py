"""Contract of all stores: pages, the change log, the audit, and pruning."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio
from msgspec import structs

from bus.messages.placement import LogPosition
from engine.inventories import Holder, ProviderUsage
from engine.refusals import AlreadyClaimed, Claimed, Released, TooOld
from kit.errors import Transient
from kit.sql import open_database, write_once
from placement_worker.core.claims import keys_of_orders
from placement_worker.core.ledger import ClaimChanges, Touched
from placement_worker.store import ChangeFeed, Unpublished
from placement_worker.store_sql import SqlPlacementStore
from placement_worker.store_sql.log import begin_term
from tests.contracts.placement_orders import (
    CLEANUP,
    DB,
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
    consumer,
    inventories,
    provider,
)
from tests.contracts.sql_stores import migrated_database
from tests.contracts.store_client import StoreClient, names
from tests.contracts.stores import STORES, open_store

pytestmark = pytest.mark.asyncio

BEFORE_EVERYTHING = datetime(2000, 1, 1, tzinfo=UTC)
AFTER_EVERYTHING = datetime(2100, 1, 1, tzinfo=UTC)
# The usage of a host.
NOTHING_USED = {"VCPU": 0, "MEMORY_MB": 0}


@pytest_asyncio.fixture(params=STORES)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[StoreClient]:
    async with open_store(request.param) as store:
        client = StoreClient(store)
        await client.report(a_host("host-1"), a_host("host-2"))
        yield client


@pytest_asyncio.fixture
async def feed(client: StoreClient) -> AsyncIterator[ChangeFeed]:
    """A feed that has read everything so far."""
    async with client.store.lead_feed() as feed:
        assert feed is not None
        await feed.mark(1, (await feed.read()).cursor)
        yield feed


async def test_pages_together_hold_every_provider_once_by_internal_id(client: StoreClient) -> None:
    for number in range(3, 8):
        await client.report(a_host(f"host-{number}"))
    await client.report(a_report(a_provider("numa-1", HOST, inventories(VGPU=1))))
    await client.report(a_report(root=provider("host-4"), removed=(provider("host-4"),)))

    pages = []
    after: int | None = 0
    while after is not None:
        page = await client.store.snapshot_page(after, limit=3)
        pages.append(page.providers)
        after = page.next

    assert [len(page) for page in pages] == [3, 3, 1]
    together = [state for page in pages for state in page]
    assert names(together) == ["host-1", "host-2", "host-3", "host-5", "host-6", "host-7", "numa-1"]
    internals = [state.internal for state in together]
    assert internals == sorted(set(internals))


async def test_a_full_last_page_says_that_it_is_the_last(client: StoreClient) -> None:
    page = await client.store.snapshot_page(0, limit=2)

    assert len(page.providers) == 2
    assert page.next is None


async def test_an_empty_store_has_one_empty_page(client: StoreClient) -> None:
    await client.report(a_report(removed=(HOST,)), a_report(root=OTHER_HOST, removed=(OTHER_HOST,)))

    page = await client.store.snapshot_page(0, limit=2)

    assert (page.providers, page.next) == ((), None)


async def test_trees_are_read_whole(client: StoreClient) -> None:
    await client.report(a_report(a_provider("numa-1", HOST, inventories(VGPU=1), ("CUSTOM_A",))))

    async with client.store.transaction() as tx:
        trees = await tx.read_trees([HOST, provider("nowhere")])

    assert names(trees) == ["host-1", "numa-1"]
    states = await client.providers()
    assert trees == tuple(states[state.id] for state in trees)


async def test_the_feed_tells_what_was_committed_whole(client: StoreClient) -> None:
    async with client.store.lead_feed() as feed:
        assert feed is not None
        read = await feed.read()

    states = await client.providers()
    assert read.providers == (states[HOST], states[OTHER_HOST])
    assert read.gone == ()


async def test_the_feed_is_read_in_pages_that_together_tell_everything_once(
    client: StoreClient, feed: ChangeFeed
) -> None:
    vms = [consumer(f"vm-{number}") for number in range(7)]
    for number, each in enumerate(vms):
        await client.ask(a_claim(a_share((HOST, OTHER_HOST)[number % 2]), each))

    told, sizes = [], []
    page = await feed.read(3)
    while page.is_cut:
        # Entries that are not marked are read again.
        again = await feed.read(3)
        assert (again.claimed, again.usage, again.is_cut) == (page.claimed, page.usage, page.is_cut)
        told += [holder.consumer for holder in page.claimed]
        sizes.append(len(page.claimed))
        await feed.mark(2 + len(sizes), page.cursor)
        page = await feed.read(3)
    told += [holder.consumer for holder in page.claimed]

    assert told == vms
    assert sizes == [3, 3]
    assert len((await feed.read(1)).claimed) == 1
    assert len((await feed.read(100)).claimed) == 1
    await feed.mark(9, page.cursor)
    rest = await feed.read(3)
    assert (rest.claimed, rest.usage, rest.is_cut) == ((), (), False)
    # The next leader goes on from there.
    await client.ask(a_release(vms[0]))
    assert (await feed.read(3)).ended == (Holder(consumer=vms[0], attempt=1),)


async def test_the_feed_tells_once_what_is_marked_and_again_what_is_not(
    client: StoreClient, feed: ChangeFeed
) -> None:
    await client.ask(a_claim())
    first = await feed.read()
    await client.ask(a_claim(a_share(OTHER_HOST), DB))
    again = await feed.read()

    assert [usage.id for usage in first.usage] == [HOST]
    assert first.claimed == (Holder(consumer=WEB, attempt=1),)
    assert [usage.id for usage in again.usage] == [HOST, OTHER_HOST]
    assert again.claimed == (Holder(consumer=WEB, attempt=1), Holder(consumer=DB, attempt=1))

    await feed.mark(2, first.cursor)
    rest = await feed.read()
    assert [usage.id for usage in rest.usage] == [OTHER_HOST]
    await feed.mark(3, rest.cursor)
    nothing = await feed.read()
    assert nothing == Unpublished(cursor=nothing.cursor)
    assert feed.published.position == 3


async def test_the_feed_tells_of_claims_what_is_used_and_on_which_revision_that_stands(
    client: StoreClient, feed: ChangeFeed
) -> None:
    before = await client.provider(HOST)
    await client.ask(a_claim())
    await client.ask(a_claim(a_share(), DB), a_release(DB))

    read = await feed.read()

    after = await client.provider(HOST)
    assert read.providers == ()
    assert read.usage == (
        ProviderUsage(
            internal=after.internal,
            id=HOST,
            base=before.revision,
            revision=after.revision,
            generation=after.generation,
            used={resource: stock.used for resource, stock in after.inventories.items()},
            consumers=1,
        ),
    )
    assert after.revision > before.revision


@pytest.mark.parametrize("is_claimed_first", [True, False])
async def test_a_provider_of_which_more_changed_than_what_is_used_is_told_whole(
    client: StoreClient, feed: ChangeFeed, *, is_claimed_first: bool
) -> None:
    if is_claimed_first:
        await client.ask(a_claim())
    await client.report(a_report(a_provider("host-1", None, inventories(VCPU=99))))
    reported = await client.provider(HOST)
    if not is_claimed_first:
        await client.ask(a_claim(a_share(shapes={HOST: reported.shape})))

    read = await feed.read()
    assert (read.providers, read.usage) == ((await client.provider(HOST),), ())

    await feed.mark(2, read.cursor)
    await client.ask(a_release())
    rest = await feed.read()
    assert rest.providers == ()
    assert [(usage.id, usage.base) for usage in rest.usage] == [(HOST, reported.revision)]


async def test_the_feed_tells_a_provider_as_it_is_now_however_often_it_changed(
    client: StoreClient, feed: ChangeFeed
) -> None:
    await client.ask(a_claim())
    await client.ask(a_release())

    read = await feed.read()

    now = await client.provider(HOST)
    assert [(usage.revision, usage.used) for usage in read.usage] == [
        (now.revision, {resource: stock.used for resource, stock in now.inventories.items()})
    ]
    assert read.claimed == read.ended == (Holder(consumer=WEB, attempt=1),)


async def test_the_feed_tells_both_sides_of_a_swap(client: StoreClient, feed: ChangeFeed) -> None:
    await client.ask(a_claim())
    await feed.mark(2, (await feed.read()).cursor)
    await client.ask(a_swap(a_share(OTHER_HOST), cleanup=CLEANUP))

    read = await feed.read()

    assert [usage.id for usage in read.usage] == [HOST, OTHER_HOST]
    assert set(read.claimed) == {Holder(consumer=WEB, attempt=2), Holder(consumer=CLEANUP, attempt=1)}
    assert read.ended == (Holder(consumer=WEB, attempt=1),)


async def test_the_feed_tells_which_provider_is_gone_at_which_revision(
    client: StoreClient, feed: ChangeFeed
) -> None:
    await client.ask(a_claim(), a_release())
    last = await client.provider(HOST)
    await client.report(a_report(removed=(HOST,)))

    read = await feed.read()

    assert (read.providers, read.usage) == ((), ())
    assert [(gone.id, gone.internal) for gone in read.gone] == [(HOST, last.internal)]
    assert read.gone[0].revision > last.revision


async def test_the_feed_tells_a_provider_that_went_and_came_again_as_two(
    client: StoreClient, feed: ChangeFeed
) -> None:
    last = await client.provider(HOST)
    await client.report(a_report(removed=(HOST,)))
    await client.report(a_host("host-1"))

    read = await feed.read()

    assert [gone.internal for gone in read.gone] == [last.internal]
    assert read.providers == (await client.provider(HOST),)
    assert read.providers[0].internal > last.internal


async def test_what_changes_nothing_is_not_told(client: StoreClient, feed: ChangeFeed) -> None:
    await client.report(a_host("host-1"))
    await client.ask(a_claim(a_share(HOST, shapes={HOST: 9})), a_release(DB))

    read = await feed.read()

    assert read == Unpublished(cursor=read.cursor)


async def test_what_was_rolled_back_is_not_told(client: StoreClient, feed: ChangeFeed) -> None:
    async def cancelled() -> None:
        async with client.store.transaction() as tx:
            await tx.lock_claims(keys_of_orders((a_claim(),)))
            await tx.write_claims(
                ClaimChanges(
                    touched=(Touched(HOST, 9, NOTHING_USED),), claimed=(Holder(consumer=WEB, attempt=1),)
                )
            )
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await cancelled()

    read = await feed.read()
    assert read == Unpublished(cursor=read.cursor)


async def test_a_second_leader_is_turned_away_until_the_first_is_gone(client: StoreClient) -> None:
    async with client.store.lead_feed() as first:
        assert first is not None
        async with client.store.lead_feed() as second:
            assert second is None
    async with client.store.lead_feed() as third:
        assert third is not None


async def test_a_new_leader_starts_a_new_term_where_the_last_one_marked(client: StoreClient) -> None:
    async with client.store.lead_feed() as feed:
        assert feed is not None
        first = feed.published
        await feed.mark(7, (await feed.read()).cursor)
        assert feed.published == LogPosition(term=first.term, position=7)
        assert (await client.store.snapshot_page(0, 1)).published == feed.published
    await client.ask(a_claim())

    async with client.store.lead_feed() as feed:
        assert feed is not None
        assert feed.published > LogPosition(term=first.term, position=7)
        assert feed.published.term > first.term
        assert (await client.store.snapshot_page(0, 1)).published == feed.published
        assert [usage.id for usage in (await feed.read()).usage] == [HOST]


@pytest.mark.parametrize("kind", STORES[1:])
async def test_a_leader_whose_term_is_over_publishes_nothing_more(kind: str) -> None:
    """It may not notice that the server has ended its session, and another process leads."""
    async with migrated_database(kind) as url:
        store, database = SqlPlacementStore(url), open_database(url)
        async with store.lead_feed() as feed:
            assert feed is not None
            await write_once(database, begin_term)

            with pytest.raises(Transient, match="is over"):
                await feed.mark(1, (await feed.read()).cursor)
        await database.close()
        await store.close()


async def test_pruning_forgets_tombstones_but_not_the_living(client: StoreClient) -> None:
    await client.ask(a_claim(a_share(), WEB), a_claim(a_share(), DB), a_release(DB))
    long_ago = a_claim(a_share(), DB, issued_at=LONG_AGO)

    assert await client.store.prune(NOON, BEFORE_EVERYTHING) == 0
    assert await client.store.prune(NOON + timedelta(seconds=1), BEFORE_EVERYTHING) == 1

    assert await client.ask_one(long_ago) == TooOld(horizon_s=int(HORIZON.total_seconds()))
    assert isinstance(await client.ask_one(a_claim()), AlreadyClaimed)
    assert await client.ask_one(a_release()) == Released(freed=True)
    assert await client.ask_one(structs.replace(long_ago, issued_at=NOON)) == Claimed()


async def test_pruning_forgets_of_the_log_only_what_was_published(client: StoreClient) -> None:
    assert await client.store.prune(BEFORE_EVERYTHING, AFTER_EVERYTHING) == 0
    async with client.store.lead_feed() as feed:
        assert feed is not None
        await feed.mark(1, (await feed.read()).cursor)
        await client.ask(a_claim())

        assert await client.store.prune(BEFORE_EVERYTHING, AFTER_EVERYTHING) > 0

        assert [usage.id for usage in (await feed.read()).usage] == [HOST]


async def test_the_audit_finds_what_contradicts_itself(client: StoreClient) -> None:
    assert await client.store.audit() == ()
    await client.ask(a_claim(a_share(HOST), WEB), a_claim(a_share(OTHER_HOST), DB))
    web, db = await client.row(WEB), await client.row(DB)
    planted = (
        ClaimChanges(touched=(Touched(HOST, 5, {**NOTHING_USED, "VCPU": 3}),)),
        ClaimChanges(consumers=(structs.replace(web, ended_at=NOON),)),
        ClaimChanges(consumers=(db,), held=((DB, ()),)),
    )

    found = []
    for changes in planted:
        async with client.store.transaction() as tx:
            await tx.lock_claims(
                keys_of_orders((a_release(WEB), a_release(DB), a_claim(), a_claim(a_share(OTHER_HOST))))
            )
            await tx.write_claims(changes)
        found.append(" ".join(await client.store.audit()))

    assert str(HOST) in found[0]
    assert str(WEB) in found[1]
    assert str(db.id) in found[2]
    assert str(OTHER_HOST) in found[2]


async def test_the_changes_since_a_cursor_are_what_was_written_since(client: StoreClient) -> None:
    since = (await client.store.snapshot_page(0, 10)).cursor
    nothing = await client.store.changes_page(since, 0, 10)
    await client.ask(a_claim())

    page = await client.store.changes_page(since, 0, 10)

    assert nothing is not None
    assert (nothing.providers, nothing.gone, nothing.next) == ((), (), None)
    assert page is not None
    assert page.providers == (await client.provider(HOST),)
    assert (page.since, page.next) == (since, None)
    later = await client.store.changes_page(page.cursor, 0, 10)
    assert later is not None
    assert later.providers == ()


async def test_changes_are_told_whether_or_not_they_were_published(
    client: StoreClient, feed: ChangeFeed
) -> None:
    since = (await client.store.snapshot_page(0, 10)).cursor
    await client.ask(a_claim())
    await feed.mark(2, (await feed.read()).cursor)
    await client.ask(a_claim(a_share(OTHER_HOST), DB))

    page = await client.store.changes_page(since, 0, 10)

    assert page is not None
    assert names(page.providers) == ["host-1", "host-2"]
    assert page.published == feed.published


async def test_the_cursor_of_the_feed_is_one_since_which_changes_can_be_asked(
    client: StoreClient, feed: ChangeFeed
) -> None:
    await client.ask(a_claim())
    since = (await feed.read()).cursor
    await client.ask(a_claim(a_share(OTHER_HOST), DB))

    page = await client.store.changes_page(since, 0, 10)

    assert page is not None
    assert names(page.providers) == ["host-2"]


async def test_changes_come_in_pages_by_internal_id(client: StoreClient) -> None:
    since = (await client.store.snapshot_page(0, 10)).cursor
    for number in range(3, 8):
        await client.report(a_host(f"host-{number}"))

    pages = []
    after: int | None = 0
    while after is not None:
        page = await client.store.changes_page(since, after, 2)
        assert page is not None
        pages.append(names(page.providers))
        after = page.next

    assert pages == [["host-3", "host-4"], ["host-5", "host-6"], ["host-7"]]


async def test_the_changes_tell_who_is_gone(client: StoreClient) -> None:
    since = (await client.store.snapshot_page(0, 10)).cursor
    last = await client.provider(HOST)
    await client.report(a_report(removed=(HOST,)))

    page = await client.store.changes_page(since, 0, 10)

    assert page is not None
    assert page.providers == ()
    assert [(gone.id, gone.internal) for gone in page.gone] == [(HOST, last.internal)]


async def test_since_a_cursor_that_the_log_has_forgotten_nothing_can_be_told(
    client: StoreClient, feed: ChangeFeed
) -> None:
    forgotten = (await client.store.snapshot_page(0, 10)).cursor
    await client.ask(a_claim())
    await feed.mark(2, (await feed.read()).cursor)
    remembered = (await client.store.snapshot_page(0, 10)).cursor

    assert await client.store.changes_page(forgotten, 0, 10) is not None
    assert await client.store.prune(BEFORE_EVERYTHING, AFTER_EVERYTHING) > 0

    assert await client.store.changes_page(forgotten, 0, 10) is None
    assert await client.store.changes_since(forgotten) is None
    rest = await client.store.changes_page(remembered, 0, 10)
    assert rest is not None
    assert rest.providers == ()
    # An empty log does not number from the start again.
    again = await client.store.changes_page(rest.cursor, 0, 10)
    assert again is not None


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "9999999999999",
        "1:9999999999999:",
        "9999999999:9999999999:",
        "9:3:",
        "3:9:8,5",
        "3:4:5",
        "0:0:",
        "-1",
    ],
)
async def test_since_a_cursor_of_other_books_nothing_can_be_told(client: StoreClient, cursor: str) -> None:
    assert await client.store.changes_page(cursor, 0, 10) is None
    assert await client.store.changes_since(cursor) is None


async def test_who_follows_by_itself_is_told_of_claims_only_what_is_used(client: StoreClient) -> None:
    since = (await client.store.snapshot_page(0, 10)).cursor
    nothing = await client.store.changes_since(since)
    assert nothing is not None
    assert nothing == Unpublished(cursor=nothing.cursor)

    await client.ask_one(a_claim(a_share(asked=amounts(HOST, VCPU=3))))
    await client.report(a_host("host-2", VCPU=9), a_host("host-3"))
    changes = await client.store.changes_since(since)
    assert changes is not None
    assert [(usage.id, usage.used["VCPU"]) for usage in changes.usage] == [(HOST, 3)]
    assert names(changes.providers) == ["host-2", "host-3"]

    await client.report(a_report(removed=(OTHER_HOST,), root=OTHER_HOST))
    later = await client.store.changes_since(changes.cursor)
    assert later is not None
    assert ([one.id for one in later.gone], later.usage, later.providers) == ([OTHER_HOST], (), ())


async def test_revisions_are_those_of_all_providers(client: StoreClient) -> None:
    await client.ask(a_claim(), a_release())
    await client.report(a_host("host-3"))
    states = sorted((await client.providers()).values(), key=lambda state: state.internal)

    first = await client.store.revisions_page(0, 2)
    assert first.next is not None
    second = await client.store.revisions_page(first.next, 2)

    assert (len(first.internals), second.next) == (2, None)
    assert first.internals + second.internals == tuple(state.internal for state in states)
    assert first.revisions + second.revisions == tuple(state.revision for state in states)
