"""An audit's reads and writes, on each store: pages of consumers, mends by compare-and-set, and the recount."""

import asyncio

import pytest
from msgspec import structs

from bus.messages.audit import BookEntry, MendConsumer, MendedClaim, SeenConsumer
from bus.messages.books import ConsumerMoved, Done
from engine.refusals import Released
from kit.clock import now
from kit.sql import open_database, write_once
from placement_worker.store_sql import PlacementStore, consumers
from tests.contracts.placement_orders import (
    DB,
    GROUP,
    HOST,
    OTHER_HOST,
    WEB,
    a_claim,
    a_host,
    a_release,
    a_share,
    amounts,
    consumer,
)
from tests.contracts.sql_stores import migrated_database
from tests.contracts.store_client import StoreClient
from tests.contracts.stores import open_store
from tests.running import closing


async def entry_of_web(client: StoreClient) -> BookEntry:
    (found,) = await client.store.book_entries([WEB], None)
    return found


CLAIM = MendedClaim(
    cell="c1", attempt=1, share=a_share(OTHER_HOST, amounts(OTHER_HOST, VCPU=2)), project="bank", user="bob"
)


async def test_the_consumers_that_hold_something_come_page_by_page(client: StoreClient) -> None:
    names = [consumer(f"c{number}") for number in range(5)]
    await client.ask(*[a_claim(a_share(HOST if n % 2 else OTHER_HOST), who) for n, who in enumerate(names)])
    await client.ask(a_release(names[0]))
    left = sorted(names[1:])

    first = await client.store.books_page(None, 3)
    rest = await client.store.books_page(first[-1].id, 3)

    assert [each.id for each in (*first, *rest)] == left
    # By their ids those come, too, that hold nothing; unknown ones do not.
    found = await client.store.book_entries([*names, DB], None)
    assert [each.id for each in found] == sorted(names)
    (ended,) = [each for each in found if each.id == names[0]]
    assert (ended.ended, ended.held, ended.host) == (True, (), None)


async def test_which_consumers_are_new_is_read_from_the_log_in_pages(
    client: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "FEED_ENTRIES", 2)
    began = now()
    names = [consumer(f"c{number}") for number in range(5)]
    for who in names:
        await client.ask(a_claim(a_share(HOST, amounts(HOST, MEMORY_MB=1)), who))
    await client.ask(a_release(names[0]))

    found = await client.store.book_entries(names, began)
    later = await client.store.book_entries(names, now())

    assert [each.is_new for each in found] == [True] * 5
    assert [each.is_new for each in later] == [False] * 5


async def test_a_mend_corrects_amounts_host_and_row_at_once(client: StoreClient) -> None:
    await client.ask(a_claim(a_share(HOST, amounts(HOST, VCPU=3))))
    group = structs.replace(GROUP, policy="affinity")
    before = await entry_of_web(client)
    seen = SeenConsumer(generation=before.generation, attempt=before.attempt, ended=before.ended)
    mend = MendConsumer(consumer=WEB, seen=seen, claim=structs.replace(CLAIM, group=group))

    assert await client.mend(mend) == (Done(),)

    mended = await entry_of_web(client)
    assert (mended.host, mended.held) == (OTHER_HOST, amounts(OTHER_HOST, VCPU=2))
    assert (mended.project, mended.user, mended.group, mended.generation) == ("bank", "bob", group.id, 2)
    assert await client.mend(mend) == (ConsumerMoved(consumer=WEB, seen=1, current=2),)
    # The instance's own life goes on by its attempt.
    assert await client.ask_one(a_release(WEB)) == Released(freed=True)


WRONG = (
    "UPDATE providers SET used = replace(used, ':1', ':3'), consumers = consumers + 2",
    "UPDATE providers SET used = '{}'",
    "DELETE FROM holders",
    "DELETE FROM consumers",
    "UPDATE consumers SET held = '{}', ended_at = '2024-05-17T12:00:00.000000+00:00', host = NULL",
    "INSERT INTO holders SELECT 4711, id FROM consumers",
)


@pytest.mark.parametrize("statement", WRONG)
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
async def test_a_recount_brings_the_numbers_in_line_and_tells_the_pictures(kind: str, statement: str) -> None:
    async with migrated_database(kind) as url, closing(PlacementStore(url)) as (store,):
        client = StoreClient(store)
        await client.report(a_host("host-1"), a_host("host-2"))
        await client.ask(a_claim(), a_claim(a_share(OTHER_HOST), DB))
        cursor = (await store.snapshot_page(0, 10)).cursor
        await _do(url, statement)
        assert await store.audit()

        wrong = {each.id: each for each in (await store.snapshot_page(0, 10)).providers}

        await client.recount()

        assert await store.audit() == ()
        changed = await store.changes_since(cursor)
        assert changed is not None
        now = {each.id: each for each in (await store.snapshot_page(0, 10)).providers}
        counted = {id_ for id_, each in now.items() if each.revision > wrong[id_].revision}
        assert {each.id for each in changed.usage} == counted
        assert counted >= {id_ for id_, each in now.items() if each.inventories != wrong[id_].inventories}
        for usage in changed.usage:
            assert usage.used == {name: stock.used for name, stock in now[usage.id].inventories.items()}
        # Claims go on from the right numbers.
        four = a_share(HOST, amounts(HOST, VCPU=4), shapes={})
        (verdict,) = await client.ask(a_claim(four, consumer("next")))
        free = 4 - now[HOST].inventories["VCPU"].used
        assert (type(verdict).__name__ == "Claimed") == (free == 4)


@pytest.mark.postgresql
async def test_hosts_may_register_while_the_numbers_are_recounted() -> None:
    async with open_store("postgresql") as store:
        client = StoreClient(store)

        async def register() -> None:
            for number in range(300):
                await client.report(a_host(f"new-{number}"))

        registering = asyncio.create_task(register())
        recounts = 0
        while not registering.done():
            await client.recount()
            recounts += 1
        await registering

        assert recounts
        assert len((await store.snapshot_page(0, 1000)).providers) == 300
        assert await store.audit() == ()


async def _do(url: str, statement: str) -> None:
    async with closing(open_database(url)) as (database,):
        await write_once(database, lambda connection: connection.exec_driver_sql(statement))
