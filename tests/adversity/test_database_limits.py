"""A PostgreSQL that does not answer, or accepts no connection, blocks no worker for ever; and no message is lost,
handled twice or dead-lettered.

Each fault hits a placement worker at work. Its limits are short, and so is the number of attempts for a message: if
attempts were counted for which the message is not to blame, all messages would become dead letters.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import asyncpg
import pytest
import sqlalchemy as sa
from msgspec import structs
from sqlalchemy import Connection
from sqlalchemy.engine import make_url

from bus.messages.placement import ClaimAnswered
from bus.settings import BusSettings
from bus.topology import DEAD_QUEUE
from bus.workers.connections import Station
from engine.refusals import Claimed
from kit.clock import now
from kit.errors import Locked, TookTooLong, Unavailable
from kit.sql import DatabaseSettings, PostgresDatabase, open_database, read_once, upgrade, write_once
from placement_worker.settings import FeedPace, PlacementSettings
from placement_worker.store_sql import PlacementStore, PlacementTransaction
from placement_worker.wiring import placement_parts
from tests.contracts.memory_under_test import MemoryUnderTest
from tests.contracts.placement_orders import a_claim, a_host, a_release, consumer
from tests.contracts.rabbitmq_under_test import Proxy
from tests.contracts.small_world import connected
from tests.contracts.sql_stores import a_session
from tests.contracts.stage import declared
from tests.contracts.store_client import StoreClient
from tests.contracts.stores import undone
from tests.running import closing, once, running
from tests.servers.postgres import PrivatePostgres
from tests.varied import varied
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.postgresql

LIMITS = varied(
    DatabaseSettings(),
    CONNECT_S=0.5,
    POOL_WAIT_S=1.0,
    LOCK_S=0.05,
    statement_s=0.3,
    IDLE_IN_TRANSACTION_S=0.5,
    transaction_s=0.6,
    LONG_S=5.0,
)
# Where one limit is tested, the others are long: a server that stands still for a moment meets no other one.
USUAL = DatabaseSettings()
BUS = varied(
    BusSettings(),
    ATTEMPTS_MAX=2,
    TRIES_IN_PLACE_MAX=2,
    RETRY_DELAY_MS_FIRST=5,
    RETRY_DELAY_MS_MAX=50,
    BLAMELESS_DELAY_MS=20,
    ask_again_ms=60_000,
    answer_timeout_ms=60_000,
)
CLAIMS, TRIES = 20, 12


class CountingStore(PlacementStore):
    """Counts the transactions that were begun."""

    begun = 0

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PlacementTransaction]:
        self.begun += 1
        async with super().transaction() as transaction:
            yield transaction


class Scene:
    """A placement worker on this database, and a client that asks it."""

    def __init__(self, stack: AsyncExitStack, url: str) -> None:
        self._stack = stack
        self.store = CountingStore(url, settings=LIMITS)
        stack.push_async_callback(self.store.close)
        # For preparation and checks: with the limits of deployments, which a busy machine keeps.
        self.patient = PlacementStore(url)
        stack.push_async_callback(self.patient.close)

    async def open(self) -> None:
        self.broker = await declared(MemoryUnderTest())
        here, self.client = self._station("placement"), self._station("client", asks=True)
        pace = FeedPace(lead_again_s=0.05)
        parts = placement_parts((here,), self.store, PlacementSettings(), pace=pace)
        await self._stack.enter_async_context(running((*parts, self.client)))
        await StoreClient(self.patient).report_one(a_host(VCPU=4 * CLAIMS))
        await self.claim(0)

    async def claim(self, *numbers: int) -> None:
        claims = [a_claim(who=consumer(f"web-{n}"), issued_at=now()) for n in numbers]
        for answer in await self.client.ask_all(claims):
            assert isinstance(answer, ClaimAnswered)
            assert isinstance(answer.verdict, Claimed), answer

    async def release(self, number: int) -> None:
        await self.client.publisher.send(a_release(consumer(f"web-{number}"), issued_at=now()))

    async def work_through(self, trouble: AbstractAsyncContextManager[None]) -> None:
        """During the fault nothing is done; after it everything is done, once."""
        async with trouble:
            begun = self.store.begun
            claiming = asyncio.create_task(self.claim(*range(1, CLAIMS)))
            await self.release(0)
            await until(lambda: self.store.begun >= begun + TRIES, "the worker tries again and again")
            assert not claiming.done()
        await asyncio.wait_for(claiming, PATIENCE_S)
        await until(self.used, "all is done", lambda used: used == CLAIMS - 1)
        assert await self.patient.audit() == ()
        assert await self.dead() == 0

    async def used(self) -> int:
        (host,) = (await self.patient.snapshot_page(0, 10)).providers
        return host.inventories["VCPU"].used

    async def dead(self) -> int:
        async with connected(self.broker) as connection:
            return await connection.depth(DEAD_QUEUE)

    def _station(self, name: str, *, asks: bool = False) -> Station:
        station = Station(self.broker, name, settings=BUS, asks=asks)
        self._stack.push_async_callback(station.close)
        return station


@asynccontextmanager
async def scene(url: str) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        opened = Scene(stack, url)
        await opened.open()
        yield opened


# The server's own limits


async def test_the_server_ends_what_takes_too_long_and_what_takes_long_by_its_nature_may(url: str) -> None:
    limits = varied(USUAL, LOCK_S=LIMITS.LOCK_S, statement_s=LIMITS.statement_s)
    async with closing(open_database(url, settings=limits)) as (database,):
        with pytest.raises(TookTooLong, match="statement timeout"):
            await write_once(database, sleep, 3 * LIMITS.statement_s)
        async with database.reading(takes_long=True) as transaction:
            await transaction.run(sleep, 3 * LIMITS.statement_s)
        # A session that is used again has its limits as before.
        with pytest.raises(TookTooLong, match="statement timeout"):
            await read_once(database, sleep, 3 * LIMITS.statement_s)
        async with a_session(url) as other, other.transaction():
            await other.execute("LOCK TABLE consumers IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(Locked, match="lock timeout"):
                await write_once(database, look)


async def test_a_transaction_in_which_nothing_is_asked_is_ended_with_what_it_has_locked(url: str) -> None:
    limits = varied(USUAL, IDLE_IN_TRANSACTION_S=LIMITS.IDLE_IN_TRANSACTION_S)
    async with closing(open_database(url, settings=limits)) as (database,):

        async def forgetful() -> None:
            async with database.writing() as transaction:
                await transaction.fetch("LOCK TABLE consumers IN ACCESS EXCLUSIVE MODE")
                async with a_session(url) as other, other.transaction():
                    # Waits for the lock, and gets it when the transaction was ended.
                    await other.execute("LOCK TABLE consumers IN ACCESS EXCLUSIVE MODE")
                await transaction.run(look)

        with pytest.raises(Unavailable):
            await forgetful()
        await write_once(database, look)


async def test_a_session_that_cannot_be_rolled_back_is_not_used_again(url: str) -> None:
    """Otherwise the next transaction would commit what was left in this one."""
    database = open_database(url, pool_size=1, settings=USUAL)
    assert isinstance(database, PostgresDatabase)
    drivers, asking = [], set()

    # At its end the connection can run no other statement.
    async with undone(database.writing()) as transaction:
        drivers.append(await transaction.driver())
        asking.add(asyncio.create_task(drivers[0].execute("SELECT pg_sleep(0.1)")))
        await asyncio.sleep(0)
    await asyncio.gather(*asking, return_exceptions=True)
    assert await once(database.writing, lambda tx: tx.driver()) is not drivers[0]
    await database.close()


def sleep(connection: Connection, seconds: float) -> None:
    connection.execute(sa.select(sa.func.pg_sleep(seconds)))


def look(connection: Connection) -> None:
    connection.execute(sa.text("SELECT count(*) FROM consumers"))


# Sessions that are ended repeatedly


async def test_sessions_that_an_operator_ends(url: str) -> None:
    @asynccontextmanager
    async def ended() -> AsyncIterator[None]:
        # The lock keeps statements between two ends from being done.
        async with a_session(url) as ends, a_session(url) as locks, locks.transaction():
            await locks.execute("LOCK TABLE consumers IN ACCESS EXCLUSIVE MODE")
            ending = asyncio.create_task(end_sessions(ends, spared=locks.get_server_pid()))
            yield
            ending.cancel()
            await asyncio.wait((ending,))

    async def end_sessions(by: asyncpg.Connection, spared: int) -> None:
        while True:
            await by.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid() AND pid <> $1",
                spared,
            )
            await asyncio.sleep(0.01)

    async with scene(url) as here:
        await here.work_through(ended())


# A silent network


@pytest.mark.parametrize("lost", ["the answer to a statement", "the answer to a rollback"])
async def test_a_network_that_falls_silent_in_a_transaction(url: str, lost: str) -> None:
    """The whole transaction has a limit; rolling back has a shorter one."""
    is_statement = lost == "the answer to a statement"
    short = varied(LIMITS, CONNECT_S=USUAL.CONNECT_S, POOL_WAIT_S=USUAL.POOL_WAIT_S)
    limits = short if is_statement else structs.replace(USUAL, transaction_s=900.0)
    there = make_url(url)
    proxy = Proxy(there.host or "", there.port or 0)
    await proxy.start()
    through = there.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
    async with closing(proxy), closing(open_database(through, settings=limits)) as (database,):

        async def transact() -> None:
            async with asyncio.timeout(PATIENCE_S), database.writing() as transaction:
                await transaction.run(look)
                proxy.swallows = True
                if not is_statement:
                    raise LookupError
                await transaction.run(look)

        with pytest.raises(Unavailable if is_statement else LookupError):
            await transact()


# A server that is stopped


async def test_a_server_that_was_stopped_in_its_tracks() -> None:
    @asynccontextmanager
    async def stopped(server: PrivatePostgres) -> AsyncIterator[None]:
        processes = server.processes()
        for number in processes:
            os.kill(number, signal.SIGSTOP)
        try:
            yield
        finally:
            for number in processes:
                os.kill(number, signal.SIGCONT)

    starting = PrivatePostgres()
    server = await asyncio.to_thread(starting.__enter__)
    try:
        await upgrade(server.url, "placement_worker")
        async with scene(server.url) as here:
            await here.work_through(stopped(server))
    finally:
        await asyncio.to_thread(server.stop)
