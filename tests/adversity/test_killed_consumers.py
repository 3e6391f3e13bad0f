"""Worker processes are killed repeatedly with many messages in hand: nothing is lost, and no good message is
dead-lettered.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Protocol

import pytest
import pytest_asyncio

from tests.contracts.broker_under_test import BrokerUnderTest
from tests.contracts.memory_under_test import UnixUnderTest
from tests.contracts.rabbitmq_under_test import RabbitMQUnderTest
from tests.contracts.stage import (
    PATIENCE_S,
    SETTINGS,
    Remembering,
    declared,
    line,
    order,
    parcel,
    send,
    until,
    until_empty,
    working,
)

pytestmark = pytest.mark.asyncio


class Reachable(BrokerUnderTest, Protocol):
    """A broker that other processes can reach."""

    def url(self, user: str = "") -> str: ...


@pytest_asyncio.fixture(params=["unix", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
async def reachable(request: pytest.FixtureRequest) -> AsyncIterator[Reachable]:
    under_test: Reachable = await (UnixUnderTest if request.param == "unix" else RabbitMQUnderTest).start()
    yield under_test
    await under_test.close()


@pytest.mark.parametrize("items_per_parcel", [1, 20])
async def test_ten_kills_with_hundreds_prefetched_lose_and_bury_nothing(
    reachable: Reachable, items_per_parcel: int
) -> None:
    broker = await declared(reachable)
    count = SETTINGS.prefetch
    parcels = [
        parcel(*(line(order(n)) for n in range(start, start + items_per_parcel)))
        for start in range(0, count, items_per_parcel)
    ]
    await send(broker, *parcels)

    for _ in range(10):
        await hold_and_be_killed(reachable.url())
    memory = Remembering()
    async with working(broker, memory):
        await until(lambda: len(set(memory.handled)) == count, f"all {count} are handled")
        await until_empty(broker)

    connection = await broker.connect()
    assert await connection.depth("dead") == 0
    await connection.close()
    assert sorted(set(memory.handled)) == list(range(count))
    if items_per_parcel == 1:
        # Each was with a worker at each kill, except some whose parcel was just being split.
        assert memory.attempts == [10] * count


async def hold_and_be_killed(url: str) -> None:
    """Start a consumer that acknowledges nothing, and kill it when it holds as many messages as it can, or all of them."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.adversity.holding_worker", url, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        assert await process.stdout.readline() == b"holding\n"
    process.kill()
    await process.wait()
