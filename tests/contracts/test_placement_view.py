"""Contract of the view: before each answer it has everything that was committed, by any process, on every store."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec import structs

from bus.messages.administration import ConsumerAllocations, Done, SetAllocations
from bus.messages.placement import SnapshotPage
from engine.inventories import ProviderState
from kit.errors import Transient
from placement_worker import admin_writes as writes
from placement_worker.store import PlacementStore, Unpublished
from placement_worker.store_sql import SqlPlacementStore
from placement_worker.view import FROZEN_MIN, TRIES_MAX, ProviderReplica, ProviderView
from tests.contracts.placement_orders import (
    HOST,
    NOON,
    OTHER_HOST,
    VOCABULARY,
    a_claim,
    a_host,
    a_provider,
    a_release,
    a_report,
    a_share,
    aggregate,
    amounts,
    consumer,
    inventories,
    provider,
)
from tests.contracts.sql_stores import migrated_database
from tests.contracts.store_client import StoreClient, used
from tests.contracts.stores import STORES, open_store

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def a_view(kind: str, page: int = 1000) -> AsyncIterator[tuple[StoreClient, ProviderView]]:
    async with open_store(kind) as store:
        view = ProviderView(store, page)
        try:
            yield StoreClient(store), view
        finally:
            await view.close()


def names(replica: ProviderReplica) -> set[str]:
    return {state.name for state in replica}


@pytest.mark.parametrize("kind", STORES)
async def test_what_was_written_before_a_question_is_in_its_answer(kind: str) -> None:
    async with a_view(kind) as (client, view):
        assert names(await view.caught_up()) == set()

        await client.report(a_host("host-1"), a_host("host-2"))
        assert names(await view.caught_up()) == {"host-1", "host-2"}

        await client.ask(a_claim(a_share(asked=amounts(HOST, VCPU=3))))
        replica = await view.caught_up()
        assert used(the_host(replica)) == {"VCPU": 3, "MEMORY_MB": 0}
        row = replica.index.row_of(HOST)
        assert row is not None
        assert replica.index.used(row, "VCPU") == 3

        await client.ask(a_release())
        assert used(the_host(await view.caught_up())) == {"VCPU": 0, "MEMORY_MB": 0}
        assert view.readings_of_all == 1


def the_host(replica: ProviderReplica) -> ProviderState:
    state = replica.get(HOST)
    assert state is not None
    return state


class _RestoredBooks:
    """The books of one store, and from some moment on those of another one: the database was restored from a backup."""

    def __init__(self, store: PlacementStore) -> None:
        self.store = store

    async def snapshot_page(self, after: int, limit: int) -> SnapshotPage:
        return await self.store.snapshot_page(after, limit)

    async def changes_since(self, since: str) -> Unpublished | None:
        return await self.store.changes_since(since)


async def test_a_view_shows_what_a_restored_database_has_though_it_has_seen_later_revisions() -> None:
    async with open_store("sqlite") as lost, open_store("sqlite") as backup:
        await StoreClient(backup).report(a_host("host-1"))
        await StoreClient(lost).report(a_host("host-1"))
        await StoreClient(lost).ask(a_claim(a_share(asked=amounts(HOST, VCPU=3))))
        await StoreClient(lost).report(a_host("host-2"))
        books = _RestoredBooks(lost)
        view = ProviderView(books)
        assert used(the_host(await view.caught_up()))["VCPU"] == 3

        books.store = backup
        replica = await view.caught_up()

        assert used(the_host(replica))["VCPU"] == 0
        assert names(replica) == {"host-1"}
        await StoreClient(backup).report(a_host("host-3"))
        assert names(await view.caught_up()) == {"host-1", "host-3"}
        await view.close()


@pytest.mark.parametrize("kind", STORES)
async def test_a_provider_is_found_by_its_name_its_tree_and_what_it_has_as_they_are_now(kind: str) -> None:
    nic = provider("nic")
    async with a_view(kind) as (client, view):
        await client.report(
            a_report(
                a_provider("host-1", holds=inventories(VCPU=4), aggregates=(aggregate("rack"),)),
                a_provider("nic", parent=HOST, holds=inventories(VGPU=1), traits=("CUSTOM_FAST",)),
            )
        )
        replica = await view.caught_up()
        assert [state.id for state in replica.tree_of(nic)] == [HOST, nic]
        assert replica.has_name("traits", "CUSTOM_FAST")
        assert replica.has_name("classes", "VGPU")
        assert replica.index.members((aggregate("rack"),)).tolist() == [True, False]

        await client.report(
            a_report(
                a_provider("host-1", holds=inventories(VCPU=4), aggregates=()),
                a_provider("nic", parent=HOST, holds={}, traits=()),
            )
        )
        replica = await view.caught_up()
        assert not replica.has_name("traits", "CUSTOM_FAST")
        assert not replica.has_name("classes", "VGPU")
        assert not replica.index.members((aggregate("rack"),)).any()

        await client.report(a_report(a_provider("host-1"), removed=(nic,)))
        replica = await view.caught_up()
        assert replica.named("nic") is None
        assert [state.id for state in replica.tree_of(HOST)] == [HOST]


@pytest.mark.parametrize("kind", STORES)
async def test_changes_of_many_pages_are_all_read(kind: str) -> None:
    async with a_view(kind, page=2) as (client, view):
        await client.report(*[a_host(f"host-{number}") for number in range(5)])
        assert len(list(await view.caught_up())) == 5

        await client.report(*[a_host(f"host-{number}", VCPU=8) for number in range(7)])
        replica = await view.caught_up()
        assert {state.inventories["VCPU"].total for state in replica} == {8}
        assert len(list(replica)) == 7
        assert view.readings_of_all == 1


@pytest.mark.parametrize("kind", STORES)
async def test_where_the_log_does_not_reach_back_all_is_read_anew(kind: str) -> None:
    async with a_view(kind) as (client, view):
        await client.report(a_host("host-1"), a_host("host-2"))
        await view.caught_up()

        await client.report(a_report(removed=(OTHER_HOST,), root=OTHER_HOST))
        await client.report(a_host("host-3"))
        await forget_the_log(client.store)

        assert names(await view.caught_up()) == {"host-1", "host-3"}
        assert view.readings_of_all == 2


async def forget_the_log(store: PlacementStore) -> None:
    async with store.lead_feed() as feed:
        assert feed is not None
        unpublished = await feed.read()
        await feed.mark(1, unpublished.cursor)
    later = NOON.replace(year=3000)
    await store.prune(later, later)


@pytest.mark.parametrize("kind", STORES)
async def test_who_asks_while_a_reading_runs_shares_the_next_one(kind: str) -> None:
    async with a_view(kind) as (client, view):
        await client.report(a_host("host-1"))
        first = asyncio.create_task(view.caught_up())
        while view.readings == 0:
            await asyncio.sleep(0)

        await asyncio.gather(first, *[view.caught_up() for _ in range(50)])

        assert view.readings == 2


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
async def test_what_one_process_wrote_another_sees_at_once(kind: str) -> None:
    async with two_processes(kind) as (stores, views):
        batchers = [StoreClient(store) for store in stores]
        await batchers[0].report(a_host("host-1"))
        for turn in range(10):
            writer, reader = turn % 2, 1 - turn % 2
            await batchers[writer].ask(a_claim(attempt=turn + 1))
            assert used(the_host(await views[reader].caught_up()))["VCPU"] == 1
            await batchers[writer].ask(a_release(attempt=turn + 1))
            assert used(the_host(await views[reader].caught_up()))["VCPU"] == 0


@asynccontextmanager
async def two_processes(kind: str) -> AsyncIterator[tuple[list[SqlPlacementStore], list[ProviderView]]]:
    """Two stores as of two processes: each with its own connections and view."""
    async with migrated_database(kind) as url:
        stores = [SqlPlacementStore(url), SqlPlacementStore(url)]
        views = [ProviderView(store) for store in stores]
        try:
            yield stores, views
        finally:
            for view in views:
                await view.close()
            for store in stores:
                await store.close()


class FailingBooks:
    """A store whose reads fail `failures` times."""

    def __init__(self, store: PlacementStore, failures: int) -> None:
        self._store = store
        self._failures = failures

    async def snapshot_page(self, after: int, limit: int) -> SnapshotPage:
        if self._failures:
            self._failures -= 1
            raise Transient("the database is away")
        return await self._store.snapshot_page(after, limit)

    async def changes_since(self, since: str) -> Unpublished | None:
        return await self._store.changes_since(since)


async def test_a_reading_that_fails_is_tried_again() -> None:
    async with open_store("memory") as store:
        view = ProviderView(FailingBooks(store, failures=1))
        await StoreClient(store).report(a_host("host-1"))

        assert names(await view.caught_up()) == {"host-1"}
        await view.close()


async def test_a_reading_that_goes_on_failing_is_told_to_all_who_waited_and_the_next_one_is_a_new_one() -> (
    None
):
    async with open_store("memory") as store:
        view = ProviderView(FailingBooks(store, failures=TRIES_MAX))
        await StoreClient(store).report(a_host("host-1"))

        told = await asyncio.gather(*[view.caught_up() for _ in range(3)], return_exceptions=True)
        assert [type(one) for one in told] == [Transient] * 3
        assert names(await view.caught_up()) == {"host-1"}
        await view.close()


class ForgetfulBooks(FailingBooks):
    """A store whose change log lacks new providers."""

    async def changes_since(self, since: str) -> Unpublished | None:
        changes = await super().changes_since(since)
        return None if changes is None else structs.replace(changes, providers=())


async def test_where_the_log_has_lost_a_provider_all_is_read_anew() -> None:
    async with open_store("memory") as store:
        view = ProviderView(ForgetfulBooks(store, failures=0))
        await view.caught_up()
        await StoreClient(store).report(a_host("host-1"))
        assert names(await view.caught_up()) == set()

        await StoreClient(store).ask(a_claim())

        assert used(the_host(await view.caught_up()))["VCPU"] == 1
        assert view.readings_of_all == 2
        await view.close()


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
async def test_whoever_wrote_sees_it_wherever_it_asks_however_many_write_and_ask_at_once(kind: str) -> None:
    async with two_processes(kind) as (stores, views):
        generations = {provider(f"host-{number}"): 0 for number in range(5)}
        batchers = [writes.WriteBatcher(store, VOCABULARY, lambda: NOON) for store in stores]
        await StoreClient(stores[0]).report(*[a_host(f"host-{number}", VCPU=1_000) for number in range(5)])

        async def write_and_ask(number: int) -> None:
            who, host = consumer(f"consumer-{number}"), provider(f"host-{number % 5}")
            for turn in range(5):
                share = ConsumerAllocations(
                    consumer=who,
                    amounts=amounts(host, VCPU=turn + 1),
                    project="shop",
                    user="ann",
                    generation=turn or None,
                )
                assert await batchers[number % 2].ask(SetAllocations(consumers=(share,))) == Done()
                state = (await views[(number + turn) % 2].caught_up()).get(host)
                assert state is not None
                # Four others write to the same host: its usage is at least what this consumer holds.
                assert state.inventories["VCPU"].used >= turn + 1
                generations[host] = max(generations[host], state.generation)

        await asyncio.gather(*[write_and_ask(number) for number in range(20)])

        for view in views:
            replica = await view.caught_up()
            assert [used(state) for state in replica] == [{"VCPU": 20}] * 5
            assert all(state.generation >= generations[state.id] for state in replica)
            assert view.readings_of_all == 1


async def test_thousands_of_providers_that_were_read_are_no_work_for_the_collector() -> None:
    async with open_store("memory") as store:
        await StoreClient(store).report(*(a_host(f"host-{number}") for number in range(FROZEN_MIN - 1)))
        frozen = gc.get_freeze_count()
        await ProviderView(store).caught_up()
        assert gc.get_freeze_count() == frozen

        await StoreClient(store).report(a_host("one-more"))
        await ProviderView(store).caught_up()
        assert gc.get_freeze_count() > frozen
        gc.unfreeze()
