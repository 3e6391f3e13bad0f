"""The commonest reads on PostgreSQL, of the holdings of a consumer and of news in the log: each is one statement, without a transaction."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from engine.inventories import ConsumerId
from kit.sql import PostgresSession
from placement_worker.store_sql import PlacementStore
from placement_worker.view import ProviderView
from tests.contracts import placement_orders as orders
from tests.contracts.sql_stores import as_owner, migrated_database
from tests.contracts.store_client import StoreClient

pytestmark = [pytest.mark.asyncio, pytest.mark.postgresql]

HOST = orders.provider("host-1")
READERS = 4


@asynccontextmanager
async def a_reader() -> AsyncIterator[tuple[str, PlacementStore, StoreClient]]:
    """A store with a host of which WEB holds something; and another store that writes."""
    async with migrated_database("postgresql") as url:
        reader, writer = PlacementStore(url), PlacementStore(url)
        try:
            client = StoreClient(writer)
            await client.report_one(orders.a_host("host-1", VCPU=4))
            await client.ask_one(a_claim(orders.WEB))
            yield url, reader, client
        finally:
            await writer.close()
            await reader.close()


def a_claim(who: ConsumerId) -> Any:
    return orders.a_claim(orders.a_share(HOST, orders.amounts(HOST, VCPU=1)), who)


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
        reader.lead_feed() as feed,
    ):
        assert feed is not None
        first = await feed.read()
        await feed.mark(1, first.cursor)
        await feed.read()
        for _ in range(3):
            await asyncio.sleep(0)
        said.clear()

        assert (await feed.read()).usage == ()
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(said) == 1, said

        await client.ask_one(a_claim(orders.DB))
        polled = await feed.read()
        assert [each.used["VCPU"] for each in polled.usage] == [2]
        assert [each.consumer for each in polled.claimed] == [orders.DB]


async def test_sessions_that_the_server_has_ended_are_not_noticed() -> None:
    async with a_reader() as (url, reader, _):
        view = ProviderView(reader)
        await view.caught_up()
        for _ in range(3):
            assert all(await asyncio.gather(*[reader.consumer(orders.WEB) for _ in range(READERS)]))
            plain = make_url(as_owner(url)).set(drivername="postgresql")
            owner = await asyncpg.connect(plain.render_as_string(hide_password=False))
            ended = await owner.fetchval(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            assert ended >= READERS
            await owner.close()
            assert all(await asyncio.gather(*[reader.consumer(orders.WEB) for _ in range(READERS)]))
            assert (await view.caught_up()).get(HOST) is not None
        await view.close()
