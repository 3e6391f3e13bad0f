"""The primary of a PostgreSQL is killed under boots, its standby is promoted, and the workers go on with the same URL."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection

from kit.errors import Unavailable
from kit.sql import open_database, read_once, upgrade, write_once
from tests.adversity.real_cloud import SMALL, a_build, cloud_on
from tests.contracts.rabbitmq_under_test import RabbitMQUnderTest
from tests.contracts.sql_stores import rows_of
from tests.running import closing
from tests.servers.free_places import place_in_memory
from tests.servers.postgres import FAST, PrivatePostgres

pytestmark = [pytest.mark.rabbitmq, pytest.mark.postgresql, pytest.mark.timeout(300)]

CELL = "c1"
HOSTS = 40
BOOTS = 400
# Each commit waits until the standby has it, too.
SYNCHRONOUS = {"synchronous_standby_names": "*"}


class Pair:
    """A primary and its standby."""

    def __init__(self, primary: PrivatePostgres, standby: PrivatePostgres) -> None:
        self.primary = primary
        self.standby = standby

    @property
    def url(self) -> str:
        return f"postgresql+asyncpg://postgres@{self.primary.address},{self.standby.address}/postgres"

    async def fail_over(self) -> None:
        await asyncio.to_thread(self.primary.kill)
        assert await rows_of(self.standby.url, "SELECT pg_promote(true, 60)") == [(True,)]


@pytest.fixture
def pair() -> Iterator[Pair]:
    place = place_in_memory()
    with (
        PrivatePostgres(settings={**FAST, **SYNCHRONOUS}, place=place) as primary,
        PrivatePostgres(settings=FAST, place=place, standby_of=primary) as standby,
    ):
        yield Pair(primary, standby)


@asynccontextmanager
async def tables_on(pair: Pair, *workers: str) -> AsyncIterator[str]:
    for worker in workers:
        await upgrade(pair.url, worker)
    yield pair.url


async def test_a_promoted_standby_is_found_and_nothing_that_was_committed_is_lost(pair: Pair) -> None:
    under_test = await RabbitMQUnderTest.start()
    database = partial(tables_on, pair)
    async with cloud_on(under_test, CELL, database=database, sizes={"HOSTS_PER_CELL": str(HOSTS)}) as here:
        await here.start("placement-1", "scheduler-1", "scheduler-2", f"conductor-{CELL}", f"compute-{CELL}")
        await here.until_up(HOSTS)
        builds = [a_build(number) for number in range(1, BOOTS + 1)]

        asking = asyncio.create_task(here.send(builds[: BOOTS // 2]))
        await here.until_in(BOOTS // 6, "active")
        failed_s = time.monotonic()
        await pair.fail_over()
        promoted_s = time.monotonic()
        await asyncio.gather(asking, here.send(builds[BOOTS // 2 :]))
        await here.until_in(BOOTS // 2 + BOOTS // 8, "active")
        went_on_s = time.monotonic()
        await here.until_in(BOOTS, "active")
        print(
            f"promoted {promoted_s - failed_s:.1f} s after the kill, boots went on {went_on_s - promoted_s:.1f} s later"
        )

        await here.until_at_rest(lambda _: SMALL)
        assert Counter(each.state for each in await here.instances()) == {"active": BOOTS}
        assert sum(host.instances for host in await here.hosts()) == BOOTS
        assert await here.audited() == ()


async def test_a_session_whose_server_only_reads_is_not_used_again(pair: Pair) -> None:
    """The URL names the standby alone, so a session is opened on it; it is replaced once the server refuses to write."""
    async with closing(open_database(pair.standby.url)) as (database,):
        for _ in range(2):
            with pytest.raises(Unavailable, match="read-only"):
                await write_once(database, Connection.exec_driver_sql, "CREATE TABLE never ()")
        clients = sa.text("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
        assert await read_once(database, Connection.scalar, clients) == 1
