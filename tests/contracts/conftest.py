"""Each contract test runs against every kind of broker, so that what holds for one holds for all."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.contracts.broker_under_test import BrokerUnderTest
from tests.contracts.memory_under_test import JournalUnderTest, MemoryUnderTest, UnixUnderTest

BROKERS = ("memory", "unix", "unix+journal", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq))


@pytest_asyncio.fixture(params=BROKERS)
async def under_test(request: pytest.FixtureRequest) -> AsyncIterator[BrokerUnderTest]:
    broker = await _started(request.param)
    try:
        yield broker
    finally:
        await broker.close()


async def _started(kind: str) -> BrokerUnderTest:
    match kind:
        case "memory":
            return MemoryUnderTest()
        case "unix":
            return await UnixUnderTest.start()
        case "unix+journal":
            return await JournalUnderTest.start()
        case _:
            # Only tests of the real broker need its client library.
            from tests.contracts.rabbitmq_under_test import RabbitMQUnderTest  # noqa: PLC0415

            return await RabbitMQUnderTest.start()
