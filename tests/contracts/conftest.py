"""Each contract test runs against every kind of broker or store, so that what holds for one holds for all."""

from collections.abc import AsyncIterator

import pytest

from bus.broker import Broker, Connection
from scheduler_worker.store_sql import SchedulerStore
from tests.contracts.admin_client import AdminClient
from tests.contracts.broker_under_test import BrokerUnderTest
from tests.contracts.memory_under_test import started
from tests.contracts.placement_orders import a_host
from tests.contracts.small_world import connected, world
from tests.contracts.stage import declared
from tests.contracts.store_client import StoreClient
from tests.contracts.stores import STORES, open_scheduler_store, open_store
from tests.running import closing

BROKERS = ("memory", "unix", "unix+journal", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq))


@pytest.fixture(params=BROKERS)
async def under_test(request: pytest.FixtureRequest) -> AsyncIterator[BrokerUnderTest]:
    async with closing(await started(request.param)) as (broker,):
        yield broker


@pytest.fixture
async def broker(under_test: BrokerUnderTest) -> Broker:
    """The whole topology is declared on it."""
    return await declared(under_test)


@pytest.fixture
async def connection(under_test: BrokerUnderTest) -> AsyncIterator[Connection]:
    """To a broker that has a work queue and the dead letters."""
    async with connected(under_test.broker(), world()) as connection:
        yield connection


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[SchedulerStore]:
    """A scheduler's, which is empty."""
    async with open_scheduler_store(request.param) as store:
        yield store


@pytest.fixture(params=STORES)
async def admin(request: pytest.FixtureRequest) -> AsyncIterator[AdminClient]:
    """Of placement, which is empty. At the end of each test the audit must find nothing."""
    async with open_store(request.param) as store:
        yield AdminClient(store)
        assert await store.audit() == ()


@pytest.fixture(params=STORES)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[StoreClient]:
    """Of placement, with three hosts of four VCPU each. At the end the audit must find nothing."""
    async with open_store(request.param) as store:
        client = StoreClient(store)
        await client.report(a_host("host-1"), a_host("host-2"), a_host("host-3"))
        yield client
        assert await store.audit() == ()
