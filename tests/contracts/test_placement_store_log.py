"""The change log and its readers: one leader publishes it, readers are told page by page, and views follow it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import structs

from bus.messages.placement import ClaimResources, LogPosition
from engine.inventories import ConsumerId, Holder
from engine.refusals import AlreadyClaimed, Claimed, Released, TooOld
from kit.errors import Transient
from kit.sql import open_database, write_once
from placement_worker.core.claims import keys_of_orders
from placement_worker.core.ledger import ClaimChanges, Touched
from placement_worker.store import Unpublished
from placement_worker.store_sql import PlacementStore, log
from placement_worker.store_sql.log import ChangeFeed, begin_term
from placement_worker.view import ProviderView
from tests.contracts.placement_orders import (
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
    amounts,
    consumer,
    inventories,
    provider,
)
from tests.contracts.sql_stores import LOCKS_AWAITED, a_session, as_owner, migrated_database
from tests.contracts.store_client import StoreClient, leading, names, pages_of
from tests.contracts.stores import STORES, undone
from tests.narrowing import must_be, present
from tests.running import closing
from tests.waiting import until

BEFORE_EVERYTHING = datetime(2000, 1, 1, tzinfo=UTC)
AFTER_EVERYTHING = datetime(2100, 1, 1, tzinfo=UTC)
# The usage of a host.
NOTHING_USED = {"VCPU": 0, "MEMORY_MB": 0}


@pytest.fixture
async def feed(client: StoreClient) -> AsyncIterator[ChangeFeed]:
    """A feed that has read everything so far."""
    async with leading(client.store) as feed:
        yield feed


async def test_pages_together_hold_every_provider_once_by_internal_id(client: StoreClient) -> None:
    for number in range(4, 8):
        await client.report(a_host(f"host-{number}"))
    await client.report(a_report(a_provider("numa-1", HOST, inventories(VGPU=1))))
    await client.report(a_report(root=provider("host-4"), removed=(provider("host-4"),)))

    pages = await pages_of(lambda after: client.store.snapshot_page(after, limit=3))

    assert [len(page.providers) for page in pages] == [3, 3, 1]
    together = [state for page in pages for state in page.providers]
    assert names(together) == ["host-1", "host-2", "host-3", "host-5", "host-6", "host-7", "numa-1"]
    internals = [state.internal for state in together]
    assert internals == sorted(set(internals))


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


async def test_what_was_rolled_back_is_not_told(client: StoreClient, feed: ChangeFeed) -> None:
    async with undone(client.store.transaction(), asyncio.CancelledError) as tx:
        await tx.lock_claims(keys_of_orders((a_claim(),)))
        await tx.write_claims(
            ClaimChanges(
                touched=(Touched(HOST, 9, NOTHING_USED),), claimed=(Holder(consumer=WEB, attempt=1),)
            )
        )

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
    async with leading(client.store) as feed:
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
    async with (
        migrated_database(kind) as url,
        closing(open_database(url)) as (database,),
        closing(PlacementStore(url)) as (store,),
        leading(store) as feed,
    ):
        await write_once(database, begin_term)

        with pytest.raises(Transient, match="is over"):
            await feed.mark(1, (await feed.read()).cursor)


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
    async with leading(client.store) as feed:
        await client.ask(a_claim())

        assert await client.store.prune(BEFORE_EVERYTHING, AFTER_EVERYTHING) > 0

        assert [usage.id for usage in (await feed.read()).usage] == [HOST]


async def test_the_changes_since_a_cursor_are_what_was_written_since(client: StoreClient) -> None:
    since = (await client.store.snapshot_page(0, 10)).cursor
    nothing = await client.changes(since)
    await client.ask(a_claim())

    page = await client.changes(since)

    assert (nothing.providers, nothing.gone, nothing.next) == ((), (), None)
    assert page.providers == (await client.provider(HOST),)
    assert (page.since, page.next) == (since, None)
    assert (await client.changes(page.cursor)).providers == ()


async def test_changes_come_in_pages_by_internal_id(client: StoreClient) -> None:
    since = (await client.store.snapshot_page(0, 10)).cursor
    for number in range(4, 9):
        await client.report(a_host(f"host-{number}"))

    pages = await pages_of(lambda after: client.changes(since, after, limit=2))

    together = [names(page.providers) for page in pages]
    assert together == [["host-4", "host-5"], ["host-6", "host-7"], ["host-8"]]


async def test_since_a_cursor_that_the_log_has_forgotten_nothing_can_be_told(
    client: StoreClient, feed: ChangeFeed
) -> None:
    forgotten = (await client.store.snapshot_page(0, 10)).cursor
    await client.ask(a_claim())
    await feed.mark(2, (await feed.read()).cursor)
    remembered = (await client.store.snapshot_page(0, 10)).cursor

    await client.changes(forgotten)
    assert await client.store.prune(BEFORE_EVERYTHING, AFTER_EVERYTHING) > 0

    assert await client.store.changes_page(forgotten, 0, 10) is None
    assert await client.store.changes_since(forgotten) is None
    rest = await client.changes(remembered)
    assert rest.providers == ()
    # An empty log does not number from the start again.
    await client.changes(rest.cursor)


def claiming(who: ConsumerId) -> ClaimResources:
    return a_claim(a_share(HOST, amounts(HOST, MEMORY_MB=1)), who)


async def prune_alone(client: StoreClient, logged_before: datetime = AFTER_EVERYTHING) -> int:
    """As an HTTP API does, which may have no placement worker beside it."""
    return await must_be(PlacementStore, client.store).prune(
        BEFORE_EVERYTHING, logged_before, unpublished_too=True
    )


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of changes gets fewer than four entries of the log, and the pruner deletes two at once."""
    monkeypatch.setattr(log, "CHANGES_MAX", 4)
    monkeypatch.setattr(log, "PRUNED_MAX", 2)


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("changes_more", [False, True], ids=["usage", "providers"])
async def test_a_reader_that_missed_more_than_is_read_at_once_is_told_to_read_all(
    client: StoreClient, *, changes_more: bool
) -> None:
    since = (await client.store.snapshot_page(0, 10)).cursor
    vms = [consumer(f"vm-{number}") for number in range(4)]
    for each in vms[:2]:
        await client.ask(claiming(each))
    if changes_more:
        await client.report(a_host("host-4"))
    else:
        await client.ask(claiming(vms[2]))

    page, changes = await client.changes(since), await client.store.changes_since(since)
    assert names(page.providers) == (["host-1", "host-4"] if changes_more else ["host-1"])
    assert [each.consumer for each in present(changes).claimed] == (vms[:2] if changes_more else vms[:3])

    await client.ask(claiming(vms[3]))
    assert await client.store.changes_page(since, 0, 10) is None
    assert await client.store.changes_since(since) is None
    await client.changes(page.cursor)


@pytest.mark.hits("the change log does not reach back so far: all providers are read again")
@pytest.mark.usefixtures("few_at_once")
async def test_a_copy_of_all_providers_is_read_anew_when_too_much_has_changed(client: StoreClient) -> None:
    view = ProviderView(client.store)

    async def used() -> int:
        state = present((await view.caught_up()).get(HOST))
        return state.inventories["MEMORY_MB"].used

    await used()
    for number in range(3):
        await client.ask(claiming(consumer(f"vm-{number}")))
    assert (await used(), view.readings_of_all) == (3, 1)

    for number in range(3, 9):
        await client.ask(claiming(consumer(f"vm-{number}")))
    assert (await used(), view.readings_of_all) == (9, 2)
    await client.ask(a_release(consumer("vm-1")))
    assert (await used(), view.readings_of_all) == (8, 2)
    await view.close()


@pytest.mark.usefixtures("few_at_once")
async def test_a_log_that_nobody_publishes_is_pruned_by_its_age_in_parts(client: StoreClient) -> None:
    before = (await client.store.snapshot_page(0, 10)).cursor
    for number in range(5):
        await client.ask(claiming(consumer(f"vm-{number}")))

    async def seen_all() -> str | None:
        """A transaction beside, also one of another database of the server, holds the cursor back. One that the cursor has
        missed may be one of those that are pruned, so such a reader must read all again.
        """
        cursor = (await client.store.snapshot_page(0, 10)).cursor
        seen = log.Snapshot.of(cursor)
        rest = await client.store.changes_since(cursor)
        has_missed = seen is not None and bool(seen.missed)
        return cursor if rest is not None and not rest.claimed and not has_missed else None

    remembered = await until(seen_all, "a reader has seen all")

    assert await prune_alone(client, BEFORE_EVERYTHING) == 0
    assert await client.store.prune(BEFORE_EVERYTHING, AFTER_EVERYTHING) == 0
    assert await prune_alone(client) >= 5

    # A reader that missed some of it is told so; one that saw all goes on, and so does the next leader.
    assert await client.store.changes_since(before) is None
    await client.ask(a_claim(a_share(OTHER_HOST), WEB))
    rest = present(await client.store.changes_since(remembered))
    assert [each.consumer for each in rest.claimed] == [WEB]
    async with client.store.lead_feed() as feed:
        assert [each.consumer for each in (await present(feed).read()).claimed] == [WEB]


async def test_a_log_with_a_publisher_is_pruned_by_nobody_before_it_is_published(
    client: StoreClient, feed: ChangeFeed
) -> None:
    await client.ask(a_claim())

    await prune_alone(client)

    assert [usage.id for usage in (await feed.read()).usage] == [HOST]
    await feed.mark(2, (await feed.read()).cursor)
    assert await prune_alone(client) > 0


@pytest.mark.parametrize("kind", STORES[1:])
async def test_a_pruner_that_waits_takes_nothing_back_that_is_published_meanwhile(kind: str) -> None:
    async with (
        migrated_database(kind) as url,
        closing(PlacementStore(url)) as (store,),
        a_session(as_owner(url)) as other,
    ):
        client = StoreClient(store)
        await client.report(a_host("host-1"), a_host("host-2"))
        async with leading(store) as feed:
            # Its delete is undone, and the pruner goes on.
            async with undone(other.transaction()):
                assert await other.fetch("DELETE FROM change_log RETURNING 1")
                pruning = asyncio.create_task(store.prune(BEFORE_EVERYTHING, AFTER_EVERYTHING))
                await until(lambda: other.fetchval(LOCKS_AWAITED), "the pruner waits for a row")
                await client.ask(a_claim())
                published = (await feed.read()).cursor
                await feed.mark(2, published)
            assert await pruning > 0
        assert await other.fetchval("SELECT cursor FROM feed") == published
