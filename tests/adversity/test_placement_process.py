"""A placement worker as a separate process on real servers: it is drained and killed, and its servers are restarted."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from uuid import UUID

import pytest

from bus.broker import Broker
from bus.messages.placement import ClaimAnswered, ClaimResources, ReportInventory
from bus.workers.station import Station
from engine.inventories import (
    ConsumerId,
    ProviderId,
    ReportedInventory,
    ReportedProvider,
    ResourceAmount,
    Share,
)
from engine.refusals import AlreadyClaimed, Claimed
from placement_worker.store_sql import SqlPlacementStore
from tests.contracts.rabbitmq_under_test import RabbitMQUnderTest
from tests.contracts.sql_stores import migrated_database
from tests.contracts.stage import PATIENCE_S, declared, station, until_empty
from tests.fork_server import ForkedProcess, start_module

pytestmark = [pytest.mark.asyncio, pytest.mark.rabbitmq, pytest.mark.postgresql]

HOSTS = 20
CLAIMS = 2000


def root(number: int) -> ProviderId:
    return ProviderId(UUID(int=1000 + number))


def report(number: int) -> ReportInventory:
    inventories = {"VCPU": ReportedInventory(total=CLAIMS)}
    provider = ReportedProvider(id=root(number), name=f"host-{number}", inventories=inventories)
    return ReportInventory(cell="c1", root=root(number), providers=(provider,))


def claim(number: int) -> ClaimResources:
    host = root(number % HOSTS)
    return ClaimResources(
        cell="c1",
        consumer=ConsumerId(UUID(int=10_000 + number)),
        attempt=1,
        issued_at=datetime.now(UTC),
        share=Share(host=host, amounts=(ResourceAmount(provider=host, resource="VCPU", amount=1),)),
    )


class Processes:
    """Placement workers on one broker and one database."""

    def __init__(self, bus_url: str, database_url: str) -> None:
        self._environment = {
            "PATH": os.environ["PATH"],
            "MOOR_BUS_URL": bus_url,
            "MOOR_DB_URL": database_url,
            "MOOR_LOG_LEVEL": "ERROR",
        }
        self.running: list[ForkedProcess] = []

    async def start(self) -> ForkedProcess:
        process = await start_module("placement_worker", env=self._environment)
        self.running.append(process)
        return process

    async def end(self) -> None:
        for process in self.running:
            if process.returncode is None:
                process.kill()
                await process.wait()


@asynccontextmanager
async def on_real_servers() -> AsyncIterator[tuple[RabbitMQUnderTest, Broker, Processes, SqlPlacementStore]]:
    under_test = await RabbitMQUnderTest.start()
    try:
        async with migrated_database("postgresql") as database_url:
            broker = await declared(under_test)
            processes = Processes(under_test.url(), database_url)
            store = SqlPlacementStore(database_url)
            try:
                yield under_test, broker, processes, store
                assert await store.audit() == ()
            finally:
                await processes.end()
                await store.close()
    finally:
        await under_test.close()


async def ask_for_all(client: Station) -> None:
    """Every claim is granted, whichever worker answers and however often it is asked."""
    answers = await client.ask_all([claim(n) for n in range(CLAIMS)])
    assert {type(answer.verdict) for answer in answers if isinstance(answer, ClaimAnswered)} <= {
        Claimed,
        AlreadyClaimed,
    }


async def used_in_all(store: SqlPlacementStore) -> int:
    page = await store.snapshot_page(0, 1000)
    return sum(provider.inventories["VCPU"].used for provider in page.providers)


async def test_told_to_stop_it_finishes_what_it_has_and_leaves_well() -> None:
    async with on_real_servers() as (_, broker, processes, store), station(broker, asks=True) as client:
        first = await processes.start()
        await client.ask_all([report(n) for n in range(HOSTS)])
        asking = asyncio.ensure_future(ask_for_all(client))
        await asyncio.sleep(0)
        first.send_signal(signal.SIGTERM)
        await processes.start()
        await asking
        async with asyncio.timeout(PATIENCE_S):
            assert await first.wait() == 0
        assert await used_in_all(store) == CLAIMS


async def test_killed_again_and_again_nothing_is_lost_and_nothing_claimed_twice() -> None:
    async with on_real_servers() as (_, broker, processes, store), station(broker, asks=True) as client:
        victim = await processes.start()
        await client.ask_all([report(n) for n in range(HOSTS)])
        asking = asyncio.ensure_future(ask_for_all(client))
        for _ in range(4):
            await until_some_more_are_used(store, asking)
            victim.kill()
            await victim.wait()
            victim = await processes.start()
        await asking
        assert await used_in_all(store) == CLAIMS
        await until_empty(broker, "placement.questions")


async def test_a_restarted_broker_and_cut_connections_do_not_matter() -> None:
    async with (
        on_real_servers() as (under_test, broker, processes, store),
        station(broker, asks=True) as client,
    ):
        await processes.start()
        await processes.start()
        await client.ask_all([report(n) for n in range(HOSTS)])
        asking = asyncio.ensure_future(ask_for_all(client))
        await under_test.cut_connections()
        await until_some_more_are_used(store, asking)
        await under_test.restart()
        await asking
        assert await used_in_all(store) == CLAIMS


async def until_some_more_are_used(store: SqlPlacementStore, asking: "asyncio.Future[None]") -> None:
    before = await used_in_all(store)
    async with asyncio.timeout(PATIENCE_S):
        while await used_in_all(store) == before and not asking.done():
            await asyncio.sleep(0.002)
