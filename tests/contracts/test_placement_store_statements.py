"""The statements that lock claims on PostgreSQL: how many there are, and what they return after they have waited."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from bus.messages.placement import ClaimResources
from engine.refusals import Claimed, DoesNotFit
from kit.sql import PostgresSession
from placement_worker.core.claims import keys_of_orders
from placement_worker.core.ledger import ClaimKeys, Ledger
from placement_worker.store_sql import PlacementStore
from placement_worker.store_sql.postgres_claims import PostgresClaims
from placement_worker.view import ProviderView
from tests.contracts import placement_orders as orders
from tests.contracts.sql_stores import LOCKS_AWAITED, a_session, as_owner, end_sessions, migrated_database
from tests.contracts.store_client import StoreClient, leading
from tests.running import closing
from tests.waiting import until

pytestmark = pytest.mark.postgresql

HOST = orders.provider("host-1")


class _Listed(PostgresClaims):
    """Lists the statements that lock claims and go to asyncpg directly, by what each is about."""

    seen: tuple[str, ...] = ()

    async def lock(self, keys: ClaimKeys) -> Ledger:
        statements: list[str] = []
        driver = await self._transaction.driver()
        with driver.query_logger(lambda told: statements.append(told.query)):
            ledger = await super().lock(keys)
            # asyncpg tells of a statement in a later turn of the loop.
            await asyncio.sleep(0)
        type(self).seen = tuple(name for each in statements for name in _names_of(each))
        return ledger


# asyncpg's own statements, about types, have none of these.
_NAMES = {
    "INSERT INTO consumers": "make consumers, lock roots",
    "FOR NO KEY UPDATE": "lock roots",
    "FROM consumers": "lock consumers",
    "JOIN providers AS root": "find",
}


def _names_of(statement: str) -> list[str]:
    return [name for mark, name in _NAMES.items() if mark in statement][:1]


class _ListingStore(PlacementStore):
    postgres_claims = _Listed


@asynccontextmanager
async def a_cloud() -> AsyncIterator[tuple[str, StoreClient]]:
    """The database, and a client that has not seen the host yet."""
    async with (
        migrated_database("postgresql") as url,
        closing(_ListingStore(url), PlacementStore(url)) as (store, first),
    ):
        await StoreClient(first).report_one(orders.a_host("host-1", VCPU=4))
        yield url, StoreClient(store)


def a_claim(name: str, vcpus: int = 1) -> ClaimResources:
    return orders.a_claim(orders.a_share(HOST, orders.amounts(HOST, VCPU=vcpus)), orders.consumer(name))


async def test_a_claim_finds_its_host_once_and_locks_by_one_statement() -> None:
    async with a_cloud() as (_, client):
        seen = []
        for name in ("first", "second"):
            assert isinstance(await client.ask_one(a_claim(name)), Claimed)
            seen.append(_Listed.seen)

    assert seen == [
        ("find", "make consumers, lock roots"),
        ("make consumers, lock roots",),
    ]


async def test_consumers_that_exist_are_locked_before_any_root() -> None:
    async with a_cloud() as (_, client):
        await client.ask_one(a_claim("first"))

        await client.ask(a_claim("first"), a_claim("second"))

    assert _Listed.seen == ("make consumers, lock roots", "lock consumers", "lock roots")


async def test_what_was_claimed_while_a_claim_waited_for_the_host_counts() -> None:
    async with a_cloud() as (url, client):
        await client.ask_one(a_claim("first"))
        async with a_session(as_owner(url)) as owner:
            async with owner.transaction():
                await owner.execute("UPDATE providers SET used = replace(used, ':1}', ':4}')")
                waiting = asyncio.create_task(client.ask_one(a_claim("second")))
                await until(lambda: owner.fetchval(LOCKS_AWAITED), "it waits for a lock")
            verdict = await waiting

    assert isinstance(verdict, DoesNotFit)
    assert [(short.asked, short.free) for short in verdict.shortfalls] == [(1, 0)]


async def test_pruning_passes_over_consumers_that_a_claim_has_locked() -> None:
    async with a_cloud() as (_, client):
        await client.ask(a_claim("first"), orders.a_release(orders.consumer("first")))
        later = orders.NOON + timedelta(seconds=1)
        async with client.store.transaction() as tx, asyncio.timeout(10):
            await tx.lock_claims(keys_of_orders((a_claim("first"),)))
            assert await client.store.prune(later, orders.LONG_AGO) == 0

        assert await client.store.prune(later, orders.LONG_AGO) == 1


READERS = 4


@asynccontextmanager
async def a_reader() -> AsyncIterator[tuple[str, PlacementStore, StoreClient]]:
    """A store with a host of which WEB holds something; and another store that writes."""
    async with (
        migrated_database("postgresql") as url,
        closing(PlacementStore(url), PlacementStore(url)) as (reader, writer),
    ):
        client = StoreClient(writer)
        await client.report_one(orders.a_host("host-1", VCPU=4))
        await client.ask_one(a_claim("web"))
        yield url, reader, client


@asynccontextmanager
async def statements_of(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[str]]:
    """The statements that go to the server meanwhile. asyncpg tells of one in a later turn of the loop."""
    said: list[str] = []
    sessions: set[Any] = set()
    opened = PostgresSession.__init__

    def noted(self: PostgresSession, connection: Any, driver: Any, settings: Any) -> None:
        opened(self, connection, driver, settings)
        driver.add_query_logger(lambda told: said.append(told.query))
        sessions.add(driver)

    monkeypatch.setattr(PostgresSession, "__init__", noted)
    yield said
    monkeypatch.setattr(PostgresSession, "__init__", opened)


async def test_a_poll_of_the_feed_is_one_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        statements_of(monkeypatch) as said,
        a_reader() as (_, reader, client),
        leading(reader) as feed,
    ):
        await feed.read()
        for _ in range(3):
            await asyncio.sleep(0)
        said.clear()

        assert (await feed.read()).usage == ()
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(said) == 1, said

        await client.ask_one(a_claim("db"))
        polled = await feed.read()
        assert [each.used["VCPU"] for each in polled.usage] == [2]
        assert [each.consumer for each in polled.claimed] == [orders.DB]


async def test_sessions_that_the_server_has_ended_are_not_noticed() -> None:
    async with a_reader() as (url, reader, _):
        view = ProviderView(reader)
        await view.caught_up()
        for _ in range(3):
            assert all(await asyncio.gather(*[reader.consumer(orders.WEB) for _ in range(READERS)]))
            assert await end_sessions(url) >= READERS
            assert all(await asyncio.gather(*[reader.consumer(orders.WEB) for _ in range(READERS)]))
            assert (await view.caught_up()).get(HOST) is not None
        await view.close()
